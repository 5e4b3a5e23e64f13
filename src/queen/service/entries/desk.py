"""Commands of many connections, in few commits.

Everything that waits when a batch begins is run in memory, in the order in which it came, and
committed in one transaction; then it is answered. A command that only reads is answered after
the database has said that what it read is still true. If another server wrote to one of the
streams meanwhile, nothing is committed: its records are read, and the batch runs again. Where
that happens, the streams are locked first for a while.

Readers that wait are tried again, in the order in which they came, after a commit here or a
notification from elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence

from queen.errors import Overloaded, QueenError, Unavailable
from queen.service.catalog import Partition
from queen.service.entries.batches import NotRun, Unit, Worker
from queen.service.entries.replicas import Replicas
from queen.service.events import Events
from queen.service.scope import Viewer
from queen.streambroker.engine.keyspace import Arguments, Wait
from queen.streambroker.engine.waiting import Waiter, Waiters
from queen.streambroker.replies import NO_ARRAY, Failure, Reply

_log = logging.getLogger(__name__)

_MAX_COMMANDS = 4096
_MAX_BYTES = 16 * 1024 * 1024
_MAX_WAITING_BYTES = 64 * 1024 * 1024
_LAST_LOOK_S = 0.01


class EntryDesk:
    def __init__(self, worker: Worker, replicas: Replicas, events: Events) -> None:
        self._worker = worker
        self._replicas = replicas
        self._queue: deque[Unit] = deque()
        self._queued_bytes = 0
        self._work = asyncio.Event()
        self._waiters = Waiters()
        self._viewers: dict[Waiter, Viewer] = {}
        # Those that are trying again just now.
        self._trying: set[Waiter] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_closed = False
        events.written.subscribe(self._saw_written)
        events.written_elsewhere.subscribe(self._saw_written)
        events.entries_elsewhere.subscribe(self._saw_changed)

    @property
    def blocked(self) -> int:
        """How many readers wait."""
        return len(self._waiters)

    # ---- taking commands ----

    async def run(
        self, viewer: Viewer, commands: Sequence[Arguments], *, is_atomic: bool
    ) -> list[Reply]:
        """Run commands, of which at most the last may wait."""
        unit = Unit(viewer, commands, is_atomic=is_atomic)
        if self._is_closed:
            raise Unavailable("the server is stopping")
        if self._queued_bytes + unit.weight > _MAX_WAITING_BYTES:
            raise Overloaded
        self._submit(unit)
        replies = await unit.done
        if unit.waiter is not None:
            replies[-1] = await self._wait(unit.waiter)
        return [reply for reply in replies if not isinstance(reply, Wait)]

    def _submit(self, unit: Unit) -> None:
        self._queue.append(unit)
        self._queued_bytes += unit.weight
        self._wake()

    def _wake(self) -> None:
        self._is_idle.clear()
        self._work.set()

    async def run_batches(self) -> None:
        """Work for ever."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._queue:
                await self._run_batch(self._take())
            self._is_idle.set()

    def _take(self) -> list[Unit]:
        units: list[Unit] = []
        commands = weight = 0
        while self._queue and commands < _MAX_COMMANDS and weight < _MAX_BYTES:
            unit = self._queue.popleft()
            units.append(unit)
            commands += len(unit.commands)
            weight += unit.weight
        self._queued_bytes -= weight
        return units

    async def _run_batch(self, units: list[Unit]) -> None:
        try:
            ready = await self._worker.work(units)
        except NotRun as error:
            await self._run_each(units, error)
            return
        except QueenError as error:
            self._fail(units, error)
            return
        except Exception:
            _log.exception("commands on streams failed")
            self._fail(units, Unavailable("commands on streams failed; see the log"))
            return
        for unit in units:
            self._answer(unit)
        self._try_again(ready)

    async def _run_each(self, units: list[Unit], error: NotRun) -> None:
        """Find out whose commands cannot be run; the others are run without them."""
        if len(units) > 1:
            for unit in units:
                await self._run_batch([unit])
            return
        _log.error("a command on streams failed", exc_info=error.__cause__)
        cause = error.__cause__
        text = str(cause) if isinstance(cause, QueenError) else "internal error, see the log"
        units[0].replies = [Failure(f"ERR {text}") for _ in units[0].commands]
        self._answer(units[0])

    def _fail(self, units: list[Unit], error: QueenError) -> None:
        for unit in units:
            if unit.is_retry and unit.waiter is not None:
                self._trying.discard(unit.waiter)
                self._waiters.remove(unit.waiter)
                unit.waiter.fail(error)
            elif not unit.done.done():
                unit.done.set_exception(error)

    def _answer(self, unit: Unit) -> None:
        if unit.is_retry and unit.waiter is not None:
            self._trying.discard(unit.waiter)
            reply = unit.replies[0]
            if isinstance(reply, Wait):
                unit.waiter.wait = reply
            else:
                self._waiters.remove(unit.waiter)
                unit.waiter.serve(reply)
        elif not unit.done.done():
            last = unit.replies[-1] if unit.replies else None
            if isinstance(last, Wait):
                # Now, before anybody else's commit could be missed.
                unit.waiter = Waiter(last)
                self._waiters.add(unit.waiter)
                self._viewers[unit.waiter] = unit.viewer
            unit.done.set_result(unit.replies)

    # ---- waiting ----

    async def _wait(self, waiter: Waiter) -> Reply:
        for_ms = waiter.wait.for_ms
        ends_at = time.monotonic() + for_ms / 1000 if for_ms else None
        try:
            while not waiter.is_served:
                left = None if ends_at is None else ends_at - time.monotonic()
                if left is not None and left <= 0:
                    if waiter not in self._trying:
                        return NO_ARRAY
                    # What is being delivered to it just now is its own, however late it is.
                    await waiter.woken(_LAST_LOOK_S)
                    continue
                again_in_ms = waiter.wait.again_in_ms
                again = None if again_in_ms is None else again_in_ms / 1000
                within = min((each for each in (left, again) if each is not None), default=None)
                if not await waiter.woken(within) and within == again:
                    self._try_waiters([waiter])
            return waiter.result()
        finally:
            self._waiters.remove(waiter)
            self._viewers.pop(waiter, None)

    def _try_again(self, keys: set[bytes]) -> None:
        if keys and len(self._waiters):
            self._try_waiters(self._waiters.on(keys))

    def _try_waiters(self, waiters: Sequence[Waiter]) -> None:
        """Let readers try once more, before all who came later."""
        units = []
        for waiter in waiters:
            viewer = self._viewers.get(waiter)
            if waiter in self._trying or viewer is None or waiter.is_served:
                continue
            self._trying.add(waiter)
            units.append(Unit(viewer, [waiter.wait.command], waiter=waiter))
        if units:
            self._queue.extendleft(reversed(units))
            self._queued_bytes += sum(unit.weight for unit in units)
            self._wake()

    def _saw_written(self, partitions: list[Partition]) -> None:
        if len(self._waiters):
            names = (partition.queue.name.encode() for partition in partitions)
            self._try_again({name for name in names if name in self._waiters.keys})

    def _saw_changed(self, queue_id: int) -> None:
        """Another server has changed something about a stream that wakes nobody by itself."""
        keys = {
            key
            for key in self._waiters.keys
            if (replica := self._replicas.by_key.get(key)) is None
            or replica.partition is None
            or replica.partition.queue.id == queue_id
        }
        self._try_again(keys)

    async def close(self) -> None:
        """Answer who waits, and finish what is under way."""
        self._is_closed = True
        self._end_waits()
        await self._is_idle.wait()
        # A read that was under way may have begun to wait only now.
        self._end_waits()

    def _end_waits(self) -> None:
        error = Unavailable("the server is stopping")
        for waiter in self._waiters.on(self._waiters.keys):
            self._waiters.remove(waiter)
            waiter.fail(error)
