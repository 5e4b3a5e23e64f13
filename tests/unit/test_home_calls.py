"""What a front and its home say to each other comes out as it went in."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from queen.core.cursor import AckResult, AckStatus
from queen.core.frame import segment_of
from queen.core.options import QueueOptions
from queen.errors import BadRequest, InvalidItem, OutcomeUnknown, QueenError, QueueFull, Unreadable
from queen.service.acks.ack_batch import AckBatch
from queen.service.catalog import Partition, Queue
from queen.service.consume.feeds import Grant
from queen.service.home import acks, appends, grants
from queen.service.home.calls import (
    ack_answer_decoder,
    ack_decoder,
    encode,
    error_of,
    failure_decoder,
    failure_of,
    pop_answer_decoder,
    push_answer_decoder,
    push_decoder,
)
from queen.service.home.places import Places
from queen.service.log.append import OWN_SEGMENT_MESSAGES, Append
from queen.service.log.segment_cache import StoredSegment
from queen.service.spooling.entrance import Buffering


def partition() -> Partition:
    return Partition(7, Queue(3, "orders", "", "", QueueOptions(priority=5)), "p", 0)


def append_of(count: int) -> Append:
    ids, payloads = [b"id-%d" % n for n in range(count)], [b'{"n":%d}' % n for n in range(count)]
    return Append("orders", "p", ids, payloads, 100 * count, {"traceId": ["t"] * count})


@pytest.mark.parametrize("count", [1, 3, OWN_SEGMENT_MESSAGES, 500])
def test_an_append(count: int) -> None:
    sent = append_of(count)
    call = push_decoder.decode(encode(appends.push_call([sent], Buffering(5.0, None))))
    assert (call.is_buffered, call.within_ms, call.most) == (True, 5.0, None)
    (arrived,) = appends.appends_of(call)
    assert (arrived.queue, arrived.partition, arrived.weight) == ("orders", "p", 100 * count)
    assert list(arrived.ids) == sent.ids and len(arrived) == count
    assert [arrived.ids[at] for at in range(count)] == sent.ids
    assert [arrived.body_of(at) for at in range(count)] == sent.payloads
    assert arrived.hash() == sent.hash()
    assert arrived.extras and list(arrived.extras["traceId"]) == ["t"] * count
    assert (arrived.encoded is not None) == (count >= OWN_SEGMENT_MESSAGES)


def test_where_messages_are_that_were_stored_before() -> None:
    stored, first = append_of(4), append_of(1)
    first.base_offset = 90
    stored.target, stored.base_offset, stored.first_try_head = partition(), 50, 20
    # Before the first try, by the first try, and by another append of the same flush.
    stored.repeats = {0: 11, 1: 30, 3: (first, 0)}
    sent = append_of(4)
    answers = push_answer_decoder.decode(encode([appends.answer_of(stored)]))
    appends.take_answers([sent], answers, Places())
    assert [sent.offset_of(at) for at in range(4)] == [stored.offset_of(at) for at in range(4)]
    assert [sent.is_duplicate(at) for at in range(4)] == [True, False, False, True]
    assert sent.target is not None and sent.target.uuid == partition().uuid


@pytest.mark.parametrize(
    "error",
    [
        BadRequest("no"),
        InvalidItem(4, "is bad"),
        QueueFull("orders", 10, 3),
        Unreadable("p", 8, "no key"),
        OutcomeUnknown(),
        QueenError(),
    ],
)
def test_an_error(error: QueenError) -> None:
    arrived = error_of(failure_decoder.decode(encode(failure_of(error))))
    assert type(arrived) is type(error)
    assert arrived.message == error.message
    assert vars(arrived) == vars(error)


@pytest.mark.parametrize(("start", "stop"), [(10, 15), (10, 12), (12, 15), (11, 14), (14, 15)])
def test_a_grant_holds_what_was_leased_and_no_more(start: int, stop: int) -> None:
    ids = [b"a", b"bb", b"", b"dddd", b"e"]
    segment = segment_of(ids, [b"%d" % n for n in range(5)], {"traceId": list("vwxyz")})
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    lease = uuid.uuid4()
    stored = StoredSegment(10, at, segment)
    sent = Grant(partition(), "g", lease, start, stop, 2, 3, 1, 1 << 90, {12: 4}, 60_000, [stored])
    popped = pop_answer_decoder.decode(encode([grants.granted(sent)]))
    arrived = grants.grant_of(popped[0], Places())
    for name in ("group", "lease_id", "start", "stop", "epoch", "attempt", "seen", "skip"):
        assert getattr(arrived, name) == getattr(sent, name)
    assert (arrived.failures, arrived.lease_ms) == (sent.failures, sent.lease_ms)
    assert arrived.partition.queue.name == "orders"
    assert arrived.partition.queue.options.priority == 5
    (part,) = arrived.stored
    low, high = part.part(start, stop)
    assert (part.base_offset, part.created_at, low, high) == (start, at, 0, stop - start)
    assert part.segment.id_bytes() == ids[start - 10 : stop - 10]
    assert part.segment.payloads() == [b"%d" % n for n in range(start - 10, stop - 10)]
    assert part.segment.column("traceId") == list("vwxyz")[start - 10 : stop - 10]


@pytest.mark.parametrize(
    "statuses",
    [
        {"a": AckStatus.DONE, "b": AckStatus.DONE},
        {"a": AckStatus.DONE, "b": AckStatus.FAILED},
        {"a": AckStatus.DEAD},
    ],
)
def test_a_batch_of_acks(statuses: dict[str, AckStatus]) -> None:
    sent = AckBatch(partition(), "g", 9, uuid.uuid4(), statuses, {"a": "why"})
    (ack,) = ack_decoder.decode(encode([acks.called(sent)]))
    arrived = acks.batch_of(ack, partition())
    for name in ("group", "group_id", "lease_id", "statuses", "errors", "key"):
        assert getattr(arrived, name) == getattr(sent, name)
    arrived.results = dict.fromkeys(statuses, AckResult.RETRY)
    (answer,) = ack_answer_decoder.decode(encode([acks.answer_of(arrived)]))
    acks.take_answer(sent, answer)
    assert (sent.all_done, sent.results) == (False, arrived.results)
    arrived.give(AckResult.DONE)
    (answer,) = ack_answer_decoder.decode(encode([acks.answer_of(arrived)]))
    acks.take_answer(sent, answer)
    assert (sent.all_done, set(sent.results)) == (True, set(statuses))
