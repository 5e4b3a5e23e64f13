"""What this server holds in memory of streams, and how it follows their journals.

A replica is the sum of a stream's journal up to a version. Commands change it in memory, and
what they changed is committed as the next record, if nobody else wrote one meanwhile. If
somebody did, the replica is not what the stream is: it is forgotten, and loaded again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime

from queen.core.names import DEFAULT_PARTITION, labels_of, reason_against_name
from queen.errors import Unavailable
from queen.service.catalog import Catalog, Partition, Queue
from queen.storage.database import Database, Record, Transaction
from queen.streambroker.engine.ids import make_id
from queen.streambroker.engine.state.entries import Chunk
from queen.streambroker.engine.state.events import replay
from queen.streambroker.engine.state.snapshot import decode_stream
from queen.streambroker.engine.state.stream import Stream
from queen.streambroker.replies import Failure

# Ids and rows of entries take about a hundred bytes each.
_MAX_ENTRIES = 4_000_000
_MAX_REPLICAS = 20_000
# Bodies of what was added here, so that readers who keep up need not ask for them.
_MAX_BODY_BYTES = 64 * 1024 * 1024
# Of an id, a list and its strings, beside what they hold.
_OBJECT_BYTES = 300
# Where others write too, their records are read before ours are made.
_SHARED_S = 10.0
# An entry that was pushed as a message counts as so many bytes.
_PUSHED_BYTES = 64
_SEGMENTS_AT_ONCE = 10_000


class Replica:
    """A stream in memory, and which version of it that is."""

    __slots__ = (
        "chunks_seen",
        "id",
        "journal_bytes",
        "namespace",
        "partition",
        "shared_until",
        "snapshot_bytes",
        "stream",
        "used_at",
        "version",
    )

    def __init__(self, stream: Stream, namespace: str) -> None:
        self.stream = stream
        self.namespace = namespace
        # None: nothing is stored of it yet.
        self.id: int | None = None
        self.partition: Partition | None = None
        self.version = 0
        # Since the last snapshot, and how large that was.
        self.journal_bytes = 0
        self.snapshot_bytes = 0
        # Until then other servers are taken to write to it.
        self.shared_until = 0.0
        self.used_at = 0.0
        self.chunks_seen: Chunk | None = None

    @property
    def is_shared(self) -> bool:
        return self.shared_until > time.monotonic()

    def is_shared_now(self) -> None:
        self.shared_until = time.monotonic() + _SHARED_S


def name_of(key: bytes) -> str:
    """Return the name of the queue that a stream is; raises `Failure` if it cannot be one."""
    try:
        name = key.decode()
    except UnicodeDecodeError:
        raise Failure("ERR the name of a stream is UTF-8 here") from None
    reason = reason_against_name("stream", name)
    if reason:
        raise Failure(f"ERR {reason}")
    return name


def is_name(key: bytes) -> bool:
    """Whether a stream can have a name."""
    try:
        name_of(key)
    except Failure:
        return False
    return True


class Replicas:
    def __init__(self, database: Database, catalog: Catalog) -> None:
        self._database = database
        self._catalog = catalog
        self.by_key: dict[bytes, Replica] = {}
        # How long those are shared that were forgotten and will be loaded again.
        self._shared: dict[bytes, float] = {}
        self._shared_until = 0.0
        self._bodies: list[Chunk] = []
        self._body_bytes = 0

    @property
    def has_shared(self) -> bool:
        """Whether another server may write to any of the streams."""
        return self._shared_until > time.monotonic()

    def note_shared(self, replica: Replica) -> None:
        """Another server has written to a stream."""
        replica.is_shared_now()
        self._shared_until = replica.shared_until

    # ---- loading ----

    async def load(self, keys: Iterable[bytes]) -> None:
        """Have streams in memory, as they are stored now."""
        names = {name_of(key): key for key in keys}
        queues = {queue.name: queue for queue in await self._catalog.queues(names)}
        rows = await self._database.fetch("entry_streams", list(queues)) if queues else []
        stored = {row["name"]: row for row in rows}
        for name, key in names.items():
            queue, row = queues.get(name), stored.get(name)
            namespace = labels_of(name)[0] if queue is None else queue.namespace
            if queue is None or row is None:
                self._keep(Replica(Stream(key), namespace))
                continue
            replica = Replica(_stream_of(key, row), namespace)
            self._adopt(replica, queue, row)
            replica.snapshot_bytes = len(row["snapshot"] or b"")
            replica.journal_bytes = sum(map(len, row["records"]))
            self._keep(replica)
            await self._follow_partition(replica, row)

    def _keep(self, replica: Replica) -> None:
        key = replica.stream.name
        replica.stream.journal = []
        replica.shared_until = self._shared.pop(key, 0.0)
        self.by_key[key] = replica

    async def place(self, replicas: Sequence[Replica]) -> bool:
        """Give streams that are only in memory their places in the database; returns whether all
        of them are what they were taken for."""
        pairs = {name_of(each.stream.name): each for each in replicas}
        await self._catalog.resolve((name, DEFAULT_PARTITION) for name in pairs)
        partitions = [self._catalog.known(name, DEFAULT_PARTITION) for name in pairs]
        made = [partition for partition in partitions if partition is not None]
        if len(made) < len(pairs):
            raise Unavailable("the queue of a stream was deleted a moment ago")
        queue_ids, ids = [each.queue.id for each in made], [each.id for each in made]
        await self._database.execute("make_entry_streams", queue_ids, ids)
        rows = await self._database.fetch("entry_places", list(pairs))
        places = {row["name"]: row for row in rows}
        for partition in made:
            replica, row = pairs[partition.queue.name], places.get(partition.queue.name)
            if row is None or row["version"] or row["head"] != head_of(replica):
                return False
            self._adopt(replica, partition.queue, row)
        return True

    def _adopt(self, replica: Replica, queue: Queue, row: Record) -> None:
        """Take the place of a stream."""
        replica.id, replica.version = row["id"], row["version"]
        replica.partition = self._catalog.remember_row(
            queue, row["partition_id"], DEFAULT_PARTITION, row["head"]
        )

    def forget(self, key: bytes) -> None:
        self.by_key.pop(key, None)

    def forget_changed(self, replica: Replica) -> None:
        """Forget a replica that was changed in vain; what is loaded instead is as shared."""
        key = replica.stream.name
        if self.by_key.pop(key, None) is not None and replica.is_shared:
            self._shared[key] = replica.shared_until

    # ---- following others ----

    async def follow(self, replica: Replica, row: Record, within: Transaction | None) -> bool:
        """Read what others wrote to a stream that nobody has changed in memory; returns whether
        that was possible."""
        if row["version"] is None or row["version"] < replica.version:
            return False
        if row["version"] > replica.version:
            self.note_shared(replica)
            source = within or self._database
            records = await source.fetch("entry_records", replica.id, replica.version)
            for record in records:
                if record["version"] != replica.version + 1:
                    return False
                _replay_quietly(replica.stream, record["body"])
                replica.version += 1
                replica.journal_bytes += len(record["body"])
            if replica.version < row["version"]:
                return False
        await self._follow_partition(replica, row)
        return True

    async def _follow_partition(self, replica: Replica, row: Record) -> None:
        await self._follow_pushes(replica, row["head"])
        if begins_before(replica, row["tail"]):
            _trim_up_to(replica.stream, row["tail"])

    async def _follow_pushes(self, replica: Replica, head: int) -> None:
        """Make entries of messages that were pushed to the queue of a stream."""
        stream = replica.stream
        if stream.entries.next_ordinal >= head or replica.partition is None:
            return
        while stream.entries.next_ordinal < head:
            segments = await self._database.fetch(
                "entry_segments",
                replica.partition.id,
                stream.entries.next_ordinal,
                _SEGMENTS_AT_ONCE,
            )
            segments = [row for row in segments if row["base_offset"] < head]
            if not segments:
                # What lies between has been removed since.
                stream.skip(head - stream.entries.next_ordinal)
                return
            for row in segments:
                _add_pushed(stream, row["base_offset"], row["end_offset"], row["created_at"])

    # ---- what is kept ----

    def keep_within_bounds(self) -> None:
        """Forget what was used longest ago, when there is too much of it."""
        entries = sum(replica.stream.entries.length for replica in self.by_key.values())
        if entries <= _MAX_ENTRIES and len(self.by_key) <= _MAX_REPLICAS:
            return
        by_age = sorted(self.by_key.items(), key=lambda item: item[1].used_at)
        for key, replica in by_age[:-1]:
            if entries <= _MAX_ENTRIES // 2 and len(self.by_key) <= _MAX_REPLICAS // 2:
                return
            entries -= replica.stream.entries.length
            self.forget(key)

    def count_bodies(self, replica: Replica) -> None:
        """Note which chunks have bodies in memory, and drop the oldest if they are too many."""
        chunks = replica.stream.entries.chunks
        for chunk in reversed(chunks):
            if chunk is replica.chunks_seen:
                break
            self._bodies.append(chunk)
            self._body_bytes += _memory_of(chunk)
        if chunks:
            replica.chunks_seen = chunks[-1]
        if self._body_bytes > _MAX_BODY_BYTES:
            half = len(self._bodies) // 2
            for chunk in self._bodies[:half]:
                chunk.pack()
            del self._bodies[:half]
            self._body_bytes = sum(map(_memory_of, self._bodies))


def _memory_of(chunk: Chunk) -> int:
    """Estimate the bytes of a chunk whose bodies are in memory."""
    return chunk.size + _OBJECT_BYTES * len(chunk.ids)


def head_of(replica: Replica) -> int:
    """Return how many messages a replica takes its partition to have."""
    return replica.stream.entries.next_ordinal - len(replica.stream.appended)


def begins_before(replica: Replica, tail: int) -> bool:
    """Whether a stream has entries whose messages were removed by the retention of its queue."""
    return replica.stream.entries.first_ordinal() < tail


def _trim_up_to(stream: Stream, tail: int) -> None:
    whole, more = 0, 0
    for chunk in stream.entries.chunks:
        if chunk.base + len(chunk.ids) > tail:
            places = range(max(0, tail - chunk.base))
            more = sum(at not in chunk.gone for at in places)
            break
        whole += 1
    if whole or more:
        stream.trim(whole, more)


def _stream_of(key: bytes, row: Record) -> Stream:
    snapshot = row["snapshot"]
    stream = Stream(key) if snapshot is None else decode_stream(key, snapshot)
    for record in row["records"]:
        replay(stream, record)
    return stream


def _replay_quietly(stream: Stream, record: bytes) -> None:
    journal, stream.journal = stream.journal, None
    try:
        replay(stream, record)
    finally:
        stream.journal = journal


def _add_pushed(stream: Stream, base: int, end: int, created_at: datetime) -> None:
    ordinal = stream.entries.next_ordinal
    if base > ordinal:
        stream.skip(base - ordinal)
        ordinal = base
    ms = int(created_at.timestamp() * 1000)
    for _ in range(ordinal, end):
        entry_id = max(stream.last_id + 1, make_id(ms, 0))
        stream.add_elsewhere(entry_id, _PUSHED_BYTES)
