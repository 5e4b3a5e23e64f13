"""Leased frames: a pop that asks for stored segments gets the same messages as one in JSON."""

from __future__ import annotations

import secrets
from typing import Any

import asyncpg
import pytest

from queen.core.frame import CONTENT_TYPE, encode_frame, stored_frames
from queen.wire.frames.leased import unpack_head
from tests.api import Answer, Api, Poll, pop_path
from tests.contract.conftest import age, settle
from tests.contract.leasedcalls import (
    FRAMES,
    ByIds,
    BySpans,
    ack_spans,
    head_of,
    messages_of,
    pop_frames,
    results,
    span_of,
    taken,
)

JSON, FRAMED = ByIds(), BySpans()


def alike(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages without what differs between two groups."""
    return [{**one, "leaseId": bool(one["leaseId"]), "consumerGroup": None} for one in messages]


def claims_alike(json_answer: Answer, framed: Answer) -> None:
    """Check that two answers lease the same, each in its words."""
    said = json_answer.json["claims"]
    for claim, other in zip(said, head_of(framed).claims, strict=True):
        fields = {name: getattr(other, name) for name in claim}
        # Each group has epochs of its own.
        assert {**fields, "epoch": 0} == {**claim, "epoch": 0}
        assert other.epoch > 0


def pop_both(api: Api, queue: str, **query: Any) -> list[dict[str, Any]]:
    """Pop for two groups, in both languages; return what both were given."""
    by_json = api.pop(queue, consumerGroup="json", **query)
    by_frames = pop_frames(api, queue, consumerGroup="framed", **query)
    assert by_json.status == by_frames.status
    if by_json.status == 200:
        claims_alike(by_json, by_frames)
        assert head_of(by_frames).consumerGroup == "framed"
    messages = messages_of(by_frames)
    assert alike(messages) == alike(by_json.messages)
    return messages


@pytest.fixture(params=["written here", "written elsewhere"])
def reader(request: pytest.FixtureRequest, api: Api, other_api: Api) -> Api:
    """A server that has what it reads in memory, and one that reads it from the database."""
    return api if request.param == "written here" else other_api


def test_the_answer_says_what_it_is(api: Api, queue: str) -> None:
    api.push_many(queue, 3)
    answer = pop_frames(api, queue, batch=2)
    assert answer.headers["content-type"] == CONTENT_TYPE
    assert answer.raw[:8] == b"QLSE\x01\0\0\0"
    head, frames_at = unpack_head(answer.raw)
    assert head.consumerGroup == "__QUEUE_MODE__"
    (claim,) = head.claims
    assert (claim.firstOffset, claim.endOffset, claim.frames) == (0, 2, 1)
    assert (claim.attempt, claim.leaseMs, claim.hidden, claim.failures) == (1, 300_000, [], {})
    assert b"hidden" not in answer.raw[:frames_at] and b"failures" not in answer.raw[:frames_at]
    # The segment is whole, whatever was asked for.
    (frame,) = stored_frames(answer.raw[frames_at:])
    assert frame.count == 3


def test_nothing_is_a_204_and_an_error_is_json(api: Api, queue: str) -> None:
    assert pop_frames(api, queue).status == 204
    answer = pop_frames(api, queue, batch=0)
    assert (answer.status, answer.headers["content-type"]) == (400, "application/json")


@pytest.mark.parametrize("accept", ["*/*", f"application/json, {CONTENT_TYPE}", "text/html"])
def test_whoever_takes_something_else_too_gets_json(api: Api, queue: str, accept: str) -> None:
    api.push_many(queue, 1)
    answer = api.call("GET", pop_path(queue), headers={"Accept": accept})
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.messages) == 1


def test_both_languages_tell_the_same(api: Api, reader: Api, queue: str) -> None:
    trace = "6f1c1f0e-6a0b-4e5c-9a39-1c5b0f4f2a11"
    api.configure(queue, priority=7)
    api.push(
        {"queue": queue, "payload": {"ä": [1, None]}, "traceId": trace, "transactionId": "“x”"}
    )
    api.push_many(queue, 200)
    api.push({"queue": queue})
    messages = pop_both(reader, queue, batch=500)
    assert [one["offset"] for one in messages] == list(range(202))
    assert (messages[0]["traceId"], messages[0]["priority"]) == (trace, 7)


def test_a_partition_and_a_label_may_be_asked_for(api: Api, queue: str) -> None:
    queue = f"{queue}.work"
    api.push({"queue": queue, "partition": "a", "payload": 1})
    api.push({"queue": queue, "partition": "b", "payload": 2})
    (message,) = messages_of(pop_frames(api, queue, "b"))
    assert message["data"] == 2
    path = f"/api/v1/pop?namespace={queue.partition('.')[0]}&consumerGroup=g"
    (message,) = messages_of(api.call("GET", path, headers=FRAMES))
    assert message["queue"] == queue


def test_several_partitions_under_one_lease(api: Api, queue: str) -> None:
    for name in "abc":
        api.push_many(queue, 4, name)
        api.push_many(queue, 3, name)
    answer = pop_frames(api, queue, consumerGroup="framed", partitions=3, batch=100)
    messages = messages_of(answer)
    assert len(head_of(answer).claims) == 3
    assert {one["leaseId"] for one in messages} == {head_of(answer).leaseId}
    expected = api.messages(queue, consumerGroup="json", partitions=3, batch=100)

    def by_partition(some: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(alike(some), key=lambda one: one["id"])

    assert by_partition(messages) == by_partition(expected)
    spans = [span_of([one for one in messages if one["partition"] == name]) for name in "abc"]
    assert results(ack_spans(api, *spans, group="framed")) == [taken()] * 3
    assert pop_frames(api, queue, consumerGroup="framed").status == 204


@pytest.mark.parametrize("way", [JSON, FRAMED], ids=["json", "framed"])
async def test_failures_are_counted_message_by_message(
    api: Api, queue: str, connection: asyncpg.Connection, way: Any
) -> None:
    api.configure(queue, retryDelay=0, retryLimit=5)
    api.push_many(queue, 6)
    tries: list[list[tuple[int, int]]] = []
    for statuses in (
        "completed failed failed completed failed completed",
        "failed retry completed",
        "failed failed",
    ):
        messages = way.pop(api, queue, consumerGroup="g", batch=10)
        tries.append([(one["offset"], one["retryCount"]) for one in messages])
        assert way.settle(api, "g", messages, statuses.split()) == (0, 0)
    # What is new behind what failed has not failed.
    api.push_many(queue, 2)
    messages = way.pop(api, queue, consumerGroup="g", batch=10)
    tries.append([(one["offset"], one["retryCount"]) for one in messages])
    assert tries == [
        [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0)],
        [(1, 1), (2, 1), (4, 1)],
        [(1, 2), (2, 1)],
        [(1, 3), (2, 2), (6, 0), (7, 0)],
    ]


async def test_what_lapsed_and_what_was_seen_count_alike(
    api: Api, reader: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 5)
    pop_both(reader, queue, batch=3)
    ended = await connection.execute(
        """
        update queen.cursors c set lease_until = clock_timestamp()
        from queen.groups g join queen.queues q on q.id = g.queue_id
        where c.group_id = g.id and q.name = $1
        """,
        queue,
    )
    assert ended == "UPDATE 2"
    query = {"batch": 5, "wait": "true", "timeout": 20_000}
    messages = pop_both(reader, queue, **query)
    assert [one["retryCount"] for one in messages] == [1, 1, 1, 0, 0]


def test_hidden_messages_are_named_and_not_delivered(api: Api, reader: Api, queue: str) -> None:
    api.push_many(queue, 6)
    shown = api.messages(queue, consumerGroup="look", batch=6)
    for at in (1, 4):
        path = f"/api/v1/messages/{shown[at]['partitionId']}/{shown[at]['transactionId']}"
        assert api.call("DELETE", path).status == 200
    by_json = reader.messages(queue, consumerGroup="json", batch=5)
    answer = pop_frames(reader, queue, consumerGroup="framed", batch=5)
    (claim,) = head_of(answer).claims
    assert claim.hidden == [1, 4]
    messages = messages_of(answer)
    assert alike(messages) == alike(by_json)
    assert [one["offset"] for one in messages] == [0, 2, 3]
    # What was shown is all there is to say something of.
    assert results(ack_spans(reader, span_of(messages), group="framed")) == [taken()]
    (last,) = FRAMED.pop(reader, queue, consumerGroup="framed", batch=5)
    assert last["offset"] == 5


def test_hidden_messages_may_be_acked_along(api: Api, queue: str) -> None:
    api.push_many(queue, 3)
    shown = api.messages(queue, consumerGroup="look", batch=3)
    path = f"/api/v1/messages/{shown[1]['partitionId']}/{shown[1]['transactionId']}"
    assert api.call("DELETE", path).status == 200
    messages = FRAMED.pop(api, queue, consumerGroup="g", batch=3)
    span = {**span_of(messages), "done": [[0, 3]]}
    assert results(ack_spans(api, span, group="g")) == [taken()]


def test_a_batch_of_nothing_but_hidden_messages_is_passed_over(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    for one in api.messages(queue, consumerGroup="look", batch=2):
        path = f"/api/v1/messages/{one['partitionId']}/{one['transactionId']}"
        assert api.call("DELETE", path).status == 200
    api.push({"queue": queue, "payload": "shown"})
    (message,) = FRAMED.pop(api, queue, consumerGroup="g", batch=2, wait="true", timeout=20_000)
    assert message["data"] == "shown"


async def test_what_was_done_before_is_hidden(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 4)
    first = FRAMED.pop(api, queue, consumerGroup="g", batch=4)
    assert results(ack_spans(api, span_of(first[2:3]), group="g")) == [taken(ended=False)]
    await connection.execute(
        "update queen.cursors set lease_until = clock_timestamp() where lease_id = $1",
        first[0]["leaseId"],
    )
    answer = pop_frames(api, queue, consumerGroup="g", batch=4, wait="true", timeout=20_000)
    assert head_of(answer).claims[0].hidden == [2]
    assert [one["offset"] for one in messages_of(answer)] == [0, 1, 3]


async def test_a_delay_holds_back_frames_too(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, delayedProcessing=60)
    api.push_many(queue, 2)
    assert pop_both(api, queue, batch=5) == []
    await age(connection, queue, 61)
    api.push_many(queue, 2)
    assert [one["offset"] for one in pop_both(api, queue, batch=5)] == [0, 1]


async def test_an_encrypted_queue_is_framed_in_the_clear(
    api: Api, reader: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, encryptionEnabled=True)
    api.push_many(queue, 100)
    codec = await connection.fetchval(
        "select s.codec from queen.segments s join queen.queues q on q.id = s.queue_id "
        "where q.name = $1",
        queue,
    )
    assert codec == 2
    assert len(pop_both(reader, queue, batch=100)) == 100


def test_auto_ack_has_no_lease_and_delivers_once(api: Api, reader: Api, queue: str) -> None:
    api.push_many(queue, 5)
    answer = pop_frames(reader, queue, batch=3, autoAck="true")
    head = head_of(answer)
    assert (head.leaseId, head.claims[0].leaseMs) == ("", 0)
    assert [one["offset"] for one in messages_of(answer)] == [0, 1, 2]
    answer = pop_frames(reader, queue, batch=3, autoAck="true")
    assert [one["offset"] for one in messages_of(answer)] == [3, 4]
    assert pop_frames(reader, queue, batch=3, autoAck="true").status == 204


@pytest.mark.parametrize("auto_ack", ["true", "false"])
async def test_what_cannot_be_read_is_neither_framed_nor_committed(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection, auto_ack: str
) -> None:
    api.push_many(queue, 100)
    api.push_many(queue, 100)
    ids = """
        select p.id from queen.partitions p join queen.queues q on q.id = p.queue_id
        where q.name = $1
    """
    await connection.execute(
        f"""
        update queen.segments set body = overlay(body placing '\\x00000000' from 9 for 4)
        where base_offset = 100 and partition_id in ({ids})
        """,
        queue,
    )
    query: dict[str, Any] = {"batch": 200, "autoAck": auto_ack, "consumerGroup": "g"}
    # What stands before it is delivered.
    messages = FRAMED.pop(other_api, queue, **query)
    assert [one["offset"] for one in messages] == list(range(100))
    if auto_ack == "false":
        assert results(ack_spans(other_api, span_of(messages), group="g")) == [taken()]
    refused = pop_frames(other_api, queue, **query)
    assert (refused.status, refused.json["code"], refused.json["offset"]) == (
        503,
        "unreadable",
        100,
    )
    committed = await connection.fetchval(
        f"select max(committed) from queen.cursors where partition_id in ({ids})", queue
    )
    assert committed == 100


def test_answers_are_bounded_in_bytes(api: Api, reader: Api, queue: str) -> None:
    for part in range(3):
        payloads = [b'"%s"' % (b"x" * 120_000) for _ in range(40)]
        ids = [f"{part}-{at}" for at in range(40)]
        assert api.push_frames(encode_frame(queue, "p", ids, payloads)).status == 201
    # Decoded each segment is 4.8 MB, and an answer 8: what does not fit is there for the next.
    for expected in (40, 40, 40):
        answer = pop_frames(reader, queue, batch=120)
        messages = messages_of(answer)
        assert len(messages) == expected
        assert results(ack_spans(reader, span_of(messages))) == [taken()]
    assert pop_frames(reader, queue, batch=120).status == 204


def test_little_of_a_large_segment_is_cut_out_of_it(api: Api, reader: Api, queue: str) -> None:
    trace = "6f1c1f0e-6a0b-4e5c-9a39-1c5b0f4f2a11"
    payloads = [b'"%d %s"' % (at, secrets.token_hex(500).encode()) for at in range(300)]
    traces = {"traceId": [trace if at % 2 else None for at in range(300)]}
    ids = [f"ä{at}" for at in range(300)]
    frame = encode_frame(queue, "p", ids, payloads, traces)
    assert api.push_frames(frame).status == 201
    offset = 0
    for batch, is_whole in ((1, False), (7, False), (290, True), (2, False)):
        expected = reader.messages(queue, consumerGroup="json", batch=batch)
        answer = pop_frames(reader, queue, consumerGroup="framed", batch=batch)
        messages = messages_of(answer)
        assert alike(messages) == alike(expected)
        assert [one["offset"] for one in messages] == list(range(offset, offset + batch))
        (sent,) = stored_frames(answer.raw[unpack_head(answer.raw)[1] :])
        assert sent.count == (300 if is_whole else batch)
        for group, way, some in (("json", JSON, expected), ("framed", FRAMED, messages)):
            assert way.settle(reader, group, some, ["completed"] * batch) == (0, 0)
        offset += batch


def test_a_framed_poll_waits_and_is_woken(api: Api, queue: str) -> None:
    path = pop_path(queue, wait="true", timeout=20_000, batch=5)
    poll = Poll(api, path, FRAMES)
    settle(api)
    assert not poll.is_answered()
    api.push_many(queue, 2)
    assert [one["offset"] for one in messages_of(poll.answer())] == [0, 1]


def test_a_nack_comes_again_in_the_other_language(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=0)
    api.push_many(queue, 2)
    framed = FRAMED.pop(api, queue, batch=2)
    assert results(ack_spans(api, span_of(framed, "failed"))) == [taken()]
    by_json = api.messages(queue, batch=2)
    assert [one["retryCount"] for one in by_json] == [1, 1]
    assert JSON.settle(api, "__QUEUE_MODE__", by_json, ["failed"] * 2) == (0, 0)
    assert [one["retryCount"] for one in FRAMED.pop(api, queue, batch=2)] == [2, 2]
