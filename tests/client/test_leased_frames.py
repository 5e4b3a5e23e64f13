"""What is consumed comes in frames, is looked at where it lies, and is acked by spans."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import msgspec
import pytest

from queen import Queen, Received, SyncQueen
from queen.client.leases.acks import MAX_ACKS
from queen.core.frame import Frame
from queen.core.ids import message_id, partition_uuid
from queen.errors import LeaseLost, Unreachable
from queen.wire import answers
from tests.client.fake import Fake, answer
from tests.client.framed import LEASE, FrameBroker, body, claim, frame, framed, run_of

P7, P8 = partition_uuid(7), partition_uuid(8)


@contextlib.asynccontextmanager
async def client_of(broker: FrameBroker, **settings: Any) -> AsyncIterator[Queen]:
    async with Fake(broker).running() as fake, Queen(fake.url, retry_s=0, **settings) as queen:
        yield queen


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The base offsets of the frames that were decoded."""
    seen: list[int] = []
    segment = Frame.segment

    def note(self: Frame) -> Any:
        seen.append(self.base_offset)
        return segment(self)

    monkeypatch.setattr(Frame, "segment", note)
    return seen


# ---- messages ----


async def test_a_message_has_all_that_it_has_in_json() -> None:
    extras = {"traceId": [None, "trace"], "producerSub": ["me", None]}
    first = frame(7, 40, [{"n": 1}, {"n": 2}], extras)
    claims = [claim(7, 40, 42, attempt=3, failures={"41": 1})]
    async with client_of(FrameBroker(framed(claims, [first]))) as queen:
        one, two = await queen.queue("q").group("g").pop(batch=2)
    assert (one.id, two.id) == (message_id(7, 40), message_id(7, 41))
    assert (one.transaction_id, two.transaction_id) == ("t-40", "t-41")
    assert (one.queue, one.partition, one.partition_id) == ("q", "p7", P7)
    assert (one.offset, two.offset) == (40, 41)
    assert one.created_at == datetime.fromisoformat("2026-03-01T12:00:00.123456Z")
    assert (one.data, two.data) == ({"n": 1}, {"n": 2})
    assert one.data is one.data
    assert msgspec.json.encode(one.raw) == b'{"n":1}'
    assert one.into(dict[str, float]) == {"n": 1.0}
    assert (one.retry_count, one.attempt) == (2, 3)
    assert (two.retry_count, two.attempt) == (1, 2)
    assert (one.priority, one.epoch, one.lease_id, one.consumer_group) == (2, 5, LEASE, "g")
    assert (one.trace_id, two.trace_id) == (None, "trace")
    assert (one.producer_sub, two.producer_sub) == ("me", None)
    assert repr(one) == "Received(q/p7 't-40')"
    assert isinstance(one, Received)


async def test_without_a_group_there_is_none() -> None:
    pop = framed([claim(7, 0, 1)], [frame(7, 0, [1])], group="__QUEUE_MODE__")
    async with client_of(FrameBroker(pop)) as queen:
        (message,) = await queen.queue("q").pop()
    assert message.consumer_group is None


async def test_frames_are_asked_for_unless_they_are_not_wanted() -> None:
    broker = FrameBroker(run_of(7, 0, 1))
    async with client_of(broker) as queen:
        await queen.queue("q").pop()
    async with client_of(broker, frames=False) as queen:
        await queen.queue("q").pop()
    first, second = (head.lower() for head in broker.asked)
    assert b"\r\naccept: application/vnd.queen.segment" in first
    assert b"accept" not in second


async def test_only_what_is_leased_and_shown_is_handed_out() -> None:
    frames = [frame(7, 0, list("abcde")), frame(7, 5, list("fg")), frame(7, 7, list("hijk"))]
    claims = [claim(7, 3, 9, frames=3, hidden=[4, 7])]
    async with client_of(FrameBroker(framed(claims, frames))) as queen:
        messages = await queen.queue("q").pop(batch=10)
    assert [(one.offset, one.data) for one in messages] == [(3, "d"), (5, "f"), (6, "g"), (8, "i")]


async def test_nothing_is_decoded_before_it_is_looked_at(decoded: list[int]) -> None:
    seen: list[Any] = []
    frames = [frame(7, 0, [1, 2]), frame(7, 2, [3, 4]), frame(8, 0, [5])]
    pops = [framed([claim(7, 0, 4, frames=2), claim(8, 0, 1)], frames) for _ in range(2)]

    async def count(batch: list[Received]) -> None:
        assert isinstance(batch, list)
        seen.append([(one.partition, one.offset, one.attempt) for one in batch])

    async def look(batch: list[Received]) -> None:
        seen.append(batch[2].data)

    async with client_of(FrameBroker(*pops)) as queen:
        await queen.queue("q").batch(10).limit(5).consume(count)
        assert decoded == []
        await queen.queue("q").batch(10).limit(5).consume(look)
        assert decoded == [2]
    assert seen[0][-2:] == [("p7", 3, 1), ("p8", 0, 1)]
    assert seen[1] == 3


async def test_a_batch_is_a_list() -> None:
    batches: list[list[Received]] = []

    async def handle(batch: list[Received]) -> None:
        batches.append(batch[:])
        batch.reverse()
        batch.pop()
        batch.clear()

    broker = FrameBroker(run_of(7, 0, 4))
    async with client_of(broker) as queen:
        await queen.queue("q").batch(4).limit(4).consume(handle)
    (batch,) = batches
    assert type(batch) is list
    assert [one.data for one in [*batch[1:3], batch[-1]]] == [1, 2, 3]
    assert batch.index(batch[2]) == 2
    assert len({*batch, *batch}) == 4
    # Whatever the handler did to its list, the batch is done.
    assert broker.spans == [[{"partitionId": P7, "leaseId": LEASE, "done": [[0, 4]]}]]


@pytest.mark.parametrize("whole", [1, 12, 40, 200, -40, -1])
async def test_an_answer_that_ends_early_is_no_answer(whole: int) -> None:
    text = body([claim(7, 0, 2, frames=2)], [frame(7, 0, [1]), frame(7, 1, [2])])[:whole]
    pop = answer("200 OK", text, "content-type: application/vnd.queen.segment")
    async with client_of(FrameBroker(pop)) as queen:
        with pytest.raises(Unreachable, match="not one of Queen's"):
            await queen.queue("q").pop()


async def test_a_damaged_frame_is_no_answer() -> None:
    text = bytearray(body([claim(7, 0, 1)], [frame(7, 0, ["abc"])]))
    text[-3] ^= 1
    pop = answer("200 OK", bytes(text), "content-type: application/vnd.queen.segment")
    async with client_of(FrameBroker(pop)) as queen:
        with pytest.raises(Unreachable, match="checksum"):
            await queen.queue("q").pop()


async def test_a_broker_that_answers_in_json_is_acked_by_transaction_ids() -> None:
    message = {
        "id": "m",
        "transactionId": "t",
        "partitionId": "p",
        "partition": "Default",
        "data": {"a": 1},
        "leaseId": "lease",
        "createdAt": "2026-03-01T12:00:00Z",
    }
    pop = answer("200 OK", msgspec.json.encode({"messages": [message]}))
    broker, seen = FrameBroker(pop), []

    async def handle(given: Received) -> None:
        seen.append((given.data, given.queue, given.offset, given.epoch))

    async with client_of(broker) as queen:
        await queen.queue("q").limit(1).consume(handle)
    assert seen == [({"a": 1}, "q", 0, 0)]
    assert broker.items == [[{"transactionId": "t", "partitionId": "p", "leaseId": "lease"}]]
    assert broker.spans == []


# ---- acks ----


async def test_a_batch_that_is_done_is_one_run_of_each_partition() -> None:
    frames = [frame(7, 0, [1, 2]), frame(7, 2, [3, 4]), frame(8, 10, [5, 6])]
    broker = FrameBroker(framed([claim(7, 0, 3, frames=2), claim(8, 11, 12)], frames))

    async def handle(_batch: list[Received]) -> None:
        pass

    async with client_of(broker) as queen:
        done = await queen.queue("q").batch(4).limit(4).consume(handle)
    assert done.handled == 4
    assert broker.spans == [
        [
            {"partitionId": P7, "leaseId": LEASE, "done": [[0, 3]]},
            {"partitionId": P8, "leaseId": LEASE, "done": [[11, 12]]},
        ]
    ]
    assert broker.items == []


@pytest.mark.parametrize(("last", "done"), [(5, [[0, 6]]), (4, [[0, 2], [3, 4]])])
async def test_what_is_hidden_is_named_only_when_all_is_done(
    last: int, done: list[list[int]]
) -> None:
    broker = FrameBroker(framed([claim(7, 0, 6, hidden=[2, 5])], [frame(7, 0, [*range(6)])]))
    async with client_of(broker) as queen:
        messages = await queen.queue("q").pop(batch=6)
        await queen.ack([one for one in messages if one.offset < last])
    assert broker.spans[0][0]["done"] == done


async def test_what_did_not_come_is_not_acked() -> None:
    broker = FrameBroker(framed([claim(7, 0, 9, hidden=[2])], [frame(7, 0, [*range(6)])]))
    async with client_of(broker) as queen:
        await queen.ack(await queen.queue("q").pop(batch=9))
    assert broker.spans[0][0]["done"] == [[0, 2], [3, 6]]


async def test_a_batch_that_failed_fails_message_by_message() -> None:
    broker = FrameBroker(run_of(7, 3, 2))

    async def handle(_batch: list[Received]) -> None:
        raise ValueError("no")

    async with client_of(broker) as queen:
        await queen.queue("q").batch(2).limit(2).consume(handle)
    failed = [{"offset": at, "status": "failed", "error": "ValueError: no"} for at in (3, 4)]
    assert broker.spans == [[{"partitionId": P7, "leaseId": LEASE, "failed": failed}]]


async def test_outcomes_of_messages_become_runs_and_failures() -> None:
    broker = FrameBroker(run_of(7, 0, 9))

    async def handle(message: Received) -> None:
        if message.data in (2, 6):
            raise ValueError(message.data)
        if message.data == 4:
            await message.dead_letter("never")

    async with client_of(broker) as queen:
        done = await queen.queue("q").batch(9).each().limit(9).consume(handle)
    assert (done.handled, done.failed) == (7, 2)
    by_hand, rest = broker.spans
    assert by_hand[0]["failed"] == [{"offset": 4, "status": "dlq", "error": "never"}]
    assert rest[0]["done"] == [[0, 2], [3, 4], [5, 6], [7, 9]]
    assert rest[0]["failed"] == [
        {"offset": 2, "status": "failed", "error": "ValueError: 2"},
        {"offset": 6, "status": "failed", "error": "ValueError: 6"},
    ]


async def test_what_a_user_acks_together_is_said_together() -> None:
    frames = [frame(7, 0, [1, 2, 3, 4]), frame(8, 0, [5])]
    broker = FrameBroker(framed([claim(7, 0, 4), claim(8, 0, 1)], frames))
    async with client_of(broker) as queen:
        one, two, three, four, five = await queen.queue("q").pop(batch=5)
        await queen.ack([four, one, five, two, one])
        assert [message.is_settled for message in (one, two, three)] == [True, True, False]
        await three.give_back()
        assert three.is_given_back
    first, second = broker.spans
    assert [span.get("done") for span in first] == [[[0, 2], [3, 4]], [[0, 1]]]
    assert second[0]["failed"] == [{"offset": 2, "status": "retry"}]


async def test_a_loop_acks_as_it_goes_and_gives_back_the_rest() -> None:
    broker = FrameBroker(run_of(7, 0, 5))
    async with client_of(broker) as queen:
        loop = queen.queue("q").batch(5).consume().__aiter__()
        assert [(await anext(loop)).data for _ in range(3)] == [0, 1, 2]
        await loop.aclose()
    (span,) = broker.spans[0]
    assert span["done"] == [[0, 2]]
    assert [(one["offset"], one["status"]) for one in span["failed"]] == [
        (2, "failed"),
        (3, "retry"),
        (4, "retry"),
    ]


def test_a_client_sends_no_more_acks_at_once_than_a_server_takes() -> None:
    assert MAX_ACKS == answers.MAX_ACKS


async def test_too_many_acks_for_a_request_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queen.client.leases.acks.MAX_ACKS", 3)
    broker = FrameBroker(
        framed([claim(7, 0, 8, frames=2)], [frame(7, 0, [0] * 4), frame(7, 4, [0] * 4)])
    )
    async with client_of(broker) as queen:
        await queen.nack(await queen.queue("q").pop(batch=8))
    offsets = [[one["offset"] for one in span["failed"]] for (span,) in broker.spans]
    assert offsets == [[0, 1, 2], [3], [4, 5, 6], [7]]


async def test_a_server_that_knows_no_spans_is_told_by_transaction_ids() -> None:
    """The frames came from a server that was replaced by one of the version before."""
    broker = FrameBroker(run_of(7, 0, 3), knows_spans=False)

    async def handle(message: Received) -> None:
        if message.data == 1:
            raise ValueError("no")

    async with client_of(broker) as queen:
        await queen.queue("q").group("g").batch(3).each().limit(3).consume(handle)
    common = {"partitionId": P7, "leaseId": LEASE, "consumerGroup": "g"}
    assert broker.items == [
        [
            {"transactionId": "t-0", **common},
            {"transactionId": "t-1", "status": "failed", "error": "ValueError: no", **common},
            {"transactionId": "t-2", **common},
        ]
    ]


async def test_without_a_lease_nothing_is_said_by_spans() -> None:
    pop = framed([claim(7, 0, 1, leaseMs=0)], [frame(7, 0, [1])], lease="")
    broker = FrameBroker(pop)
    async with client_of(broker) as queen:
        (message,) = await queen.queue("q").pop(auto_ack=True)
        assert message.lease_id == ""
        await message.ack()
    assert broker.items == [[{"transactionId": "t-0", "partitionId": P7, "consumerGroup": "g"}]]


async def test_a_lost_lease_is_told_to_whoever_acks(caplog: pytest.LogCaptureFixture) -> None:
    lost = {"success": False, "error": "the lease is over", "lost": 2}
    broker = FrameBroker(run_of(7, 0, 3), run_of(7, 3, 3), result=lost)

    async def handle(_batch: list[Received]) -> None:
        pass

    async with client_of(broker) as queen:
        messages = await queen.queue("q").pop(batch=3)
        with pytest.raises(LeaseLost, match=r"2 of 3 messages .*: the lease is over"):
            await queen.ack(messages)
        with caplog.at_level(logging.WARNING, "queen.client"):
            await queen.queue("q").batch(3).limit(3).consume(handle)
    assert "2 messages were no longer leased to us" in caplog.text


async def test_a_refused_span_counts_with_all_its_messages() -> None:
    refused = {"success": False, "error": "no such partition", "lost": 0}
    broker = FrameBroker(run_of(7, 0, 3), result=refused)
    async with client_of(broker) as queen:
        with pytest.raises(LeaseLost, match="3 of 3"):
            await queen.ack(await queen.queue("q").pop(batch=3))


# ---- without asyncio ----


async def test_the_same_without_asyncio() -> None:
    broker = FrameBroker(run_of(7, 0, 2), run_of(7, 2, 2), run_of(7, 4, 2))
    seen: list[int] = []

    def work(url: str) -> None:
        with SyncQueen(url) as queen:
            one, _ = queen.queue("q").pop(batch=2)
            one.ack()
            queen.queue("q").limit(2).consume(lambda message: seen.append(message.data))
            seen.extend(one.data for one in queen.queue("q").batch(2).limit(2))

    async with Fake(broker).running() as fake:
        await asyncio.to_thread(work, fake.url)
    assert seen == [2, 3, 4, 5]
    assert [spans[0]["done"] for spans in broker.spans] == [[[0, 1]], [[2, 4]], [[4, 6]]]


async def test_many_threads_look_into_frames_at_once() -> None:
    """Each decompresses what it looks at; none gets what another one wants."""
    payloads = [[{"n": n, "text": "x" * 2000} for n in range(at, at + 50)] for at in range(16)]
    pops = [framed([claim(at, 0, 50)], [frame(at, 0, many)]) for at, many in enumerate(payloads)]
    seen: dict[str, list[int]] = {}

    def handle(batch: list[Received]) -> None:
        seen[batch[0].partition] = [one.data["n"] for one in batch]

    async with client_of(FrameBroker(*pops)) as queen:
        await queen.queue("q").batch(50).concurrency(16).limit(800).consume(handle)
    assert seen == {f"p{at}": list(range(at, at + 50)) for at in range(16)}
