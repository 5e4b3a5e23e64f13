"""How acknowledgments by offset are checked and answered, whether they came alone or with a pop."""

from __future__ import annotations

from collections.abc import Sequence

from queen.errors import BadRequest, QueenError
from queen.service.acks.ack_batch import OffsetBatch
from queen.service.intake.acks import STALE
from queen.wire.answers import MAX_ACKS
from queen.wire.requests import SpanAck
from queen.wire.results import SpanAckResult

TOO_LATE = "Message is already completed; nothing was changed"


def check_spans(spans: Sequence[SpanAck]) -> None:
    """Raise `BadRequest` when they name more than one request may."""
    named = sum(1 + len(span.done) + len(span.failed) for span in spans)
    if named > MAX_ACKS:
        raise BadRequest(f"more than {MAX_ACKS} spans, runs and offsets in one request")


def span_result(batch: OffsetBatch | QueenError) -> SpanAckResult:
    error = batch if isinstance(batch, QueenError) else batch.error
    if error is not None:
        return SpanAckResult(False, error.message, 0, 0, False)
    assert isinstance(batch, OffsetBatch)
    lost, dead = batch.lost, batch.dead
    refusal = STALE if lost else TOO_LATE if batch.is_too_late else None
    return SpanAckResult(refusal is None, refusal, lost, dead, batch.is_over)
