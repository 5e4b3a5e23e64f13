"""Streams in the memory of this process: for tests, for one process, gone when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from queen.errors import Unreachable
from queen.streambroker.checks import whole_number
from queen.streambroker.commands import ALL_COMMANDS, CommandStreamBroker
from queen.streambroker.engine import MemoryExecutor
from queen.streambroker.interface import Capability
from queen.streambroker.replies import Executor, Reply

MAX_STREAM_LENGTH = 10_000
MAX_PENDING_MESSAGES = 1_000


class LocalStreamBroker(CommandStreamBroker):
    """A stream broker in memory. Any thread and any event loop may use it.

    A stream that is longer than `max_stream_length` loses its oldest entries. A consumer that has
    `max_pending_messages` pending gets no more until it acks some."""

    def __init__(
        self,
        max_stream_length: int = MAX_STREAM_LENGTH,
        max_pending_messages: int = MAX_PENDING_MESSAGES,
    ) -> None:
        engine = MemoryExecutor(
            max_length=whole_number("max_stream_length", max_stream_length, 1),
            max_pending=whole_number("max_pending_messages", max_pending_messages, 1),
        )
        self._closing = _ClosingExecutor(engine)
        super().__init__(
            self._closing,
            commands=ALL_COMMANDS,
            capabilities=frozenset({Capability.ANY_NAME, Capability.BOUNDED}),
        )

    async def close(self) -> None:
        """End those who wait; the streams are gone."""
        self._closing.close()


class _ClosingExecutor:
    """Runs commands until it is closed; then those who wait, in whatever loop, are told."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = threading.Lock()
        self._waiting: set[asyncio.Task[list[Reply]]] = set()
        self._is_closed = False

    async def execute(
        self, commands: Sequence[Sequence[bytes]], *, is_atomic: bool = False
    ) -> list[Reply]:
        if is_atomic or not any(b"BLOCK" in command for command in commands):
            self._refuse_if_closed()
            return await self._executor.execute(commands, is_atomic=is_atomic)
        with self._lock:
            self._refuse_if_closed()
            waiting = asyncio.ensure_future(self._executor.execute(commands))
            self._waiting.add(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._is_closed and waiting.cancelled():
                self._refuse_if_closed()
            raise
        finally:
            waiting.cancel()
            with self._lock:
                self._waiting.discard(waiting)

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise Unreachable("the stream broker is closed")

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            waiting = list(self._waiting)
        for task in waiting:
            task.get_loop().call_soon_threadsafe(task.cancel)
