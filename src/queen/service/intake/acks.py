"""Acknowledgments of a request: for each the partition, group and lease that it is about."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Sequence

from msgspec.structs import astuple

from queen.core.cursor import ACK_STATUSES, FAILED_STATUSES, AckResult, AckStatus
from queen.core.ids import parse_lease, parse_partition
from queen.core.names import QUEUE_MODE_GROUP, reason_against_name
from queen.errors import BadRequest, LeaseLost, NotFound, QueenError
from queen.service.acks.ack_batch import AckBatch, OffsetBatch, Run, storable
from queen.service.catalog import Catalog, Partition
from queen.service.scope import Scope, Viewer
from queen.wire.requests import MAX_OFFSET, AckOperation, AckRequest, FailedOffset, SpanAck

STALE = "Invalid or expired lease"
_CONTRADICTION = "the request says something else of it, too"


class GatheredAcks:
    """The acknowledgments of a request, gathered by lease and partition."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[int, int, uuid.UUID | None], AckBatch] = {}
        # For each item that cannot be looked up: why.
        self.refused: dict[int, QueenError] = {}
        # For each other item its batch; None when all share the only one.
        self.batch_of_item: dict[int, AckBatch] | None = None

    @property
    def batches(self) -> list[AckBatch]:
        return list(self.by_key.values())

    def result(self, index: int, transaction_id: str) -> AckResult | QueenError:
        if self.batch_of_item is None:
            (ack_batch,) = self.by_key.values()
        elif index in self.refused:
            return self.refused[index]
        else:
            ack_batch = self.batch_of_item[index]
        return ack_batch.error or ack_batch.results.get(transaction_id, AckResult.LOST)

    def all_done(self) -> bool:
        """Whether every item was acknowledged as completed, and now is."""
        return self.batch_of_item is None and all(batch.all_done for batch in self.by_key.values())


class AckIntake:
    def __init__(self, catalog: Catalog, scope: Scope) -> None:
        self._catalog = catalog
        self._scope = scope

    async def gather(
        self,
        viewer: Viewer,
        acks: Sequence[AckRequest | AckOperation],
        default_group: str | None = None,
    ) -> GatheredAcks:
        """Find the partition, group and lease that each acknowledgment is about."""
        gathered = GatheredAcks()
        if not acks:
            gathered.batch_of_item = {}
            return gathered
        columns = zip(*map(astuple, acks), strict=True)
        ids, names, statuses, errors, groups, leases, delays = columns
        first, count = acks[0], len(acks)
        are_alike = names.count(first.partitionId) == count
        distinct = (first.partitionId,) if are_alike else set(names)
        numbers = {name: parse_partition(name) for name in distinct}
        partition_ids = {number for number in numbers.values() if number is not None}
        partitions = await self._scope.partitions(viewer, partition_ids)
        are_alike = (
            are_alike
            and leases.count(first.leaseId) == count
            and statuses.count(first.status) == count
            and groups.count(first.consumerGroup) == count
            and errors.count(None) == count
            and delays.count(None) == count
        )
        if are_alike and partitions:
            try:
                (only_partition,) = partitions.values()
                batch, status = await self._find_batch(
                    gathered, first, only_partition, default_group
                )
                batch.statuses = dict.fromkeys(ids, status)
                return gathered
            except QueenError:
                gathered.by_key.clear()
        await self._gather_each(gathered, acks, numbers, partitions, default_group)
        return gathered

    async def _gather_each(
        self,
        gathered: GatheredAcks,
        acks: Sequence[AckRequest | AckOperation],
        numbers: dict[str, int | None],
        partitions: dict[int, Partition],
        default_group: str | None,
    ) -> None:
        """Find the batch of each acknowledgment by itself, or why it has none."""
        gathered.batch_of_item = {}
        for index, ack in enumerate(acks):
            number = numbers[ack.partitionId]
            partition = partitions.get(number) if number is not None else None
            try:
                await self._add(
                    gathered, gathered.batch_of_item, index, ack, partition, default_group
                )
            except QueenError as error:
                gathered.refused[index] = error

    async def _add(
        self,
        gathered: GatheredAcks,
        batch_of_item: dict[int, AckBatch],
        index: int,
        ack: AckRequest | AckOperation,
        partition: Partition | None,
        default_group: str | None,
    ) -> None:
        batch, status = await self._find_batch(gathered, ack, partition, default_group)
        if batch.statuses.get(ack.transactionId, status) is not status:
            raise BadRequest(_CONTRADICTION)
        if ack.retryAfterMs is not None:
            batch.delays_ms[ack.transactionId] = _checked_delay(ack.retryAfterMs)
        batch_of_item[index] = batch
        batch.statuses[ack.transactionId] = status
        if ack.error and status is not AckStatus.DONE:
            batch.errors[ack.transactionId] = storable(ack.error)

    async def _find_batch(
        self,
        gathered: GatheredAcks,
        ack: AckRequest | AckOperation,
        partition: Partition | None,
        default_group: str | None,
    ) -> tuple[AckBatch, AckStatus]:
        """Return the batch an acknowledgment belongs to, and what it asks for."""
        status = ACK_STATUSES.get(ack.status or "completed")
        if status is None:
            raise BadRequest(f"status {ack.status!r} is not known: {', '.join(ACK_STATUSES)}")
        if partition is None:
            raise NotFound("Message not found: no such partition")
        lease_id = parse_lease(ack.leaseId) if ack.leaseId else None
        if ack.leaseId and lease_id is None:
            raise LeaseLost(STALE)
        group = ack.consumerGroup or default_group or QUEUE_MODE_GROUP
        group_id = await self._find_group(partition, group)
        key = (partition.id, group_id, lease_id)
        batch = gathered.by_key.get(key)
        if batch is None:
            batch = gathered.by_key[key] = AckBatch(partition, group, group_id, lease_id, {})
        return batch, status

    async def _find_group(self, partition: Partition, group: str) -> int:
        reason = reason_against_name("consumer group", group)
        if reason:
            raise BadRequest(reason)
        group_id = await self._catalog.find_group(partition.queue, group)
        if group_id is None:
            raise LeaseLost(STALE)
        return group_id

    # ---- by offsets ----

    async def gather_spans(
        self, viewer: Viewer, spans: Sequence[SpanAck], group: str | None
    ) -> list[OffsetBatch | QueenError]:
        """Return the batch of each span, or why it has none."""
        numbers = {name: parse_partition(name) for name in {span.partitionId for span in spans}}
        partition_ids = {number for number in numbers.values() if number is not None}
        partitions = await self._scope.partitions(viewer, partition_ids)
        gathered: list[OffsetBatch | QueenError] = []
        for span in spans:
            number = numbers[span.partitionId]
            partition = partitions.get(number) if number is not None else None
            try:
                gathered.append(
                    await self._offset_batch(span, partition, group or QUEUE_MODE_GROUP)
                )
            except QueenError as error:
                gathered.append(error)
        return gathered

    async def _offset_batch(
        self, span: SpanAck, partition: Partition | None, group: str
    ) -> OffsetBatch:
        if partition is None:
            raise NotFound("Message not found: no such partition")
        return _batch_of(span, partition, group, await self._find_group(partition, group))

    def known_spans(self, spans: Sequence[SpanAck], group: str) -> list[OffsetBatch] | None:
        """Return the same for a viewer who may see everything, or None unless all of it is good,
        as far as that is known without a question."""
        batches = []
        for span in spans:
            number = parse_partition(span.partitionId)
            partition = None if number is None else self._catalog.partition_by_id(number)
            if partition is None:
                return None
            group_id = self._catalog.known_group(partition.queue, group)
            if group_id is None:
                return None
            try:
                batches.append(_batch_of(span, partition, group, group_id))
            except QueenError:
                return None
        return batches


def _batch_of(span: SpanAck, partition: Partition, group: str, group_id: int) -> OffsetBatch:
    lease_id = parse_lease(span.leaseId)
    if lease_id is None:
        raise LeaseLost(STALE)
    runs = _runs(span.done)
    batch = OffsetBatch(partition, group, group_id, lease_id, runs=runs)
    if span.failed:
        _take_failed(batch, span.failed)
    batch.count = len(batch.failed) + sum(end - first for first, end in runs)
    return batch


def _checked_delay(retry_after_ms: int) -> int:
    if retry_after_ms < 0:
        raise BadRequest(f"retryAfterMs {retry_after_ms} is no time to wait: 0 or more")
    return retry_after_ms


def _runs(done: list[Run]) -> list[Run]:
    """Return runs in order and apart from each other; raises `BadRequest` for one that is none."""
    for index, (first, end) in enumerate(done):
        if not 0 <= first <= end <= MAX_OFFSET:
            raise BadRequest(f"done[{index}]: [{first}, {end}) is no run of offsets")
    runs: list[Run] = []
    for first, end in sorted(done) if len(done) > 1 else done:
        if first == end:
            continue
        if runs and first <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(end, runs[-1][1])
        else:
            runs.append((first, end))
    return runs


def _take_failed(batch: OffsetBatch, failed: list[FailedOffset]) -> None:
    """Add what is not done to a batch; raises `BadRequest` for what makes no sense."""
    starts = [first for first, _ in batch.runs]
    for index, ack in enumerate(failed):
        status = FAILED_STATUSES.get(ack.status)
        if status is None:
            known = ", ".join(FAILED_STATUSES)
            raise BadRequest(f"failed[{index}]: status {ack.status!r} is not known: {known}")
        if not 0 <= ack.offset < MAX_OFFSET:
            raise BadRequest(f"failed[{index}]: {ack.offset} is no offset")
        at = bisect_right(starts, ack.offset) - 1
        is_done = at >= 0 and ack.offset < batch.runs[at][1]
        if is_done or batch.failed.get(ack.offset, status) is not status:
            raise BadRequest(f"failed[{index}]: {_CONTRADICTION}")
        batch.failed[ack.offset] = status
        if ack.retryAfterMs is not None:
            batch.asked_ms[ack.offset] = _checked_delay(ack.retryAfterMs)
        if ack.error:
            batch.reasons[ack.offset] = storable(ack.error)
