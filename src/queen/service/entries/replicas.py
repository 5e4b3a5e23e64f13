"""What this server holds in memory of streams, and how it follows their journals.

A replica is the sum of a stream's journal up to a version. Commands change it in memory, and
what they changed is committed as the next record, if nobody else wrote one meanwhile. If
somebody did, the replica is not what the stream is: it is forgotten, and loaded again.
"""

from __future__ import annotations

import time
from datetime import datetime

from queen.core.names import DEFAULT_PARTITION, labels_of, reason_against_name
from queen.service.catalog import Catalog, Partition
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
_MAX_BODY_BYTES = 32 * 1024 * 1024
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

    async def load(self, key: bytes) -> Replica:
        """Have a stream in memory, as it is stored now."""
        name = name_of(key)
        queue = await self._catalog.queue(name)
        namespace = labels_of(name)[0] if queue is None else queue.namespace
        row = None if queue is None else await self._database.findrow("entry_stream", name)
        if row is None or queue is None:
            replica = Replica(Stream(key), namespace)
        else:
            replica = Replica(_stream_of(key, row), namespace)
            await self.adopt(replica, row)
            replica.snapshot_bytes = len(row["snapshot"] or b"")
            replica.journal_bytes = sum(map(len, row["records"]))
        replica.stream.journal = []
        replica.shared_until = self._shared.pop(key, 0.0)
        self.by_key[key] = replica
        if row is not None:
            await self._follow_partition(replica, row)
        return replica

    async def store(self, replica: Replica) -> None:
        """Give a stream that is only in memory its place in the database."""
        name = name_of(replica.stream.name)
        pair = (name, DEFAULT_PARTITION)
        await self._catalog.resolve([pair])
        partition = self._catalog.known(*pair)
        if partition is None:
            raise Failure("TRYAGAIN the queue of this stream was deleted a moment ago")
        await self._database.execute("make_entry_stream", partition.queue.id, partition.id)

    async def look(self, key: bytes) -> Record | None:
        return await self._database.findrow("entry_stream", name_of(key))

    async def adopt(self, replica: Replica, row: Record) -> None:
        """Take the place that was made for a stream."""
        queue = await self._catalog.queue(name_of(replica.stream.name))
        assert queue is not None
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
            self._body_bytes += max(chunk.size, 1)
        if chunks:
            replica.chunks_seen = chunks[-1]
        if self._body_bytes > _MAX_BODY_BYTES:
            half = len(self._bodies) // 2
            for chunk in self._bodies[:half]:
                chunk.pack()
            del self._bodies[:half]
            self._body_bytes = sum(max(chunk.size, 1) for chunk in self._bodies)


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
