"""How pushed messages are answered, wherever they were pushed: alone or with acks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queen.core.ids import message_id
from queen.service.intake.items import Planned
from queen.service.intake.pushes import Later
from queen.service.log.append import Append
from queen.wire import answers
from queen.wire.answers import iso
from queen.wire.results import PushResult


def push_body(planned: list[Planned], later: Sequence[Later] = ()) -> bytes:
    if (
        len(planned) == 1
        and not later
        and not planned[0].append.is_buffered
        and _is_plain_success(planned[0].append)
    ):
        return answers.queued_body(_stored(planned[0]))
    return b"[" + ",".join(in_order(placed_results(planned, later))).encode() + b"]"


def placed_results(planned: list[Planned], later: Sequence[Later] = ()) -> list[tuple[int, str]]:
    """Return the results of what was stored, with their places in the request."""
    stored = [
        pair
        for plan in planned
        if plan.append.error is None
        for pair in zip(plan.indexes, _results(plan), strict=True)
    ]
    return stored + [(scheduled.item_index, _scheduled_text(scheduled)) for scheduled in later]


def in_order(placed: list[tuple[int, str]]) -> list[str]:
    return [text for _, text in sorted(placed)]


def _scheduled_text(later: Later) -> str:
    message = later.message
    return answers.scheduled_item(
        later.item_index,
        message.transaction_id,
        message.trace_id,
        message.queue,
        message.deliver_at,
    )


def _is_plain_success(append: Append) -> bool:
    return append.repeats is None and not (append.extras and "traceId" in append.extras)


def _stored(planned: Planned) -> answers.Stored:
    append, target = planned.append, planned.append.target
    assert target is not None
    return answers.Stored(planned.ids, append.base_offset, target.prefix, target.uuid, append.queue)


def _buffered(planned: Planned) -> list[str]:
    append = planned.append
    traces = append.extras.get("traceId") if append.extras else None
    return [
        answers.buffered_item(index, planned.ids[at], traces[at] if traces else None, append.queue)
        for at, index in enumerate(planned.indexes)
    ]


def _results(planned: Planned) -> list[str]:
    append, target = planned.append, planned.append.target
    if append.is_buffered:
        return _buffered(planned)
    if _is_plain_success(append):
        return answers.queued_items(planned.indexes, _stored(planned))
    assert target is not None
    traces = append.extras.get("traceId") if append.extras else None
    return [
        answers.push_item(
            index,
            planned.ids[at],
            "duplicate" if append.is_duplicate(at) else "queued",
            message_id(target.id, append.offset_of(at)),
            target.uuid,
            traces[at] if traces else None,
            append.queue,
        )
        for at, index in enumerate(planned.indexes)
    ]


def pushed_items(planned: list[Planned], later: Sequence[Later]) -> dict[int, dict[str, Any]]:
    """Return the results of pushed items by their places in the request, as fields."""
    by_place: dict[int, dict[str, Any]] = {}
    for append, indexes, ids in planned:
        target = append.target
        assert target is not None
        for at, index in enumerate(indexes):
            duplicate = append.is_duplicate(at)
            offset = append.offset_of(at)
            by_place[index] = {
                "transactionId": ids[at],
                "messageId": None if offset < 0 else message_id(target.id, offset),
                "partitionId": target.uuid,
                "queueName": append.queue,
                "status": "duplicate" if duplicate else "queued",
            }
    for place, message in later:
        by_place[place] = {
            "transactionId": message.transaction_id,
            "messageId": None,
            "partitionId": None,
            "queueName": message.queue,
            "status": "scheduled",
            "deliverAt": iso(message.deliver_at),
        }
    return dict(sorted(by_place.items()))


def known_results(planned: list[Planned]) -> list[PushResult]:
    """Return what is still known of messages that were pushed before."""
    results = []
    for append, indexes, ids in planned:
        target = append.target
        assert target is not None
        for at, index in enumerate(indexes):
            is_known = append.is_duplicate(at)
            results.append(
                PushResult(
                    index=index,
                    transaction_id=ids[at],
                    status="duplicate",
                    message_id=message_id(target.id, append.offset_of(at)) if is_known else None,
                    partition_id=target.uuid,
                    trace_id=None,
                    queueName=append.queue,
                )
            )
    return sorted(results, key=lambda result: result.index)
