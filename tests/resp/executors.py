"""Executors that do what a test says, and remember what they were asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from queen.errors import QueenError
from queen.streambroker.replies import NO_ARRAY, Reply


class Recording:
    """Answers every command with its words; one that blocks waits until it is let go."""

    def __init__(self) -> None:
        self.calls: list[list[list[bytes]]] = []
        self.atomic_calls: list[list[list[bytes]]] = []
        self.error: Exception | None = None
        self.reply: Reply = None
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.let_go = asyncio.Event()
        self.waiting = 0
        self.cancelled = 0

    def fail_with(self, error: QueenError | None) -> None:
        self.error = error

    async def execute(
        self, commands: Sequence[Sequence[bytes]], *, is_atomic: bool = False
    ) -> list[Reply]:
        asked = [list(command) for command in commands]
        (self.atomic_calls if is_atomic else self.calls).append(asked)
        if self.error is not None:
            raise self.error
        if not is_atomic and any(b"BLOCK" in command for command in asked):
            await self._wait()
            return [NO_ARRAY for _ in asked]
        await self.may_go.wait()
        return [self.reply if self.reply is not None else _words(command) for command in asked]

    async def _wait(self) -> None:
        self.waiting += 1
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1


def _words(command: list[bytes]) -> Reply:
    return [*command]
