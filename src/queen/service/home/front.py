"""The front's side of its home: calls that go there, and what becomes of them when it is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from queen.errors import Overloaded
from queen.service.consume.feeds import Grant
from queen.service.home.calls import Kind, error_of, failure_decoder
from queen.service.home.link import Link

# Of calls that are not answered yet: what the home itself lets wait, and no more.
_MAX_WAITING_BYTES = 128 * 1024 * 1024
# With so many calls under way the next ones wait a moment for each other, so that they share a
# flush: a home that does nothing but to commit would take each by itself. The moment is a part of
# what calls take anyway.
_MANY_CALLS = 4
_GATHER_PART = 0.1
_SHORTEST_GATHER_S = 0.001
_LONGEST_GATHER_S = 0.005
# What nobody waits for goes with what is said next.
_SOMETIME_S = 0.02
_LOOK_S = 0.5
# A home that says nothing for so long is asked, and then given up.
_SILENT_S = 1.0
_GIVEN_UP_S = 5.0


class HomeLost(Exception):
    """The home is gone, and with it the answer to a call."""


class HomeGrants(list[Grant]):
    """What was popped at a home, which waits to hear what became of it."""

    def __init__(self, front: Front, call: int) -> None:
        super().__init__()
        self._front = front
        self._call = call

    def sent(self) -> None:
        self._front.link.say(Kind.SENT, self._call, within_s=_SOMETIME_S)

    def give_back(self) -> None:
        self._front.link.say(Kind.BACK, self._call)


class Front:
    """A link to the home, from the moment it has answered until it is lost."""

    def __init__(self, greeted: Callable[[Front], None], left: Callable[[Front], None]) -> None:
        self._greeted = greeted
        self._left = left
        self.link = Link(self._hear, self._lost)
        self.lost = asyncio.get_running_loop().create_future()
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        # Of them those that may wait for long.
        self._polls: set[int] = set()
        self._last = 0
        self._waiting_bytes = 0
        # What a push or an ack takes, and what others therefore wait for each other.
        self._lately_s = 0.0
        self._gather_s = 0.0
        self._asked_at: float | None = None

    # ---- calls ----

    async def call(self, kind: Kind, body: bytes) -> bytes:
        """Return the answer of the home; raises what it raised, or `HomeLost`."""
        if self._waiting_bytes and self._waiting_bytes + len(body) > _MAX_WAITING_BYTES:
            raise Overloaded
        call, answer = self._begin(kind, body)
        self._waiting_bytes += len(body)
        began_at = time.monotonic()
        try:
            return await answer
        finally:
            self._note_time(began_at)
            self._waiting_bytes -= len(body)
            self._calls.pop(call, None)

    async def pop(self, body: bytes, *, waits: bool) -> tuple[int, bytes] | None:
        """Return the number of the call and what was popped; None when this server ends."""
        call, answer = self._begin(Kind.POP, body)
        if waits:
            self._polls.add(call)
        try:
            return call, await answer
        except asyncio.CancelledError:
            # The client has gone, or nobody pops here any more.
            self.link.say(Kind.LEFT, call)
            if answer.cancelled() and not _is_cancelled():
                return None
            raise
        finally:
            self._polls.discard(call)
            self._calls.pop(call, None)

    def _begin(self, kind: Kind, body: bytes) -> tuple[int, asyncio.Future[bytes]]:
        if not self.link.is_open:
            raise HomeLost
        self._last = call = (self._last + 1) & 0xFFFFFFFF
        answer = self._calls[call] = asyncio.get_running_loop().create_future()
        # Polls that wait are not under way.
        is_busy = len(self._calls) - len(self._polls) > _MANY_CALLS
        self.link.say(kind, call, body, within_s=self._gather_s if is_busy else 0.0)
        return call, answer

    def _note_time(self, began_at: float) -> None:
        """Note how long a call took; what others wait for each other follows it slowly."""
        took_s = min(time.monotonic() - began_at, 1.0)
        self._lately_s += (took_s - self._lately_s) / 16
        gather_s = min(self._lately_s * _GATHER_PART, _LONGEST_GATHER_S)
        self._gather_s = gather_s if gather_s >= _SHORTEST_GATHER_S else 0.0

    def tell(self, word: str) -> None:
        """Say what was changed here: it holds for every call after it."""
        self._last = call = (self._last + 1) & 0xFFFFFFFF
        self.link.say(Kind.WORD, call, word.encode())

    def leave_pops(self) -> None:
        """Answer every pop that waits with nothing."""
        for call in list(self._polls):
            self._calls[call].cancel()

    # ---- what the home says ----

    def _hear(self, kind: int, call: int, body: bytes) -> None:
        self._asked_at = None
        if kind == Kind.HELLO:
            self._greeted(self)
        elif kind == Kind.LEAVING:
            self._left(self)
        else:
            answer = self._calls.get(call)
            if answer is None or answer.done():
                return
            if kind == Kind.ANSWER:
                answer.set_result(body)
            elif kind == Kind.ERROR:
                answer.set_exception(error_of(failure_decoder.decode(body)))

    def _lost(self) -> None:
        self._left(self)
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(HomeLost())
        if not self.lost.done():
            self.lost.set_result(None)

    # ---- a home that is there and says nothing ----

    async def watch(self) -> None:
        """Return when the link is lost; give a home up that does not answer."""
        while not self.lost.done():
            await asyncio.wait((self.lost,), timeout=_LOOK_S)
            now = time.monotonic()
            if not self._calls:
                self._asked_at = None
            elif self._asked_at is None:
                if now - self.link.heard_at > _SILENT_S:
                    self._asked_at = now
                    self.link.say(Kind.PING)
            elif now - self._asked_at > _GIVEN_UP_S:
                self.link.abort()


def _is_cancelled() -> bool:
    """Return whether the running task itself was told to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
