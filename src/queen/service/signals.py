"""How servers on one database wake each other.

Commits of this process wake its own waiters directly. Other processes are told by NOTIFY,
on a connection of its own and after the commit: inside the append it would serialise all
commits of the database. Messages are gathered for a few milliseconds, so a busy server
sends a hundred a second at most. A lost one costs latency, not a message: every server also
looks by itself once a second. What does not fit into one notification goes with the next, and
so does what could not be sent. A server that is alone tells nobody what was written and what is
free again, and asks now and then whether it still is alone.

    payload   <sender> <what> ...      what: w<queue>:<partition>=<head>,…   written
                                             l<queue>                        look for yourself
                                             r<partition>:<group>            lease released
                                             c                               options changed
                                             s<queue>:<group>                group was moved
                                             g<queue>:<group>                look for a group
                                             d<queue>:<group>                group was deleted
                                             x<queue>                        queue was deleted
                                             m                               maintenance
                                             t<queue>                        time has passed
                                             p<stream>                       windows are ready
                                             e<queue>                        groups of entries
                                             j                               jobs have finished

The same connection hears what others tell on channels of their own (`also_listen`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg

from queen.errors import QueenError
from queen.service.admin.maintenance import Maintenance
from queen.service.catalog import Catalog, Partition
from queen.service.consume.wakeups import Wakeups
from queen.service.events import Events
from queen.service.log.segment_cache import SegmentCache
from queen.storage.database import Database

_log = logging.getLogger(__name__)

# Words that are of no use where nobody reads.
_FOR_READERS = "wlr"
_CHANNEL = "queen_log"
_GATHER_S = 0.01
# What a server that was alone has to tell to one that has just come may wait so long.
_ALONE_S = 0.25
_REST_S = 0.2
# PostgreSQL takes payloads of less than 8000 bytes.
MAX_BYTES = 7999
# Above so many partitions a server is told to look for itself.
_MAX_NAMED = 100
# What is kept of leases while nothing can be sent; others find them free by looking.
_MAX_RELEASED = 10_000


class Signals:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        cache: SegmentCache,
        wakeups: Wakeups,
        maintenance: Maintenance,
        events: Events,
        server_id: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._cache = cache
        self._wakeups = wakeups
        # Which of the servers this is, as soon as it is known.
        self._server_id = server_id
        self._maintenance = maintenance
        self._events = events
        self._id = uuid.uuid4().hex[:12]
        self._written: dict[int, dict[int, int]] = {}
        # In order, each once.
        self._released: dict[tuple[int, int], None] = {}
        # Rarer words, in order and each once.
        self._words: dict[str, None] = {}
        self._changed = False
        self._turned = False
        self._wake = asyncio.Event()
        self._connections = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._others: dict[str, Callable[[], None]] = {}
        self._anybody_reads: Callable[[], bool] = lambda: True
        events.written.subscribe(self.written)
        events.lease_released.subscribe(self.released)
        events.options_changed.subscribe(self.options_changed)
        events.maintenance_turned.subscribe(self.maintenance_turned)
        events.group_moved.subscribe(self.group_moved)
        events.group_resumed.subscribe(self.look_again)
        events.group_deleted.subscribe(self.group_deleted)
        events.queue_deleted.subscribe(self.queue_deleted)
        events.windows_planned.subscribe(self.windows_planned)
        events.entries_changed.subscribe(self.entries_changed)
        events.jobs_finished.subscribe(self.jobs_finished)

    # ---- sending ----

    def written(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            self._written.setdefault(partition.queue.id, {})[partition.id] = partition.head
        self._wake.set()

    def released(self, partition: Partition, group_id: int) -> None:
        if len(self._released) < _MAX_RELEASED:
            self._released[partition.id, group_id] = None
        self._wake.set()

    def options_changed(self) -> None:
        self._changed = True
        self._wake.set()

    def group_moved(self, queue_id: int, group_id: int) -> None:
        self._tell(f"s{queue_id}:{group_id}")

    def look_again(self, queue_id: int, group_id: int) -> None:
        self._tell(f"g{queue_id}:{group_id}")

    def group_deleted(self, queue_id: int, group_id: int) -> None:
        self._tell(f"d{queue_id}:{group_id}")

    def queue_deleted(self, queue_id: int) -> None:
        self._tell(f"x{queue_id}")

    def time_has_passed(self, queue_id: int) -> None:
        """A test has moved the instants of a queue; here it is followed at once."""
        self._follow_clock(queue_id)
        self._tell(f"t{queue_id}")

    def windows_planned(self, stream_id: int) -> None:
        self._tell(f"p{stream_id}")

    def entries_changed(self, queue_id: int) -> None:
        self._tell(f"e{queue_id}")

    def jobs_finished(self, _queue: str, _ids: list[str]) -> None:
        self._tell("j")

    def _follow_clock(self, queue_id: int) -> None:
        self._cache.forget_all()
        self._wakeups.time_has_passed(queue_id)

    def _tell(self, word: str) -> None:
        self._words[word] = None
        self._wake.set()

    def maintenance_turned(self) -> None:
        self._turned = True
        self._wake.set()

    def _take_words(self) -> list[str]:
        """Take what there is to say, the rarer words first."""
        words = ["c"] * self._changed + ["m"] * self._turned + list(self._words)
        many = sum(map(len, self._written.values())) > _MAX_NAMED
        for queue_id, heads in self._written.items():
            if many:
                words.append(f"l{queue_id}")
            else:
                named = ",".join(f"{partition}={head}" for partition, head in heads.items())
                words.append(f"w{queue_id}:{named}")
        words += [f"r{partition}:{group}" for partition, group in self._released]
        self._changed = self._turned = False
        self._words, self._written, self._released = {}, {}, {}
        return words

    def _payload(self) -> tuple[str, list[str]]:
        """Return what fits into one notification, and the words it is made of."""
        words, size = self._take_words(), len(self._id)
        for count, word in enumerate(words):
            size += 1 + len(word)
            if size > MAX_BYTES:
                # The rest goes with the next one.
                self._put_back(words[count:])
                words = words[:count]
                break
        return " ".join([self._id, *words]), words

    def _put_back(self, words: list[str]) -> None:
        """Say words with the next notification, before what is new."""
        self._words = dict.fromkeys(words) | self._words
        self._wake.set()

    async def run_sender(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            payload, words = self._payload()
            try:
                is_told = await self._database.fetchval(
                    "notify", payload, self._server_id(), any(map(_is_rare, words))
                )
            except QueenError as error:
                _log.debug("notify: %s", error)
                self._put_back(words[:_MAX_RELEASED])
                await asyncio.sleep(_REST_S)
                is_told = True
            await asyncio.sleep(_GATHER_S if is_told else _ALONE_S)

    # ---- receiving ----

    def also_listen(self, channel: str, wake: Callable[[], None]) -> None:
        """Call `wake` whenever something is told on a channel, whatever it is."""
        self._others[channel] = wake

    def heed_writes_if(self, anybody_reads: Callable[[], bool]) -> None:
        """Follow what others write and release only while somebody here reads: a worker whose pops
        go to another would take as long over it as that one."""
        self._anybody_reads = anybody_reads

    async def run_listener(self, connect: Callable[[], object]) -> None:
        """Listen for ever; reconnect when the connection breaks."""
        while True:
            try:
                connection: asyncpg.Connection = await connect()  # type: ignore[misc]
                await self._listen(connection)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                _log.debug("listen: %s", error)
            await asyncio.sleep(0.2)

    async def _listen(self, connection: asyncpg.Connection) -> None:
        self._connections += 1
        closed = asyncio.Event()
        connection.add_termination_listener(lambda _: closed.set())
        try:
            await connection.add_listener(_CHANNEL, self._hear)
            for channel in self._others:
                await connection.add_listener(channel, self._hear_other)
            # After a failover the database may be one that never had what we remember.
            self._cache.forget_all()
            if self._connections > 1:
                await self._catch_up()
            await closed.wait()
        finally:
            self._cache.forget_all()
            connection.terminate()

    async def _catch_up(self) -> None:
        """Anything may have been said while nobody listened."""
        self._catalog.expire_options()
        self._wakeups.look_everywhere()
        try:
            await self._maintenance.refresh()
        except QueenError as error:
            _log.debug("listen: %s", error)

    def _hear(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        sender, *words = str(payload).split(" ")
        if sender == self._id:
            return
        if not self._anybody_reads():
            words = [word for word in words if word[0] not in _FOR_READERS]
            if not words:
                return
        self._start(self._act(words))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _hear_other(self, _connection: object, _pid: int, channel: str, _payload: object) -> None:
        self._others[channel]()

    async def _act(self, words: list[str]) -> None:
        for word in words:
            try:
                await self._act_on(word)
            except (QueenError, ValueError, KeyError, IndexError) as error:
                # The others are followed all the same.
                _log.debug("notification not understood or not followed: %s", error)

    async def _act_on(self, word: str) -> None:
        kind, rest = word[0], word[1:]
        if kind == "w":
            heads = dict(pair.split("=") for pair in rest.split(":", 1)[1].split(","))
            partitions = await self._catalog.partitions(map(int, heads))
            for partition in partitions.values():
                partition.saw_head(int(heads[str(partition.id)]))
            self._events.written_elsewhere(list(partitions.values()))
        elif kind == "l":
            self._wakeups.look_at(int(rest))
        elif kind == "r":
            partition_id, group_id = map(int, rest.split(":"))
            partitions = await self._catalog.partitions([partition_id])
            self._wakeups.released_elsewhere(partitions.values(), group_id)
        elif kind == "m":
            await self._maintenance.refresh()
        else:
            self._follow(kind, rest)

    def follow(self, word: str) -> None:
        """Follow what another worker of this server says, before anything that it asks next."""
        if word == "m":
            self._start(self._act([word]))
        else:
            self._follow(word[0], word[1:])

    def _follow(self, kind: str, rest: str) -> None:
        if kind == "c":
            self._catalog.expire_options()
        elif kind == "x":
            self._catalog.forget_queue_id(int(rest))
            self._wakeups.forget_queue(int(rest))
        elif kind == "t":
            self._follow_clock(int(rest))
        elif kind == "p":
            self._events.windows_elsewhere(int(rest))
        elif kind == "e":
            self._events.entries_elsewhere(int(rest))
        elif kind == "j":
            self._events.jobs_elsewhere()
        else:
            queue_id, group_id = map(int, rest.split(":"))
            follow = {
                "s": self._wakeups.group_moved,
                "g": self._wakeups.look_again,
                "d": self._wakeups.forget_group,
            }
            follow[kind](queue_id, group_id)


def _is_rare(word: str) -> bool:
    """Whether a word is more than a hint: it is told even if nobody seems to be there."""
    return word[0] not in "wlrj"
