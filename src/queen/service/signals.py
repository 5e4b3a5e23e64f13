"""How servers on one database wake each other.

Commits of this process wake its own waiters directly. Other processes are told by NOTIFY,
on a connection of its own and after the commit: inside the append it would serialise all
commits of the database. Messages are gathered for a few milliseconds, so a busy server
sends a hundred a second at most. A lost one costs latency, not a message: every server also
looks by itself once a second. What does not fit into one notification goes with the next, and
so does what could not be sent.

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

The same connection hears what others tell on channels of their own (`also_listen`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable

import asyncpg

from queen.errors import QueenError
from queen.service.admin.maintenance import Maintenance
from queen.service.catalog import Catalog, Partition
from queen.service.consume.wakeups import Wakeups
from queen.service.events import Events
from queen.service.log.segment_cache import SegmentCache
from queen.storage.database import Database

_log = logging.getLogger(__name__)

_CHANNEL = "queen_log"
_GATHER_S = 0.01
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
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._cache = cache
        self._wakeups = wakeups
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
                await self._database.execute("notify", payload)
            except QueenError as error:
                _log.debug("notify: %s", error)
                self._put_back(words[:_MAX_RELEASED])
                await asyncio.sleep(_REST_S)
            await asyncio.sleep(_GATHER_S)

    # ---- receiving ----

    def also_listen(self, channel: str, wake: Callable[[], None]) -> None:
        """Call `wake` whenever something is told on a channel, whatever it is."""
        self._others[channel] = wake

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
        task = asyncio.create_task(self._act(words))
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
        elif kind == "c":
            self._catalog.expire_options()
        elif kind == "x":
            self._catalog.forget_queue_id(int(rest))
            self._wakeups.forget_queue(int(rest))
        elif kind == "m":
            await self._maintenance.refresh()
        elif kind == "t":
            self._follow_clock(int(rest))
        elif kind == "p":
            self._events.windows_elsewhere(int(rest))
        elif kind == "e":
            self._events.entries_elsewhere(int(rest))
        else:
            queue_id, group_id = map(int, rest.split(":"))
            follow = {
                "s": self._wakeups.group_moved,
                "g": self._wakeups.look_again,
                "d": self._wakeups.forget_group,
            }
            follow[kind](queue_id, group_id)
