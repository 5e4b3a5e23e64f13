"""What a server remembers of queues, partitions and groups.

Ids and names of a partition never change, so they are kept as long as there is room. The
options of a queue do change; they are asked again after a short time, or at once when
another server says so. A partition that has been deleted is found out by the statement that
uses it, which then asks the catalog to forget.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import islice
from typing import NamedTuple

import msgspec

from queen.core.ids import message_prefix, partition_uuid
from queen.core.names import labels_of
from queen.core.options import QueueOptions
from queen.errors import Conflict, NotFound
from queen.service.events import Events
from queen.service.singleflight import SingleFlight
from queen.storage.database import Database, Record

_log = logging.getLogger(__name__)

_OPTIONS_TTL_S = 5.0
_APPEARANCE_POLL_S = 0.1
_MAX_PARTITIONS = 1_000_000
# So many are forgotten at once to make room.
_FORGOTTEN = 10_000

_options = msgspec.json.Decoder(QueueOptions)


class Queue:
    __slots__ = (
        "id",
        "is_indexed",
        "loaded_at",
        "name",
        "namespace",
        "options",
        "options_text",
        "partitions",
        "revision",
        "task",
    )

    def __init__(
        self, queue_id: int, name: str, namespace: str, task: str, options: QueueOptions
    ) -> None:
        self.id = queue_id
        self.name = name
        self.namespace = namespace
        self.task = task
        self.options = options
        # Which configuration this is; the database refuses appends that were made for another.
        self.revision = 0
        # Whether the index of `dedup: forever` covers everything that the queue holds.
        self.is_indexed = False
        # As they were last read: a pop from thousands of queues reads them each time.
        self.options_text = ""
        self.partitions: dict[str, Partition] = {}
        self.loaded_at = time.monotonic()


class Partition:
    """One partition and what this server believes about it."""

    __slots__ = (
        "dedup_window_s",
        "erasures",
        "head",
        "id",
        "known",
        "known_at",
        "name",
        "queue",
    )

    def __init__(self, partition_id: int, queue: Queue, name: str, head: int) -> None:
        self.id = partition_id
        self.queue = queue
        self.name = name
        # The highest offset seen; the truth may be further.
        self.head = head
        # How often messages of it were erased, as far as the cached segments know.
        self.erasures = 0
        # Offset up to which this server holds the recent hashes; None before it has loaded
        # them. A partition that never had a message needs no loading.
        self.known: int | None = 0 if head == 0 else None
        # When the message before it was written: by this the database notices that it went back
        # in time, and that what is known is no longer true.
        self.known_at: datetime | None = None
        # How far back in time they have been kept since.
        self.dedup_window_s = 0

    @property
    def uuid(self) -> str:
        """Its id on the wire."""
        return partition_uuid(self.id)

    @property
    def prefix(self) -> str:
        """How the ids of its messages begin."""
        return message_prefix(self.id)

    def knows(self, offset: int, at: datetime) -> None:
        """This server now holds the recent hashes up to an offset."""
        # One number for both: there may be a million of these.
        self.known, self.known_at = self.head if offset == self.head else offset, at

    def saw_head(self, head: int) -> None:
        self.head = max(self.head, head)


class Subscription(NamedTuple):
    """Where a group starts that has never been seen: `all`, `new`, or `timestamp`."""

    mode: str = "all"
    starts_at: datetime | None = None


FROM_BEGINNING = Subscription()


class Membership(NamedTuple):
    """A group of a queue. `begins_at` is told when it was made by this very question and reads only
    what is written from then on: nobody has read anything for it, anywhere."""

    group_id: int
    begins_at: datetime | None = None


class Sizes(NamedTuple):
    """How much a catalog remembers."""

    queues: int
    partitions: int
    groups: int


class Catalog:
    def __init__(self, database: Database, events: Events) -> None:
        self._database = database
        self._events = events
        events.options_changed.subscribe(self.expire_options)
        self._queues: dict[str, Queue] = {}
        self._by_id: dict[int, Partition] = {}
        self._groups: dict[tuple[int, str], int] = {}
        self._queue_made = asyncio.Event()
        self._appearing = SingleFlight[Queue | None]()
        self._registering = SingleFlight[Membership]()
        self._stopping = False

    def sizes(self) -> Sizes:
        return Sizes(len(self._queues), len(self._by_id), len(self._groups))

    def cached(self, queue_name: str, name: str) -> Partition | None:
        """Return a partition without asking the database, or None if that takes a question."""
        queue = self.cached_queue(queue_name)
        return None if queue is None else queue.partitions.get(name)

    def cached_queue(self, name: str) -> Queue | None:
        """Return a queue without asking the database, or None if that takes a question."""
        queue = self._queues.get(name)
        if queue is None or time.monotonic() - queue.loaded_at > _OPTIONS_TTL_S:
            return None
        return queue

    def known(self, queue_name: str, name: str) -> Partition | None:
        """Return a partition that was just resolved, however old the queue's options are."""
        queue = self._queues.get(queue_name)
        return queue.partitions.get(name) if queue is not None else None

    def partition_by_id(self, partition_id: int) -> Partition | None:
        return self._by_id.get(partition_id)

    async def queue(self, name: str) -> Queue | None:
        """Return a queue if it exists."""
        await self._load_queues([name])
        return self._queues.get(name)

    async def queues(self, names: Iterable[str]) -> list[Queue]:
        """Return those of some queues that exist."""
        names = set(names)
        await self._load_queues(names)
        return [self._queues[name] for name in names if name in self._queues]

    async def queues_now(self, names: Iterable[str]) -> list[Queue]:
        """Return those of some queues that exist, whatever is remembered of them: under the name
        of one that was deleted there may be another."""
        names = set(names)
        for queue in (self._queues[name] for name in names if name in self._queues):
            queue.loaded_at = float("-inf")
        return await self.queues(names)

    async def wait_for_queue(
        self, name: str, timeout_s: float, in_vain: Callable[[], bool]
    ) -> Queue | None:
        """Wait for a queue that nobody has made yet, unless it would be in vain."""
        deadline = time.monotonic() + timeout_s
        queue = await self.queue(name)
        while queue is None and time.monotonic() < deadline:
            if self._stopping or in_vain():
                return None
            self._queue_made.clear()
            with contextlib.suppress(TimeoutError):
                # This server wakes us at once; another one's queue is found by asking.
                async with asyncio.timeout(min(_APPEARANCE_POLL_S, deadline - time.monotonic())):
                    await self._queue_made.wait()
            queue = await self._appearing.ask(name, lambda: self.queue(name))
        return queue

    def stop_waiting(self) -> None:
        self._stopping = True
        self._queue_made.set()

    async def queues_by_label(self, namespace: str, task: str) -> list[Queue]:
        rows = await self._database.fetch("queues_by_label", namespace, task)
        return [self._remember_queue(row) for row in rows]

    async def resolve(self, names: Iterable[tuple[str, str]], wait_ms: int | None = None) -> None:
        """Make sure that queues and partitions exist and are cached. Creates what is missing.

        Raises `Contended` when somebody holds one of the queues for longer than `wait_ms`.
        """
        pairs = list(dict.fromkeys(names))
        queue_names = list(dict.fromkeys(queue_name for queue_name, _ in pairs))
        await self._load_queues(queue_names)
        await self._ensure_queues(queue_names, wait_ms)
        # One that was deleted in the same moment is missing; the next try makes it anew.
        existing = [(self._queues[queue], name) for queue, name in pairs if queue in self._queues]
        missing = [(queue, name) for queue, name in existing if name not in queue.partitions]
        if missing:
            await self._resolve_partitions(missing, wait_ms)
        for queue, name in missing:
            if name not in queue.partitions:
                # Deleted by another server a moment ago; the next try makes it anew.
                self.forget_queue(queue.name)

    async def ensure_queue(self, name: str, wait_ms: int | None = None) -> None:
        """Create a queue with default options unless it exists."""
        await self._ensure_queues([name], wait_ms)

    async def _ensure_queues(self, names: Iterable[str], wait_ms: int | None) -> None:
        # In one order, so that no two servers wait for each other.
        missing = sorted(name for name in names if name not in self._queues)
        if missing:
            labels = [labels_of(name) for name in missing]
            namespaces, tasks = [each[0] for each in labels], [each[1] for each in labels]
            await self._database.execute("ensure_queues", missing, namespaces, tasks, wait_ms)
            await self._load_queues(missing)

    async def _resolve_partitions(
        self, pairs: list[tuple[Queue, str]], wait_ms: int | None
    ) -> None:
        ids, names = [queue.id for queue, _ in pairs], [name for _, name in pairs]
        queues = {queue.id: queue for queue, _ in pairs}
        rows = await self._database.fetch("partitions_by_name", ids, names)
        if len(rows) < len(pairs):
            existing = {(row["queue_id"], row["name"]) for row in rows}
            await self._database.execute("ensure_partitions", ids, names, wait_ms)
            made = Counter(queue.id for queue, name in pairs if (queue.id, name) not in existing)
            for queue in queues.values():
                self._events.partitions_made(queue, made[queue.id])
            rows = await self._database.fetch("partitions_by_name", ids, names)
        for row in rows:
            self._remember(Partition(row["id"], queues[row["queue_id"]], row["name"], row["head"]))

    async def partition(self, queue: Queue, name: str) -> Partition | None:
        """Return a partition if it exists."""
        partition = queue.partitions.get(name)
        if partition is None:
            rows = await self._database.fetch("partitions_by_name", [queue.id], [name])
            for row in rows:
                partition = self._remember(Partition(row["id"], queue, name, row["head"]))
        return partition

    async def partitions(self, ids: Iterable[int]) -> dict[int, Partition]:
        """Return partitions by id; ids that do not exist are left out."""
        ids = list(dict.fromkeys(ids))
        # Kept at hand: to remember others may mean to forget these.
        partitions = {number: self._by_id[number] for number in ids if number in self._by_id}
        unknown = [number for number in ids if number not in partitions]
        if unknown:
            rows = await self._database.fetch("partitions_by_id", unknown)
            queues = {
                queue.name: queue for queue in await self.queues(row["queue"] for row in rows)
            }
            for row in rows:
                queue = queues.get(row["queue"])
                if queue is not None:
                    partition = Partition(row["id"], queue, row["name"], row["head"])
                    partitions[row["id"]] = self._remember(partition)
        return {number: partitions[number] for number in ids if number in partitions}

    def remember_row(self, queue: Queue, partition_id: int, name: str, head: int) -> Partition:
        """Return the cached partition of a row that some statement returned."""
        partition = self._by_id.get(partition_id)
        if partition is None:
            partition = self._remember(Partition(partition_id, queue, name, head))
        partition.saw_head(head)
        return partition

    async def group(self, queue: Queue, name: str, subscription: Subscription) -> int:
        """Return the id of a group, registering it at first contact."""
        return (await self.join(queue, name, subscription)).group_id

    async def join(self, queue: Queue, name: str, subscription: Subscription) -> Membership:
        """Do the same for who is going to read at once; say whether there is a past to look at."""
        group_id = self._groups.get((queue.id, name))
        if group_id is not None:
            return Membership(group_id)
        return await self._registering.ask(
            (queue.id, name), lambda: self._register(queue, name, subscription)
        )

    async def register(self, queues: list[Queue], name: str, subscription: Subscription) -> None:
        """Make sure that a group of many queues is known, by one question. Where it cannot be had,
        `group` says why."""
        unknown = [queue.id for queue in queues if (queue.id, name) not in self._groups]
        if len(unknown) > 1:
            rows = await self._database.fetch("ensure_groups", unknown, name, *subscription)
            self._groups |= {
                (row["queue_id"], name): row["id"] for row in rows if not row["reads_by_time"]
            }

    def known_group(self, queue: Queue, name: str) -> int | None:
        """Return the id of a group, or None if that takes a question."""
        return self._groups.get((queue.id, name))

    async def _register(self, queue: Queue, name: str, subscription: Subscription) -> Membership:
        mode, starts_at = subscription
        row = await self._database.findrow("ensure_group", queue.id, name, mode, starts_at)
        if row is None:
            self.forget_queue(queue.name)
            raise NotFound(f"queue {queue.name!r} was deleted")
        if row["reads_by_time"]:
            raise Conflict(
                f"group {name!r} is that of a query, which reads by time: consume with another one"
            )
        self._groups[queue.id, name] = row["id"]
        return Membership(row["id"], row["begins_at"])

    async def find_group(self, queue: Queue, name: str) -> int | None:
        """Return the id of a group that has been here before."""
        group_id = self._groups.get((queue.id, name))
        if group_id is None:
            group_id = await self._database.findval("find_group", queue.id, name)
            if group_id is not None:
                self._groups[queue.id, name] = group_id
        return group_id

    def forget_group(self, queue_id: int, group_id: int) -> None:
        """Ask again for a group that was deleted: its name may stand for a new one."""
        for key in [key for key, value in self._groups.items() if value == group_id]:
            if key[0] == queue_id:
                del self._groups[key]

    async def _load_queues(self, names: Iterable[str]) -> None:
        stale = time.monotonic() - _OPTIONS_TTL_S
        names = [
            name
            for name in names
            if name not in self._queues or self._queues[name].loaded_at < stale
        ]
        if not names:
            return
        known = {name: self._queues.get(name) for name in names}
        rows = await self._database.fetch("queues_by_name", names)
        for name in set(names) - {self._remember_queue(row).name for row in rows}:
            # One that somebody has made and loaded since we asked is not gone.
            if self._queues.get(name) is known[name]:
                self.forget_queue(name)

    def _remember_queue(self, row: Record) -> Queue:
        name, text = row["name"], row["options"]
        queue = self._queues.get(name)
        if queue is None or queue.id != row["id"]:
            self.forget_queue(name)
            queue = Queue(row["id"], name, row["namespace"], row["task"], _options.decode(text))
            self._queues[name] = queue
            self._queue_made.set()
        elif queue.options_text != text:
            queue.options = _options.decode(text)
        queue.namespace, queue.task = row["namespace"], row["task"]
        queue.revision, queue.is_indexed = row["revision"], row["is_indexed"]
        queue.options_text = text
        queue.loaded_at = time.monotonic()
        return queue

    def _remember(self, partition: Partition) -> Partition:
        remembered = self._by_id.get(partition.id)
        if remembered is not None:
            remembered.saw_head(partition.head)
            return remembered
        if len(self._by_id) >= _MAX_PARTITIONS:
            self._forget_some()
        partition.queue.partitions[partition.name] = partition
        self._by_id[partition.id] = partition
        return partition

    def _forget_some(self) -> None:
        """Drop the oldest; what is still in use comes back with the next question."""
        for partition_id in list(islice(self._by_id, _FORGOTTEN)):
            self.forget_partition(partition_id)

    def went_back(self, partition: Partition, head: int) -> None:
        """The database has lost what it had confirmed: believe it, and ask anew."""
        _log.error(
            "the database went back in time: partition %d ended at %d and now ends at %d",
            partition.id,
            partition.head,
            head,
        )
        partition.head = head
        partition.known = None
        self._events.partition_lost(partition)

    def forget_partition(self, partition_id: int) -> None:
        partition = self._by_id.pop(partition_id, None)
        if partition is not None:
            partition.queue.partitions.pop(partition.name, None)

    def forget_queue(self, name: str) -> None:
        queue = self._queues.pop(name, None)
        if queue is None:
            return
        for partition in queue.partitions.values():
            self._by_id.pop(partition.id, None)
        for key in [key for key in self._groups if key[0] == queue.id]:
            del self._groups[key]

    def forget_queue_id(self, queue_id: int) -> None:
        for name in [queue.name for queue in self._queues.values() if queue.id == queue_id]:
            self.forget_queue(name)

    async def reload(self, queue: Queue) -> None:
        """Ask for the configuration of a queue again: the database says that it has changed."""
        queue.loaded_at = float("-inf")
        await self._load_queues([queue.name])

    def expire_options(self) -> None:
        """Ask for options again before they are next used."""
        for queue in self._queues.values():
            queue.loaded_at = float("-inf")
