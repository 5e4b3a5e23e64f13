"""Messages one at a time, for a loop.

Asking for the next message acks the last. Leaving the loop by `break` or `return` acks the
message at hand; leaving it by an exception nacks it; the rest of the batch is given back
without fault in either case.

Python tells an iterator nothing when a loop is left: it only drops it. So this one looks at
what the loop was doing at that moment. After `break` and `return` the interpreter drops the
iterator with an instruction of its own (POP_TOP); in the middle of anything else, an exception
is on its way. Where that cannot be told, the message is nacked: it may be handled twice, but
it is not lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import deque
from opcode import opmap
from types import FrameType
from typing import TYPE_CHECKING, Generic

from queen.client.messages import AckItem, M, ack_of

if TYPE_CHECKING:
    from queen.client.consumer import Consumer

_POP_TOP = opmap["POP_TOP"]


def is_left_in_order(frame: FrameType | None) -> bool:
    """Whether the loop of a frame is dropping its iterator because of `break` or `return`."""
    return frame is not None and frame.f_code.co_code[frame.f_lasti] == _POP_TOP


class Messages(Generic[M]):
    def __init__(self, consumer: Consumer[M]) -> None:
        self._consumer = consumer
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[M] = deque()
        self._current: M | None = None
        self._done: list[AckItem] = []
        self._sent_at = self._busy_at = time.monotonic()
        self._signals = contextlib.ExitStack()
        self._signals.enter_context(consumer.stopped_by_signals())
        self._renewal = contextlib.AsyncExitStack()
        self._is_over = False

    def __aiter__(self) -> Messages[M]:
        return self

    async def __anext__(self) -> M:
        from queen.client.consumer import is_time_to_settle, verdicts

        if self._current is not None:
            self._done += verdicts([self._current], None)
            self._current = None
            self._consumer.handled += 1
        if self._done and (not self._waiting or is_time_to_settle(self._done, self._sent_at)):
            await self._settle()
        while not self._waiting or self._consumer.is_stopping:
            if self._is_over or not await self._take_batch():
                await self.aclose()
                raise StopAsyncIteration
        self._current = self._waiting.popleft()
        return self._current

    async def _take_batch(self) -> bool:
        """Get more messages; false when it is time to end."""
        await self._renewal.aclose()
        if self._consumer.is_stopping or self._consumer.is_at_limit:
            return False
        batch = await self._consumer.next_batch(self._busy_at)
        if batch:
            self._waiting.extend(batch)
            self._sent_at = self._busy_at = time.monotonic()
            await self._renewal.enter_async_context(self._consumer.renewed(batch))
        return batch is not None

    async def _settle(self) -> None:
        done, self._done, self._sent_at = self._done, [], time.monotonic()
        await self._consumer.settle(done)

    async def aclose(self, in_order: bool = True) -> None:
        """Settle the message at hand and give the others back."""
        from queen.client.consumer import verdicts

        if self._is_over:
            return
        self._is_over = True
        self._signals.close()
        await self._renewal.aclose()
        if self._current is not None and in_order:
            self._done += verdicts([self._current], None)
            self._consumer.handled += 1
        elif self._current is not None:
            self._done += verdicts([self._current], "the loop was left by an error")
            self._consumer.failed += 1
        self._done += [ack_of(message, "retry") for message in self._waiting]
        self._current = None
        self._waiting.clear()
        await self._settle()

    def __del__(self) -> None:
        if self._is_over or self._loop.is_closed():
            return
        self._consumer.finish(self._loop, self.aclose, is_left_in_order(sys._getframe().f_back))
