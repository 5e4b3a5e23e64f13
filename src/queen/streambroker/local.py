"""Streams in the memory of this process: for tests, for one process, gone when it ends."""

from __future__ import annotations

from collections.abc import Sequence

from queen.errors import Unreachable
from queen.streambroker.checks import whole_number
from queen.streambroker.commands import ALL_COMMANDS, CommandStreamBroker
from queen.streambroker.engine import MemoryExecutor
from queen.streambroker.interface import Capability
from queen.streambroker.loop_thread import LoopThread
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
        executor = MemoryExecutor(
            max_length=whole_number("max_stream_length", max_stream_length, 1),
            max_pending=whole_number("max_pending_messages", max_pending_messages, 1),
        )
        self._thread = LoopThread("queen-local-streams")
        super().__init__(
            _ThreadExecutor(self._thread, executor),
            commands=ALL_COMMANDS,
            capabilities=frozenset({Capability.BOUNDED}),
        )

    async def close(self) -> None:
        """End those who wait; streams are gone."""
        self._thread.stop()


class _ThreadExecutor:
    """Runs commands in one thread, whoever asks: they need no locks there, and those who wait are
    in one order."""

    def __init__(self, thread: LoopThread, executor: Executor) -> None:
        self._thread = thread
        self._executor = executor

    async def execute(
        self, commands: Sequence[Sequence[bytes]], *, is_atomic: bool = False
    ) -> list[Reply]:
        if self._thread.is_stopped:
            raise Unreachable("the stream broker is closed")
        return await self._thread.hand_over(self._executor.execute(commands, is_atomic=is_atomic))
