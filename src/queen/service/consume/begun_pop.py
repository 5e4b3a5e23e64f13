"""A pop that waits without a task of its own, perhaps with acks that came with it.

Most pops of consumers that work on and on need nothing but to wait: their group is known, and
somebody looks after their queue. Such a pop is parked, and whoever answers it calls back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from queen.errors import QueenError
from queen.service.acks.ack import raise_if_none_acked
from queen.service.acks.ack_batch import OffsetBatch
from queen.service.catalog import Queue
from queen.service.consume.feeds import Grant, Pop
from queen.service.consume.handoff import Handoffs
from queen.service.consume.pop import Popper


class BegunPop:
    """Calls back when the pop has its answer and its acks are committed."""

    __slots__ = ("_acks", "_handoffs", "_is_left", "_popper", "_timer", "_told", "pop")

    def __init__(self, popper: Popper, handoffs: Handoffs, pop: Pop) -> None:
        self._popper = popper
        self._handoffs = handoffs
        self.pop = pop
        self._acks: Sequence[OffsetBatch] = ()
        self._told: Callable[[], object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_left = False

    def begin(self, queue: Queue, timeout_s: float, acks: Sequence[OffsetBatch]) -> bool:
        """Begin, or return false: then nothing has happened."""
        if not self._popper.may_begin(queue, self.pop):
            return False
        if acks:
            self._acks = acks
            self._handoffs.begin(acks, self.pop)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(timeout_s, self.pop.answer_empty)
        self.pop.then(self._popped)
        self._popper.begin(queue, self.pop)
        return True

    def then(self, told: Callable[[], object]) -> None:
        self._told = told

    def _popped(self) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._handoffs.release(self._acks)
        self._go_on()

    def _go_on(self, _: object = None) -> None:
        """Tell, when the last ack is committed."""
        for batch in self._acks:
            assert batch.done is not None
            if not batch.done.done():
                batch.done.add_done_callback(self._go_on)
                return
        told, self._told = self._told, None
        if told is not None:
            told()

    def leave(self) -> None:
        """Nobody waits for it any more; its acks count all the same. A client that hangs up in two
        steps leaves twice, while they are committed."""
        if self._is_left:
            return
        self._is_left = True
        self.pop.told = None
        self._popper.leave(self.pop)
        self._popped()

    async def take_back(self, popped: list[Grant]) -> None:
        """Return when what it got is free again."""
        await self._handoffs.take_back(popped)

    def take(self) -> list[Grant]:
        """Return what it got; raises what `Handoffs.pop_after` raises."""
        if self._is_left:
            return []
        try:
            popped = self._popper.end(self.pop)
        except QueenError:
            raise_if_none_acked([*self._acks])
            raise
        try:
            raise_if_none_acked([*self._acks])
        except QueenError:
            self._popper.give_back(popped)
            raise
        return popped
