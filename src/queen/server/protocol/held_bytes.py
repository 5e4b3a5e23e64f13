"""Room: how much of what clients send is held at once, by all connections together.

A body counts from its first byte until its request has been answered. When there is too much,
connections in the middle of a large body are not read from until there is less. When none is
being handled, one of them, the eldest, is read from all the same: else all could wait for each
other, each with half a body.

What is handled holds more than its bytes, because it is decoded, put into columns and
compressed. So only a few large bodies are handled at a time, and the others wait their turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from queen.errors import Overloaded

# What all connections together may hold of requests that are not answered yet.
MAX_HELD_BYTES = 32 * 1024 * 1024
# Of these, what is handled at a time, unless a single body is larger.
MAX_HANDLED_BYTES = 16 * 1024 * 1024
# A body up to this is read and handled whatever else there is.
SMALL_BODY_BYTES = 64 * 1024
# Whoever finds no room for so long is told to come again.
PATIENCE_S = 30.0


class Reader(Protocol):
    """A connection in the middle of a large body."""

    def heed_room(self) -> None:
        """Stop reading, or go on, as the room says now."""


class Room:
    def __init__(self) -> None:
        self.held_bytes = 0
        self._handled_bytes = 0
        # Who reads a large body, the eldest first.
        self._readers: dict[Reader, None] = {}
        self._turns: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._is_waking = False

    @property
    def is_full(self) -> bool:
        return self.held_bytes > MAX_HELD_BYTES

    # ---- reading ----

    def take(self, size: int) -> None:
        self.held_bytes += size

    def give(self, size: int) -> None:
        """Some bytes are no longer held."""
        if size:
            self.held_bytes -= size
            self._wake()

    def may_read(self, reader: Reader) -> bool:
        """Return whether more of a large body may be read now; if not, `heed_room` tells when."""
        self._readers[reader] = None
        if not self.is_full:
            return True
        # What is handled makes room when it is done; without that, only a whole body can.
        return not self._handled_bytes and reader is next(iter(self._readers))

    def leave(self, reader: Reader) -> None:
        """A connection reads no large body now, or must not for reasons of its own."""
        if reader in self._readers:
            del self._readers[reader]
            self._wake()

    def _wake(self) -> None:
        if self._readers and not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._is_waking = False
        for reader in list(self._readers):
            reader.heed_room()
            if self.is_full:
                return

    # ---- handling ----

    async def enter(self, size: int) -> None:
        """Wait until a large body may be handled; `exit` must follow."""
        if self._turns or not self._fits(size):
            await self._wait_for_turn(size)
        else:
            self._handled_bytes += size

    def exit(self, size: int) -> None:
        self._handled_bytes -= size
        self._call()

    def _fits(self, size: int) -> bool:
        return not self._handled_bytes or self._handled_bytes + size <= MAX_HANDLED_BYTES

    async def _wait_for_turn(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append((size, turn))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await turn
        except BaseException as error:
            if turn.cancelled():
                self._call()
            else:
                # Called and given up in the same moment.
                self.exit(size)
            if isinstance(error, TimeoutError):
                raise Overloaded from None
            raise

    def _call(self) -> None:
        """Call those whose turn it is, in the order they came; who has left is passed over."""
        while self._turns and (self._turns[0][1].done() or self._fits(self._turns[0][0])):
            size, waiting = self._turns.popleft()
            if not waiting.done():
                self._handled_bytes += size
                waiting.set_result(None)
