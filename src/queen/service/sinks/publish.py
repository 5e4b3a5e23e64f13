"""Publishing: staged parts become messages, all of them or none, once.

The bodies are in the database already, so a commit moves rows and no bytes. What it needs in
memory are the partitions it touches and, of those whose transaction ids the producer chose, the
hashes, some partitions at a time. Ids that the sink itself has made are new by construction.

As in every append, ids are compared first without a lock, and under the lock only with what
others wrote meanwhile. When that raises a suspicion the transaction is rolled back and begins
again. A message that is stored already is taken out of its staged segment.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from typing import NamedTuple

import numpy as np

from queen.core.frame import compress, encode_body, segment_of
from queen.errors import Conflict, NotFound, QueueFull, Unavailable
from queen.service.admin.maintenance import Maintenance
from queen.service.catalog import Catalog, Partition, Queue
from queen.service.events import Events
from queen.service.log.append import Append
from queen.service.log.appender import BEHIND, MISSING, STALE, Outcome, outcomes, try_in_rounds
from queen.service.log.dedup import Dedup
from queen.service.log.dedup_filter import keys_of
from queen.service.log.flush_share import Share
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.sinks.sinks import Batch, check_epoch, parts_key
from queen.service.stats.activity import Activity
from queen.service.stats.flows import FlowKey
from queen.storage.database import Database, Record, Transaction

# Hashes that are compared at once; one partition alone may have more.
_PAGE_MESSAGES = 500_000
# Past this, the next append had better load what was written before it takes the lock.
_MANY_MESSAGES = 10_000

# A staged segment: its part, and its position in it.
SegmentKey = tuple[int, int]
# What else is decided in the transaction that publishes; raises to undo all of it.
Decision = Callable[[Transaction], Awaitable[None]]


class Published(NamedTuple):
    """What became of a batch."""

    is_new: bool
    messages: int
    duplicates: int


class _Target(NamedTuple):
    """A partition and what a batch brings to it."""

    partition: Partition
    messages: int
    bytes: int
    # Whether its transaction ids must be compared with what is stored.
    compared: bool

    @property
    def dedup(self) -> str:
        return self.partition.queue.options.dedup

    @property
    def compares_index(self) -> bool:
        return self.dedup == "forever" and self.partition.queue.is_indexed


class _Doubt(Exception):
    """Leaves the transaction, so that it is rolled back, with what the database said."""

    def __init__(self, rows: list[Outcome]) -> None:
        self.rows = rows


class _Work:
    """A commit under way."""

    def __init__(
        self, batch: Batch, parts: list[int], targets: list[_Target], doubted: set[int]
    ) -> None:
        self.batch = batch
        self.parts = parts
        self.targets = targets
        # Partitions whose whole index has to be compared, id by id.
        self.doubted = doubted
        # Where this server believed the partitions to end.
        self.heads = [target.partition.head for target in targets]
        # Offset up to which ids have been compared, by partition.
        self.known: dict[int, int] = {}
        # When the message before that was written.
        self.known_at: dict[int, datetime | None] = {}
        # Staged segments with messages that are stored already, or twice in the batch.
        self.shorter: dict[SegmentKey, Append] = {}

    @property
    def duplicates(self) -> int:
        return sum(len(append.repeats or ()) for append in self.shorter.values())

    def note_repeats(self, segment_key: SegmentKey, append: Append) -> None:
        if append.repeats:
            self.shorter[segment_key] = append


class Publisher:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        dedup: Dedup,
        encryption: SegmentEncryption,
        activity: Activity,
        maintenance: Maintenance,
        events: Events,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._dedup = dedup
        self._encryption = encryption
        self._activity = activity
        self._maintenance = maintenance
        self._events = events

    async def publish(self, batch: Batch, decide: Decision | None = None) -> Published:
        """Publish a batch, or find that it is published; then nothing else is decided."""
        self._maintenance.check_push()
        doubted: set[int] = set()
        published: Published | None = None

        async def publish_once() -> bool:
            nonlocal published
            published = await self._publish_once(batch, decide, doubted)
            return published is not None

        await try_in_rounds(publish_once)
        assert published is not None
        return published

    async def _publish_once(
        self, batch: Batch, decide: Decision | None, doubted: set[int]
    ) -> Published | None:
        """Publish a batch, or find that it is published; None when that has to be tried again."""
        done = await self._find_published(batch)
        if done is not None:
            return done
        try:
            parts = await self._find_parts(batch)
        except Conflict:
            # Somebody else may have published it since we asked.
            done = await self._find_published(batch)
            if done is not None:
                return done
            raise
        targets = await self._find_targets(parts)
        if targets is None:
            return None
        work = _Work(batch, parts, targets, doubted)
        await self._screen(work)
        await self._check_room(work)
        try:
            return await self._commit(work, decide)
        except _Doubt as doubt:
            await self._learn(work, doubt.rows)
            return None

    async def _find_published(self, batch: Batch) -> Published | None:
        row = await self._database.findrow("sink", batch.sink, None)
        if row is None:
            raise NotFound(f"Query {batch.sink!r} not found; open it first")
        return _published_before(batch, row)

    async def _find_parts(self, batch: Batch) -> list[int]:
        """Return the staged parts in order; raise when something is missing."""
        rows = await self._database.fetch("sink_parts", *parts_key(batch))
        held: Counter[tuple[int, int]] = Counter()
        for row in rows:
            held[row["task"], row["attempt"]] += row["messages"]
        for stage in batch.stages:
            count = held[stage.task, stage.attempt]
            if count != stage.messages:
                raise Conflict(
                    f"task {stage.task} has {count} staged messages, not {stage.messages}: they "
                    "were dropped, or lost with the database; write the batch again"
                )
        return [row["id"] for row in rows]

    async def _find_targets(self, parts: list[int]) -> list[_Target] | None:
        """Return where a batch goes, by partition id; None when that had to be put right."""
        rows = await self._database.fetch("sink_partitions", parts)
        await self._catalog.resolve((row["queue"], row["partition"]) for row in rows)
        targets, gone = [], []
        for row in rows:
            partition = self._catalog.known(row["queue"], row["partition"])
            if partition is None:
                raise Unavailable("a queue was deleted while it was written")
            if partition.id != row["partition_id"]:
                gone.append((row["partition_id"], partition))
            targets.append(_Target(partition, row["messages"], row["bytes"], row["compared"]))
        for partition_id, partition in gone:
            await self._rebind(parts, partition_id, partition)
        return None if gone else targets

    async def _rebind(self, parts: list[int], gone_id: int, partition: Partition) -> None:
        """Let what waits for a partition that is gone wait for the one that has its name now."""
        async with self._database.transaction() as transaction:
            await transaction.fetch("lock_parts", parts)
            for row in await transaction.fetch("staged_pieces", parts, gone_id):
                codec, body = self._encryption.decrypt_segment(gone_id, row["codec"], row["body"])
                if partition.queue.options.encryption_enabled:
                    codec, body = self._encryption.encrypt_segment(partition.id, codec, body)
                segment_key = row["part_id"], row["position"]
                await transaction.execute("rebind_piece", *segment_key, partition.id, codec, body)

    # ---- transaction ids ----

    async def _screen(self, work: _Work) -> None:
        """Compare the ids that a producer has chosen."""
        compared = [target for target in work.targets if target.compared and target.dedup != "off"]
        for page in _pages([target for target in compared if not target.compares_index]):
            await self._screen_recent(work, page)
        for page in _pages([target for target in compared if target.compares_index]):
            twice = await self._find_repeated(work, page, recent=False)
            for target in page:
                work.known[target.partition.id] = 0
                if target in twice or target.partition.id in work.doubted:
                    await self._look_closely(work, target)

    async def _screen_recent(self, work: _Work, page: list[_Target]) -> None:
        await self._dedup.warm(target.partition for target in page)
        for target in page:
            # Taken before the comparison: what is compared is complete up to here.
            work.known[target.partition.id] = target.partition.known or 0
            work.known_at[target.partition.id] = target.partition.known_at
        for target in await self._find_repeated(work, page, recent=True):
            await self._look_closely(work, target)

    async def _find_repeated(
        self, work: _Work, page: list[_Target], *, recent: bool
    ) -> list[_Target]:
        """Return the partitions that get an id twice, or again, as far as hashes tell."""
        by_id = {target.partition.id: target for target in page}
        hashes: dict[int, list[bytes]] = {}
        for row in await self._database.fetch("staged_hashes", work.parts, list(by_id)):
            hashes.setdefault(row["partition_id"], []).append(row["hashes"])
        repeated = []
        for partition_id, runs in hashes.items():
            keys = keys_of(partition_id, b"".join(runs))
            again = recent and bool(self._dedup.recent.seen(keys).any())
            if again or len(np.unique(keys)) < len(keys):
                repeated.append(by_id[partition_id])
        return repeated

    async def _look_closely(self, work: _Work, target: _Target) -> None:
        """Compare the ids themselves, for one partition."""
        share, segment_keys = await self._read_share(work, target.partition)
        await self._dedup.screen([share])
        share.raise_refusal()
        if target.partition.id in work.doubted:
            await self._dedup.verify_indexed(share)
            share.raise_refusal()
        if share.known is not None:
            work.known[target.partition.id] = share.known
            work.known_at[target.partition.id] = share.known_at
        self._note_repeats(work, share, segment_keys)

    async def _read_share(
        self, work: _Work, partition: Partition
    ) -> tuple[Share, list[SegmentKey]]:
        rows = await self._database.fetch("staged_pieces", work.parts, partition.id)
        return Share(partition, [self._append_of(row) for row in rows]), [
            (row["part_id"], row["position"]) for row in rows
        ]

    def _append_of(self, row: Record) -> Append:
        segment = self._encryption.decode_segment(row)
        return Append(
            row["queue"],
            row["partition"],
            segment.id_bytes(),
            None,
            segment.size_bytes,
            segment.extras,
            segment,
        )

    def _note_repeats(self, work: _Work, share: Share, segment_keys: list[SegmentKey]) -> None:
        for segment_key, append in zip(segment_keys, share.appends, strict=True):
            work.note_repeats(segment_key, append)

    async def _learn(self, work: _Work, rows: list[Outcome]) -> None:
        """Find out what others wrote, for the next try."""
        for target, row in zip(work.targets, rows, strict=True):
            partition = target.partition
            if row.outcome == MISSING:
                self._catalog.forget_queue(partition.queue.name)
            elif row.outcome == STALE:
                await self._catalog.reload(partition.queue)
            elif row.outcome == BEHIND:
                # Loaded before the next try, while nobody waits.
                partition.known = None
            elif not row.is_appended and row.created_at is not None:
                if target.compares_index:
                    work.doubted.add(partition.id)
                else:
                    self._dedup.note_unseen(
                        Share(partition, []), row.head, row.created_at, row.unseen
                    )

    # ---- the commit ----

    async def _check_room(self, work: _Work) -> None:
        """Raise when a queue would hold more messages than it may."""
        totals: Counter[Queue] = Counter()
        # To count takes time, and the limit may be lifted meanwhile: 0 would then leave no room.
        limits: dict[Queue, int] = {}
        for target in work.targets:
            queue = target.partition.queue
            if queue.options.max_size:
                totals[queue] += target.messages
                limits[queue] = queue.options.max_size
        for queue, messages in totals.items():
            held: int = await self._database.fetchval("queue_depth", queue.id) or 0
            left = max(0, limits[queue] - held)
            if messages > left:
                raise QueueFull(queue.name, limits[queue], left)

    async def _commit(self, work: _Work, decide: Decision | None) -> Published:
        batch = work.batch
        messages = sum(stage.messages for stage in batch.stages) - work.duplicates
        async with self._database.transaction() as transaction:
            row = await transaction.findrow("lock_sink", batch.sink)
            done = _published_before(batch, row) if row is not None else None
            if done is not None:
                return done
            if len(await transaction.fetch("lock_parts", work.parts)) < len(work.parts):
                raise Conflict("a staged part was dropped meanwhile; write the batch again")
            for segment_key, append in work.shorter.items():
                await self._shorten(transaction, segment_key, append)
            heads = await self._move(transaction, work) if work.targets else []
            await transaction.execute("record_batch", batch.sink, batch.number, messages)
            if decide is not None:
                await decide(transaction)
        self._tell(work, heads)
        return Published(True, messages, work.duplicates)

    async def _shorten(
        self, transaction: Transaction, segment_key: SegmentKey, append: Append
    ) -> None:
        """Take out of a staged segment what is stored already."""
        fresh = append.fresh()
        if not fresh:
            await transaction.execute("remove_piece", *segment_key)
            return
        extras = {
            name: [column[at] for at in fresh] for name, column in (append.extras or {}).items()
        }
        segment = segment_of(
            [append.ids[at] for at in fresh], [append.body_of(at) for at in fresh], extras
        )
        codec, body = compress(encode_body(segment))
        partition = self._catalog.known(append.queue, append.partition)
        if partition is not None and partition.queue.options.encryption_enabled:
            codec, body = self._encryption.encrypt_segment(partition.id, codec, body)
        hashes = array("Q", (append.hash()[at] for at in fresh)).tobytes()
        await transaction.execute("rewrite_piece", *segment_key, len(fresh), codec, hashes, body)

    async def _move(self, transaction: Transaction, work: _Work) -> list[Outcome]:
        targets = work.targets
        partitions = [target.partition for target in targets]
        rows = outcomes(
            await transaction.fetch(
                "publish",
                work.parts,
                sorted({partition.queue.id for partition in partitions}),
                [partition.id for partition in partitions],
                [work.known.get(partition.id) for partition in partitions],
                [target.compares_index for target in targets],
                [target.dedup == "off" for target in targets],
                [partition.queue.revision for partition in partitions],
                [target.dedup == "forever" for target in targets],
                [work.known_at.get(partition.id) for partition in partitions],
            )
        )
        if not all(row.is_appended for row in rows):
            raise _Doubt(rows)
        return rows

    def _tell(self, work: _Work, rows: list[Outcome]) -> None:
        """Let everybody who waits know what was committed."""
        origin = work.batch.origin or ("sink", 0, work.batch.sink)
        repeats: Counter[tuple[str, str]] = Counter()
        for append in work.shorter.values():
            repeats[append.queue, append.partition] += len(append.repeats or ())
        for target, row, head in zip(work.targets, rows, work.heads, strict=True):
            partition = target.partition
            again = repeats[partition.queue.name, partition.name]
            if row.head < min(head, partition.head):
                self._catalog.went_back(partition, row.head)
            partition.saw_head(row.head + target.messages - again)
            if target.compared and target.messages > _MANY_MESSAGES:
                partition.known = None
            self._activity.count_published(
                partition.queue, target.messages - again, target.bytes, again
            )
            self._activity.flows.count(
                FlowKey(*origin, partition.queue.id), target.messages - again
            )
        if rows:
            self._activity.count_transaction(target.partition.queue for target in work.targets)
            self._events.written([target.partition for target in work.targets])


def _published_before(batch: Batch, row: Record) -> Published | None:
    """Return what became of a batch that is published already; None when it is not."""
    check_epoch(batch.sink, batch.epoch, row["epoch"])
    if batch.number > row["last_batch"]:
        return None
    messages = row["last_messages"] if batch.number == row["last_batch"] else 0
    return Published(False, messages, 0)


def _pages(targets: list[_Target]) -> Iterator[list[_Target]]:
    """Yield partitions in groups whose hashes fit into memory."""
    page: list[_Target] = []
    messages = 0
    for target in targets:
        if page and messages + target.messages > _PAGE_MESSAGES:
            yield page
            page, messages = [], 0
        page.append(target)
        messages += target.messages
    if page:
        yield page
