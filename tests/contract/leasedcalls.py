"""Pops and acks in both of their languages: JSON and transaction ids, frames and offsets."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Protocol

from queen.core.frame import CONTENT_TYPE, Frame, stored_frames
from queen.core.ids import message_id
from queen.core.names import QUEUE_MODE_GROUP
from queen.service.instants import instant_at
from queen.wire.answers import iso
from queen.wire.frames.leased import LeasedClaim, LeasedHead, unpack_head
from tests.api import Answer, Api, pop_path

FRAMES = {"Accept": CONTENT_TYPE}


def pop_frames(api: Api, queue: str, partition: str | None = None, **query: Any) -> Answer:
    return api.call("GET", pop_path(queue, partition, **query), headers=FRAMES)


def head_of(answer: Answer) -> LeasedHead:
    assert answer.status == 200, answer.raw
    assert answer.headers["content-type"] == CONTENT_TYPE
    return unpack_head(answer.raw)[0]


def messages_of(answer: Answer) -> list[dict[str, Any]]:
    """Return the messages of leased frames, as a pop in JSON would have them."""
    if answer.status == 204:
        return []
    head = head_of(answer)
    frames = stored_frames(answer.raw[unpack_head(answer.raw)[1] :])
    messages = [
        message
        for claim in head.claims
        for frame in [next(frames) for _ in range(claim.frames)]
        for message in _messages(head, claim, frame)
    ]
    assert next(frames, None) is None
    return messages


def _messages(head: LeasedHead, claim: LeasedClaim, frame: Frame) -> Iterable[dict[str, Any]]:
    segment = frame.segment()
    assert (frame.queue, frame.partition) == (claim.queue, claim.partition)
    ids, payloads = segment.transaction_ids(), segment.payloads()
    traces, subjects = segment.column("traceId"), segment.column("producerSub")
    for at, (transaction_id, payload) in enumerate(zip(ids, payloads, strict=True)):
        offset = frame.base_offset + at
        if not claim.firstOffset <= offset < claim.endOffset or offset in claim.hidden:
            continue
        yield {
            "id": message_id(frame.partition_id, offset),
            "transactionId": transaction_id,
            "data": json.loads(payload),
            "offset": offset,
            "traceId": traces[at] if traces else None,
            "queue": claim.queue,
            "partition": claim.partition,
            "partitionId": claim.partitionId,
            "leaseId": head.leaseId,
            "consumerGroup": None if head.consumerGroup == QUEUE_MODE_GROUP else head.consumerGroup,
            "createdAt": iso(instant_at(frame.created_at_us)),
            "retryCount": claim.failures.get(offset, claim.attempt - 1),
            "priority": claim.priority,
            "producerSub": subjects[at] if subjects else None,
        }


def runs_of(offsets: Iterable[int]) -> list[list[int]]:
    """Return offsets as half-open runs."""
    runs: list[list[int]] = []
    for offset in sorted(offsets):
        if runs and runs[-1][1] == offset:
            runs[-1][1] += 1
        else:
            runs.append([offset, offset + 1])
    return runs


def span_of(
    messages: list[dict[str, Any]], status: str = "completed", **failed: Any
) -> dict[str, Any]:
    """Return what is said of messages of one partition, all of them the same."""
    span = {key: messages[0][key] for key in ("partitionId", "leaseId")}
    offsets = [message["offset"] for message in messages]
    if status == "completed":
        return {**span, "done": runs_of(offsets)}
    failures = [{"offset": offset, "status": status, **failed} for offset in offsets]
    return {**span, "failed": failures}


def ack_spans(api: Api, *spans: dict[str, Any], group: str | None = None) -> Answer:
    return api.call("POST", "/api/v1/ack/spans", {"spans": list(spans), "consumerGroup": group})


def results(answer: Answer) -> list[Any]:
    assert answer.status == 200, answer.raw
    return list(answer.json["spans"])


def taken(*, dead: int = 0, ended: bool = True) -> dict[str, Any]:
    """Return the answer for a span that was taken."""
    return {"success": True, "error": None, "lost": 0, "dead": dead, "ended": ended}


class Way(Protocol):
    """How a consumer speaks with the broker."""

    def pop(
        self, api: Api, queue: str, partition: str | None = None, **query: Any
    ) -> list[dict[str, Any]]: ...

    def settle(
        self, api: Api, group: str, messages: list[dict[str, Any]], statuses: list[str]
    ) -> tuple[int, int]:
        """Say what became of messages; return how many were lost and how many died."""


class ByIds:
    def pop(
        self, api: Api, queue: str, partition: str | None = None, **query: Any
    ) -> list[dict[str, Any]]:
        return api.messages(queue, partition, **query)

    def settle(
        self, api: Api, group: str, messages: list[dict[str, Any]], statuses: list[str]
    ) -> tuple[int, int]:
        acks = [
            {
                **{key: message[key] for key in ("transactionId", "partitionId", "leaseId")},
                "status": status,
            }
            for message, status in zip(messages, statuses, strict=True)
        ]
        body = {"acknowledgments": acks, "consumerGroup": group}
        answers = api.call("POST", "/api/v1/ack/batch", body).json["results"]
        stale = [one for one in answers if one["error"] == "Invalid or expired lease"]
        return len(stale), sum(one["dlq"] for one in answers)


def pop_after(
    api: Api, queue: str, *spans: dict[str, Any], partition: str | None = None, **query: Any
) -> Answer:
    """Acknowledge messages and pop, in one request."""
    path = pop_path(queue, partition, **query)
    return api.call("POST", path, {"spans": list(spans)}, headers=FRAMES)


class BySpans:
    def pop(
        self, api: Api, queue: str, partition: str | None = None, **query: Any
    ) -> list[dict[str, Any]]:
        return messages_of(pop_frames(api, queue, partition, **query))

    def settle(
        self, api: Api, group: str, messages: list[dict[str, Any]], statuses: list[str]
    ) -> tuple[int, int]:
        answers = self.tell(api, group, _spans(messages, statuses))
        return sum(one["lost"] for one in answers), sum(one["dead"] for one in answers)

    def tell(self, api: Api, group: str, spans: list[dict[str, Any]]) -> list[Any]:
        return results(ack_spans(api, *spans, group=group))


class WithPop(BySpans):
    """Says what became of messages in a request for others, of which there are none."""

    def tell(self, api: Api, group: str, spans: list[dict[str, Any]]) -> list[Any]:
        api.configure("nothing-here")
        answer = pop_after(api, "nothing-here", *spans, consumerGroup=group)
        if answer.status == 409:
            return list(answer.json["spans"])
        assert answer.status == 204, answer.raw
        # It says no more than that all of it was taken.
        again = results(ack_spans(api, *spans, group=group))
        return [{"lost": 0, "dead": one["dead"]} for one in again]


def _spans(messages: list[dict[str, Any]], statuses: list[str]) -> list[dict[str, Any]]:
    """Return what is said of messages, a span for each partition."""
    spans = []
    said = zip(messages, statuses, strict=True)
    for _, some in groupby(said, lambda pair: pair[0]["partitionId"]):
        pairs = list(some)
        done = [message["offset"] for message, status in pairs if status == "completed"]
        spans.append(
            {
                **{key: pairs[0][0][key] for key in ("partitionId", "leaseId")},
                "done": runs_of(done),
                "failed": [
                    {"offset": message["offset"], "status": status}
                    for message, status in pairs
                    if status != "completed"
                ],
            }
        )
    return spans
