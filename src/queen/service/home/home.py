"""Who of the workers is the home, and the hot verbs on their way to it.

    front   accepts, parses, authenticates, checks; makes columns of JSON, and JSON of columns
    home    does that too, and writes and leases for all of them

Each worker is a whole server and could do everything by itself. But two that do so cost nearly
twice as much for a message: each has flushes of its own, half as large, reads what the other wrote
before it can compare ids, and asks again for what the other leased. So pushes, pops and acks go to
one of them, over a socket in a folder that only this user can enter.

Whoever holds the lock of a file in that folder is the home; the kernel lets go of it with the
process. The others notice in the same moment: what was under way is unknown, as when a server
dies, what comes is done by themselves, and the first that has the lock is the next home. The
database stays the authority throughout, so nobody has to agree on who it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from queen.errors import OutcomeUnknown
from queen.service.acks.ack import raise_if_none_acked
from queen.service.acks.ack_batch import AckBatch, OffsetBatch
from queen.service.catalog import Queue
from queen.service.consume.begun_pop import BegunPop
from queen.service.consume.feeds import Grant, Pop
from queen.service.events import Events
from queen.service.home import acks, appends, grants
from queen.service.home.calls import (
    Kind,
    PopCall,
    ack_answer_decoder,
    encode,
    pop_answer_decoder,
    push_answer_decoder,
)
from queen.service.home.front import Front, HomeGrants, HomeLost
from queen.service.home.host import Host, Verbs
from queen.service.home.places import Places
from queen.service.log.append import Append, Request
from queen.service.log.push import raise_if_none_stored
from queen.service.spooling.entrance import Buffering

_log = logging.getLogger(__name__)

_LOCK = "home.lock"
_SOCKET = "home.sock"
# Between two tries to be the home, or to reach it.
_PAUSE_S = 0.05
# How long a home that has accepted may take to say so, and how long one is left that did not.
_GREETING_S = 2.0
_REST_S = 1.0
# How long a worker that starts waits for it: else those who come first had another way than the
# next.
_SETTLE_S = 2.0
# What fronts still wait for when a home ends.
_LAST_WORK_S = 10.0
_UNKNOWN = "The process that stores messages has ended; repeat with the same transaction ids"


class Home:
    def __init__(self, folder: str | None, verbs: Verbs, events: Events) -> None:
        self._folder = Path(folder) if folder is not None else None
        self._verbs = verbs
        # The way to the home; None where this process is the home, or has none.
        self._front: Front | None = None
        self._hosts: set[Host] = set()
        self._places = Places()
        self._is_stopping = False
        self._is_home = False
        self._settled = asyncio.Event()
        events.options_changed.subscribe(lambda: self._tell("c"))
        events.maintenance_turned.subscribe(lambda: self._tell("m"))
        events.queue_deleted.subscribe(lambda queue: self._tell(f"x{queue}"))
        events.group_moved.subscribe(lambda queue, group: self._tell(f"s{queue}:{group}"))
        events.group_resumed.subscribe(lambda queue, group: self._tell(f"g{queue}:{group}"))
        events.group_deleted.subscribe(lambda queue, group: self._tell(f"d{queue}:{group}"))

    @property
    def has_others(self) -> bool:
        """Whether there are other workers of this server."""
        return self._folder is not None

    @property
    def role(self) -> Literal["alone", "home", "front", "apart"]:
        """What this process is: alone, home, front, or apart from a home that it looks for."""
        if self._folder is None:
            return "alone"
        if self._is_home:
            return "home"
        return "front" if self._front is not None else "apart"

    def _tell(self, word: str) -> None:
        if self._front is not None:
            self._front.tell(word)

    # ---- the verbs ----

    def push(self, pushed: list[Append], buffering: Buffering | None = None) -> Awaitable[None]:
        """Take messages; see `Entrance.push`."""
        # What was spooled here while there was no home comes before what goes there.
        if self._front is None or not pushed or self._verbs.entrance.is_behind(pushed):
            return self._verbs.entrance.push(pushed, buffering)
        return self._push_at(self._front, pushed, buffering)

    def submit(self, pushed: list[Append]) -> Request | None:
        """Begin to store messages without a task; None when that is not done here. When it is
        done, see `Entrance.is_done` and `Entrance.finish`."""
        return self._verbs.entrance.submit(pushed) if self._front is None else None

    def is_done(self, pushed: list[Append]) -> bool:
        return self._verbs.entrance.is_done(pushed)

    def finish(self, pushed: list[Append]) -> Awaitable[None]:
        return self._verbs.entrance.finish(pushed)

    def buffer(self, pushed: list[Append], buffering: Buffering) -> bool:
        """Write messages to the spool, if that is done here and nobody has to be waited for."""
        return self._front is None and self._verbs.entrance.buffer(pushed, buffering)

    async def _push_at(
        self, front: Front, pushed: list[Append], buffering: Buffering | None
    ) -> None:
        body = encode(appends.push_call(pushed, buffering))
        try:
            answer = await front.call(Kind.PUSH, body)
        except HomeLost:
            raise OutcomeUnknown(_UNKNOWN) from None
        appends.take_answers(pushed, push_answer_decoder.decode(answer), self._places)
        raise_if_none_stored(pushed)

    async def pop(
        self,
        queues: list[Queue],
        pop: Pop,
        timeout_s: float,
        label: tuple[str, str] | None = None,
    ) -> list[Grant]:
        """Return what could be claimed; see `Popper.pop`."""
        front, popper = self._front, self._verbs.popper
        if front is not None and label is None and len(queues) == 1:
            started = time.monotonic()
            try:
                return await self._pop_at(front, queues[0], pop, timeout_s)
            except HomeLost:
                # What it had claimed comes back when its lease ends, as after any server's end.
                timeout_s = max(0.0, timeout_s - (time.monotonic() - started))
        return await popper.pop(queues, pop, timeout_s, label)

    async def pop_after(
        self, batches: list[OffsetBatch], queues: list[Queue], pop: Pop, timeout_s: float
    ) -> list[Grant]:
        """Apply acknowledgments, and pop if all of them are taken."""
        if self._front is None:
            return await self._verbs.handoffs.pop_after(batches, queues, pop, timeout_s)
        await self._ack_at(self._front, [*batches])
        if not all(batch.is_taken for batch in batches):
            return []
        return await self.pop(queues, pop, timeout_s)

    def begin_pop(
        self, queue: Queue, pop: Pop, timeout_s: float, acks: Sequence[OffsetBatch]
    ) -> BegunPop | None:
        """Begin to do the same without a task; None when that takes one."""
        if self._front is not None:
            return None
        begun = BegunPop(self._verbs.popper, self._verbs.handoffs, pop)
        return begun if begun.begin(queue, timeout_s, acks) else None

    async def _pop_at(self, front: Front, queue: Queue, pop: Pop, timeout_s: float) -> list[Grant]:
        if self._verbs.popper.gives_nothing:
            return []
        asked = PopCall(
            queue.name,
            pop.group,
            pop.batch,
            pop.partitions,
            pop.auto_ack,
            pop.waits,
            pop.named,
            *pop.subscription,
            timeout_s,
            pop.is_framed,
            pop.consumer,
            pop.shared,
        )
        answer = await front.pop(encode(asked), waits=pop.waits)
        if answer is None:
            return []
        call, body = answer
        popped = HomeGrants(front, call)
        try:
            for grant in pop_answer_decoder.decode(body):
                popped.append(grants.grant_of(grant, self._places))
        except Exception:
            popped.give_back()
            raise
        return popped

    def give_back(self, popped: list[Grant]) -> None:
        """Take grants back whose client has gone."""
        if isinstance(popped, HomeGrants):
            popped.give_back()
        else:
            self._verbs.popper.give_back(popped)

    def release(self, popped: list[Grant]) -> None:
        """An answer has been written, or will never be: its messages need no memory any more."""
        if isinstance(popped, HomeGrants):
            popped.sent()
        else:
            self._verbs.popper.release(popped)

    def ack(self, batches: list[AckBatch]) -> Awaitable[None]:
        """Apply acknowledgments; see `Acker.ack`."""
        if self._front is None or not batches:
            return self._verbs.acker.ack(batches)
        return self._ack_at(self._front, batches)

    async def _ack_at(self, front: Front, batches: list[AckBatch]) -> None:
        try:
            answer = await front.call(Kind.ACK, encode([acks.called(batch) for batch in batches]))
        except HomeLost:
            if any(batch.lease_id is None for batch in batches):
                raise OutcomeUnknown(_UNKNOWN) from None
            # One that names its lease may be repeated, and is answered as the first was.
            await self._verbs.acker.ack(batches)
            return
        for batch, result in zip(batches, ack_answer_decoder.decode(answer), strict=True):
            acks.take_answer(batch, result)
        raise_if_none_acked(batches)

    # ---- being the home, or having one ----

    async def run(self) -> None:
        """Be the home, or a front of it, for ever."""
        assert self._folder is not None
        while not self._is_stopping:
            try:
                with _locked(self._folder / _LOCK) as is_home:
                    if is_home:
                        await self._be_home(self._folder / _SOCKET)
                if not is_home and not await self._be_front(self._folder / _SOCKET):
                    await asyncio.sleep(_PAUSE_S)
            except OSError as error:
                _log.warning("no way to the other workers: %s", error)
                await asyncio.sleep(_REST_S)
        await asyncio.Event().wait()

    async def _be_home(self, path: Path) -> None:
        _remove_socket(path)
        server = await asyncio.get_running_loop().create_unix_server(self._meet, str(path))
        self._is_home = True
        self._settled.set()
        _log.info("this process writes and leases for all workers")
        try:
            await asyncio.Event().wait()
        finally:
            self._is_home = False
            server.close()
            for host in list(self._hosts):
                host.link.close()

    def _meet(self) -> asyncio.BaseProtocol:
        host = Host(self._verbs, self._hosts.discard)
        self._hosts.add(host)
        return host.link

    async def _be_front(self, path: Path) -> bool:
        """Use the home until it is lost; return whether there was one."""
        greeting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def greeted(front: Front) -> None:
            if not self._is_stopping:
                self._front = front
                self._settled.set()
            if not greeting.done():
                greeting.set_result(None)

        front = Front(greeted, self._leave)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: front.link, str(path))
        except (FileNotFoundError, ConnectionError):
            return False
        try:
            await asyncio.wait((greeting, front.lost), timeout=_GREETING_S)
            if greeting.done():
                await front.watch()
            elif not front.lost.done():
                # Its process is there and does nothing: it is left alone for a while.
                await asyncio.sleep(_REST_S)
        finally:
            self._leave(front)
            front.link.abort()
        return greeting.done()

    def _leave(self, front: Front) -> None:
        """Do by ourselves what comes from now on."""
        if self._front is front:
            self._front = None

    async def settle(self) -> None:
        """Wait until it is known who the home is, but not for long."""
        if self.has_others:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE_S):
                    await self._settled.wait()

    # ---- the end ----

    def close_pops(self) -> None:
        """Answer every pop of this server that waits at its home with nothing."""
        self._is_stopping = True
        if self._front is not None:
            self._front.leave_pops()
        for host in self._hosts:
            host.link.say(Kind.LEAVING)

    async def finish_calls(self) -> None:
        """Answer what fronts have called, and no longer than that takes."""
        # Flushes are over: those who waited for them have their turn first.
        await asyncio.sleep(0)
        tasks = [task for host in self._hosts for task in host.tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_WORK_S)


def _remove_socket(path: Path) -> None:
    """Remove what a home before us has left."""
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold the lock of a file if nobody else does; yield whether that is so."""
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(file)
