"""The home's side of a front: takes its calls, and answers each when it is done.

Pushes and acks go into the same flushes as those of the home's own clients, and have no task of
their own. Where a front is gone, nobody waits any more: what its pops still bring goes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from queen.errors import NotFound, QueenError
from queen.service.acks.ack import Acker
from queen.service.acks.ack_batch import AckBatch
from queen.service.catalog import Catalog, Partition, Subscription
from queen.service.consume.feeds import Grant, Pop
from queen.service.consume.handoff import Handoffs
from queen.service.consume.pop import Popper
from queen.service.home import acks, appends, grants
from queen.service.home.calls import (
    CalledAck,
    Kind,
    PopCall,
    ack_decoder,
    encode,
    failure_of,
    pop_decoder,
    push_decoder,
)
from queen.service.home.link import Link
from queen.service.log.append import Append
from queen.service.spooling.entrance import Buffering, Entrance

_log = logging.getLogger(__name__)


class Verbs:
    """What a home does for its fronts."""

    def __init__(
        self,
        catalog: Catalog,
        entrance: Entrance,
        popper: Popper,
        acker: Acker,
        handoffs: Handoffs,
        follow: Callable[[str], None],
    ) -> None:
        self.catalog = catalog
        self.entrance = entrance
        self.popper = popper
        self.acker = acker
        self.handoffs = handoffs
        # What was changed at a front, in the words of signals.
        self.follow = follow


class Host:
    """One front, as its home sees it."""

    def __init__(self, verbs: Verbs, lost: Callable[[Host], None]) -> None:
        self._verbs = verbs
        self._tell_lost = lost
        self.link = Link(self._hear, self._lost, self._greet)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # What was popped, until the front says what became of the answer.
        self._held: dict[int, list[Grant]] = {}
        self._take: dict[int, Callable[[int, bytes], None]] = {
            Kind.PUSH: self._push,
            Kind.POP: self._pop,
            Kind.ACK: self._ack,
        }

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What is under way, but for what waits for a flush."""
        return list(self._tasks.values())

    # ---- what the front says ----

    def _greet(self) -> None:
        self.link.say(Kind.HELLO)

    def _hear(self, kind: int, call: int, body: bytes) -> None:
        take = self._take.get(kind)
        try:
            if take is not None:
                take(call, body)
            else:
                self._note(kind, call, body)
        except Exception as error:
            self._refuse(call, error)

    def _note(self, kind: int, call: int, body: bytes) -> None:
        if kind == Kind.PING:
            self.link.say(Kind.PONG)
        elif kind == Kind.WORD:
            self._verbs.follow(body.decode())
        elif kind == Kind.SENT:
            self._verbs.popper.release(self._held.pop(call, []))
        elif kind in (Kind.BACK, Kind.LEFT):
            self._give_up(call)

    def _give_up(self, call: int) -> None:
        task = self._tasks.get(call)
        if task is not None:
            # The pop itself gives back what it was about to get.
            task.cancel()
        elif call in self._held:
            self._verbs.popper.give_back(self._held.pop(call))

    def _lost(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        # Whether their answers were written is not known: their leases end in time.
        for granted in self._held.values():
            self._verbs.popper.release(granted)
        self._held.clear()
        self._tell_lost(self)

    # ---- answers ----

    def _answer(self, call: int, body: bytes) -> None:
        self.link.say(Kind.ANSWER, call, body)

    def _refuse(self, call: int, error: BaseException) -> None:
        if not isinstance(error, QueenError):
            _log.error("a call of a front failed", exc_info=error)
            error = QueenError()
        self.link.say(Kind.ERROR, call, encode(failure_of(error)))

    def _start(self, call: int, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(self._run(call, work))
        self._tasks[call] = task
        task.add_done_callback(lambda _: self._tasks.pop(call, None))

    async def _run(self, call: int, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:
            self._refuse(call, error)

    # ---- pushes ----

    def _push(self, call: int, body: bytes) -> None:
        pushed = push_decoder.decode(body)
        taken = appends.appends_of(pushed)
        buffering = Buffering(pushed.within_ms, pushed.most) if pushed.is_buffered else None
        done = self._verbs.entrance.submit(taken) if buffering is None else None
        if done is None:
            self._start(call, self._push_slowly(call, taken, buffering))
        else:
            done.then(partial(self._pushed, call, taken))

    def _pushed(self, call: int, taken: list[Append]) -> None:
        if self._verbs.entrance.is_done(taken):
            self._answer_push(call, taken)
        else:
            self._start(call, self._finish_push(call, taken))

    async def _finish_push(self, call: int, taken: list[Append]) -> None:
        await self._verbs.entrance.finish(taken)
        self._answer_push(call, taken)

    async def _push_slowly(
        self, call: int, taken: list[Append], buffering: Buffering | None
    ) -> None:
        await self._verbs.entrance.push(taken, buffering)
        self._answer_push(call, taken)

    def _answer_push(self, call: int, taken: list[Append]) -> None:
        self._answer(call, encode([appends.answer_of(append) for append in taken]))

    # ---- pops ----

    def _pop(self, call: int, body: bytes) -> None:
        self._start(call, self._pop_for(call, pop_decoder.decode(body)))

    async def _pop_for(self, call: int, asked: PopCall) -> None:
        queue = await self._verbs.catalog.queue(asked.queue)
        if queue is None:
            raise NotFound(f"Queue {asked.queue!r} not found")
        pop = Pop(
            asked.group,
            asked.batch,
            asked.partitions,
            auto_ack=asked.auto_ack,
            waits=asked.waits,
            named=asked.named,
            subscription=Subscription(asked.mode, asked.starts_at),
            consumer=asked.consumer,
            shared=asked.shared,
        )
        pop.is_framed = asked.is_framed
        popped = await self._verbs.popper.pop([queue], pop, asked.timeout_s)
        if not popped:
            self._answer(call, encode([]))
            return
        if not self.link.is_open:
            self._verbs.popper.give_back(popped)
            return
        self._held[call] = popped
        try:
            answer = encode([grants.granted(grant) for grant in popped])
        except Exception:
            self._verbs.popper.give_back(self._held.pop(call))
            raise
        for grant in popped:
            grant.stored = []
        self._answer(call, answer)

    # ---- acks ----

    def _ack(self, call: int, body: bytes) -> None:
        called = ack_decoder.decode(body)
        catalog = self._verbs.catalog
        known = [catalog.partition_by_id(ack.partition_id) for ack in called]
        if all(known):
            self._submit_acks(call, called, [partition for partition in known if partition])
        else:
            self._start(call, self._ack_unknown(call, called))

    async def _ack_unknown(self, call: int, called: list[CalledAck]) -> None:
        partitions = await self._verbs.catalog.partitions(ack.partition_id for ack in called)
        try:
            known = [partitions[ack.partition_id] for ack in called]
        except KeyError:
            raise NotFound("Message not found: no such partition") from None
        self._submit_acks(call, called, known)

    def _submit_acks(self, call: int, called: list[CalledAck], known: list[Partition]) -> None:
        batches = [acks.batch_of(*pair) for pair in zip(called, known, strict=True)]
        left = self._verbs.acker.submit(batches)
        count = len(left)

        def done(_: object) -> None:
            nonlocal count
            count -= 1
            if count == 0:
                self._answer_acks(call, batches)

        for future in left:
            future.add_done_callback(done)

    def _answer_acks(self, call: int, batches: list[AckBatch]) -> None:
        self._answer(call, encode([acks.answer_of(batch) for batch in batches]))
