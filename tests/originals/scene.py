"""What a scenario works with: a client of the original broker, and a queue of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

# What is said between a scenario and its test.
PAUSED, DONE, FAILED = (f"~ the scenario {word} ~" for word in ("pauses", "is done", "failed"))


class Scene(NamedTuple):
    version: str
    # The client's class, `queen.Queen`, and one client that is closed after the scenario.
    Queen: Any
    queen: Any
    urls: list[str]
    name: str

    def queue(self, suffix: str = "") -> Any:
        """Start a call about the scenario's queue, or another of its own."""
        return self.queen.queue(self.name + suffix)

    async def drain(self, suffix: str = "", **how: Any) -> list[Any]:
        """Pop and acknowledge everything; return the payloads."""
        found: list[Any] = []
        while True:
            call = self.queue(suffix).batch(100).wait(False)
            if "group" in how:
                call = call.group(how["group"])
            messages = await call.pop()
            if not messages:
                return found
            found += [one["data"] for one in messages]
            answer = await self.queen.ack(messages, True, how)
            assert answer["success"], answer

    async def pause(self) -> None:
        """Let the test do something to the servers."""
        print(PAUSED, flush=True)
        await asyncio.to_thread(sys.stdin.readline)


Scenario = Callable[[Scene], Awaitable[None]]
_S = TypeVar("_S", bound=Scenario)


def only(*versions: str) -> Callable[[_S], _S]:
    """A scenario for some versions: the others have no such call, or were not asked."""

    def mark(scenario: _S) -> _S:
        scenario.versions = versions  # type: ignore[attr-defined]
        return scenario

    return mark
