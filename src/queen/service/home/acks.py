"""Batches of acks and their results, on their way to the home and back."""

from __future__ import annotations

import uuid

from queen.core.cursor import AckResult
from queen.service.acks.ack_batch import AckBatch, OffsetBatch
from queen.service.catalog import Partition
from queen.service.home.calls import (
    AckAnswer,
    CalledAck,
    CalledSpans,
    SpansAnswer,
    error_of,
    failure_of,
)


def called(batch: AckBatch) -> CalledAck:
    statuses = list(batch.statuses.values())
    if statuses and statuses.count(statuses[0]) == len(statuses):
        statuses = statuses[:1]
    return CalledAck(
        batch.partition.id,
        batch.group,
        batch.group_id,
        batch.lease_id.bytes if batch.lease_id is not None else None,
        list(batch.statuses),
        statuses,
        batch.errors,
        batch.delays_ms,
        _spans_of(batch) if isinstance(batch, OffsetBatch) else None,
    )


def _spans_of(batch: OffsetBatch) -> CalledSpans:
    return CalledSpans(batch.runs, batch.failed, batch.reasons, batch.asked_ms, batch.count)


def batch_of(ack: CalledAck, partition: Partition) -> AckBatch:
    lease_id = uuid.UUID(bytes=ack.lease_id) if ack.lease_id is not None else None
    if ack.spans is not None:
        return OffsetBatch(
            partition,
            ack.group,
            ack.group_id,
            lease_id,
            runs=ack.spans.runs,
            failed=ack.spans.failed,
            reasons=ack.spans.reasons,
            asked_ms=ack.spans.asked_ms,
            count=ack.spans.count,
        )
    if len(ack.statuses) == 1:
        statuses = dict.fromkeys(ack.ids, ack.statuses[0])
    else:
        statuses = dict(zip(ack.ids, ack.statuses, strict=True))
    owner = partition, ack.group, ack.group_id, lease_id
    return AckBatch(*owner, statuses, ack.errors, ack.delays_ms)


def answer_of(batch: AckBatch) -> AckAnswer:
    if batch.error is not None:
        return AckAnswer([], False, failure_of(batch.error))
    if isinstance(batch, OffsetBatch):
        by_offset = {int(offset): result for offset, result in batch.results.items()}
        spans = SpansAnswer(by_offset, batch.outside, batch.is_over)
        return AckAnswer([], batch.all_done, spans=spans)
    if batch.all_done:
        return AckAnswer([AckResult.DONE], True)
    return AckAnswer(
        [batch.results.get(name, AckResult.LOST) for name in batch.statuses], batch.all_done
    )


def take_answer(batch: AckBatch, answer: AckAnswer) -> None:
    if answer.error is not None:
        batch.error = error_of(answer.error)
    elif isinstance(batch, OffsetBatch):
        assert answer.spans is not None
        batch.all_done = answer.all_done
        batch.results = dict(answer.spans.results.items())
        batch.outside, batch.is_over = answer.spans.outside, answer.spans.is_over
    elif answer.all_done:
        batch.give(AckResult.DONE)
    else:
        batch.results = dict(zip(batch.statuses, answer.results, strict=True))
