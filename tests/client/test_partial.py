"""Requests that a server takes in part: what is stored is not sent again."""

from __future__ import annotations

import asyncio

import pytest

from queen import Message, Queen, Received
from queen.client.queues import buffers
from queen.core.frame import unpack_frames
from queen.errors import BadRequest, InvalidFrame, InvalidItem, QueueFull
from tests.api import Api
from tests.client.fake import Fake, answer
from tests.conftest import ServerProcess

HEALTH = answer("200 OK", b'{"server":"Queen"}')
LONG_MS = 3_600_000


async def full_queue(queen: Queen, name: str, size: int = 1) -> None:
    """Make a queue that takes no more until something of it is consumed."""
    await queen.queue(name).config(max_size=size, dedup="off").create()
    await queen.queue(name).push([f"old {number}" for number in range(size)])


def sent_queues(request: bytes) -> list[str]:
    return [frame.queue for frame in unpack_frames(request.partition(b"\r\n\r\n")[2])]


async def test_a_buffer_sends_again_only_what_was_not_stored(
    queen: Queen, queue: str, api: Api
) -> None:
    await full_queue(queen, f"{queue}-full")
    await queen.queue(queue).config(dedup="off").create()
    for name in (queue, f"{queue}-full"):
        await queen.queue(name).buffer(1000, LONG_MS).push("new")
    with pytest.raises(TimeoutError):
        # Long enough for several tries of the queue that is full.
        await asyncio.wait_for(queen.flush(), 2)
    assert len(queen.buffers) == 1
    assert api.data(queue, batch=100, autoAck="true") == ["new"]
    assert api.data(f"{queue}-full", batch=100, autoAck="true") == ["old 0"]
    await asyncio.wait_for(queen.flush(), 30)
    assert api.data(queue, batch=100, autoAck="true") == []
    assert api.data(f"{queue}-full", batch=100, autoAck="true") == ["new"]


async def test_a_full_queue_holds_up_no_other(
    queen: Queen, queue: str, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await full_queue(queen, f"{queue}-full")
    monkeypatch.setattr(queen.buffers, "_most", 2)
    monkeypatch.setattr(buffers, "_REQUEST_MESSAGES", 2)
    await queen.queue(f"{queue}-full").buffer(1000, LONG_MS).push([1, 2, 3, 4])
    flushing = asyncio.create_task(queen.flush())
    await queen.queue(queue).buffer(1, LONG_MS).push("through")
    (received,) = await queen.queue(queue).pop(wait_s=20)
    assert received.data == "through"
    assert not flushing.done()
    drained: list[Received] = []
    while len(drained) < 5:
        drained += await queen.queue(f"{queue}-full").pop(wait_s=20, batch=5, auto_ack=True)
        await queen.admin.health()
    await asyncio.wait_for(flushing, 30)
    assert [one.data for one in drained] == ["old 0", 1, 2, 3, 4]


async def test_a_list_is_sent_again_only_where_it_was_not_stored(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(max_size=4, dedup="off").create()
    items = [Message(number, partition=f"p{number % 2}") for number in range(6)]
    pushing = asyncio.create_task(queen.queue(queue).push(items))
    received: list[Received] = []
    while len(received) < 6:
        received += await queen.queue(queue).pop(wait_s=20, batch=9, auto_ack=True)
    pushed = await asyncio.wait_for(pushing, 30)
    assert [one.transaction_id for one in pushed] == [one.transaction_id for one in items]
    assert sorted(one.data for one in received) == [0, 1, 2, 3, 4, 5]
    assert await queen.queue(queue).pop(wait_s=0, batch=9) == []


async def test_a_list_that_does_not_fit_says_what_is_stored(
    server: ServerProcess, queue: str
) -> None:
    async with Queen(server.url, retry_s=0.5) as queen:
        await queen.queue(queue).config(max_size=1, dedup="off").create()
        with pytest.raises(QueueFull) as caught:
            await queen.queue(queue).push([Message(1, partition="a"), Message(2, partition="b")])
        assert [one["index"] for one in caught.value.details["results"]] == [0]
        received = await queen.queue(queue).pop(wait_s=5, batch=9, auto_ack=True)
        assert [one.data for one in received] == [1]


async def test_what_is_refused_for_good_is_handed_over_by_itself() -> None:
    refusal = (
        b'{"error":"bad","code":"bad_request","retryable":false,"results":'
        b'[{"status":"queued"},{"status":"refused","error":"bad"},{"status":"duplicate"}]}'
    )
    fake = Fake([HEALTH, answer("400 Bad", refusal)])
    async with fake.running(), Queen(fake.url) as queen:
        for name in ("a", "b", "c"):
            await queen.queue(name).buffer(1000, LONG_MS).push(name)
        with pytest.raises(BadRequest) as caught:
            await queen.flush()
        (unsent,) = caught.value.details["unsent"]
        assert (unsent["queue"], unsent["code"], unsent["error"]) == ("b", "bad_request", "bad")
        assert len(queen.buffers) == 0


async def test_who_is_refused_without_a_reason_is_asked_about_first() -> None:
    mixed = (
        b'{"error":"full","code":"queue_full","retryable":true,"queue":"a","results":'
        b'[{"status":"refused","error":"full"},{"status":"refused","error":"other"},'
        b'{"status":"queued"}]}'
    )
    bad = answer("400 Bad", b'{"error":"other","code":"bad_request","retryable":false}')
    fake = Fake([HEALTH, answer("429 Full", mixed), bad, answer("201 Created", b"[{}]")])
    async with fake.running(), Queen(fake.url) as queen:
        for name in ("a", "b", "c"):
            await queen.queue(name).buffer(1000, LONG_MS).push(name)
        with pytest.raises(BadRequest) as caught:
            await queen.close()
    assert [one["queue"] for one in caught.value.details["unsent"]] == ["b"]
    assert [sent_queues(text) for text in fake.requests[1:]] == [["a", "b", "c"], ["b"], ["a"]]


async def test_a_reason_for_each_is_heeded() -> None:
    mixed = (
        b'{"error":"full","code":"queue_full","retryable":true,"queue":"a","results":'
        b'[{"status":"refused","error":"full","code":"queue_full","retryable":true},'
        b'{"status":"refused","error":"other","code":"bad_request","retryable":false}]}'
    )
    fake = Fake([HEALTH, answer("429 Full", mixed), answer("201 Created", b"[{}]")])
    async with fake.running(), Queen(fake.url) as queen:
        for name in ("a", "b"):
            await queen.queue(name).buffer(1000, LONG_MS).push(name)
        with pytest.raises(BadRequest, match="other"):
            await queen.close()
    assert [sent_queues(text) for text in fake.requests[1:]] == [["a", "b"], ["a"]]


@pytest.mark.parametrize("name", ["x" * 300, "\ud800"], ids=["too long", "no text"])
async def test_one_bad_message_takes_no_neighbour_of_its_partition_along(
    queen: Queen, queue: str, api: Api, name: str
) -> None:
    bad = Message("bad", transaction_id=name)
    many = [*range(50), bad, *range(50, 120)]
    await queen.queue(queue).buffer(1000, LONG_MS).push(many)
    with pytest.raises(InvalidFrame) as caught:
        await queen.flush()
    assert [one["payload"] for one in caught.value.details["unsent"]] == [b'"bad"']
    assert api.data(queue, batch=200) == list(range(120))


async def test_the_rest_is_sent_in_order_where_there_is_room_for_some(
    queen: Queen, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "_FRAME_MESSAGES", 10)
    await queen.queue(queue).config(max_size=16, dedup="off").create()
    await queen.queue(queue).buffer(1000, LONG_MS).push(list(range(25)))
    flushing = asyncio.create_task(queen.flush())
    received: list[Received] = []
    while len(received) < 25:
        received += await queen.queue(queue).pop(wait_s=20, batch=9, auto_ack=True)
    await asyncio.wait_for(flushing, 30)
    assert [one.data for one in received] == list(range(25))


async def test_a_json_broker_is_not_sent_again_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = answer("201 Created", b'[{"status":"queued","transaction_id":"x"}]')
    down = answer("503 Down", b"{}")
    other = answer("200 OK", b'{"status":"healthy"}')
    fake = Fake([other, stored, down, stored])
    async with fake.running(), Queen(fake.url, retry_s=0) as queen:
        for name in ("a", "b"):
            await queen.queue(name).buffer(1000, LONG_MS).push(name)
        await queen.flush()
    names = [b'"queue":"a"' in text for text in fake.requests[1:]]
    assert names == [True, False, False]


async def test_an_item_is_named_as_its_pusher_knows_it(queen: Queen, queue: str) -> None:
    items = [Message(number, trace_id="00000000-0000-4000-8000-000000000000") for number in (1, 2)]
    items.insert(1, Message("bad", trace_id="no uuid"))
    with pytest.raises(InvalidItem) as caught:
        await queen.queue(queue).push(items)
    assert (caught.value.index, caught.value.reason) == (1, "traceId is not a UUID")


async def test_an_item_of_a_transaction_is_named_too(queen: Queen, queue: str) -> None:
    transaction = queen.transaction().push(queue, [1, Message(2, transaction_id="x" * 300)])
    with pytest.raises(InvalidItem) as caught:
        await transaction.commit()
    assert caught.value.index == 1
    assert caught.value.reason.startswith("transactionId is longer than 255 bytes")


@pytest.mark.parametrize(
    ("body", "index", "reason"),
    [
        (b'{"error":"item 7: bad","code":"invalid_item"}', 7, "bad"),
        (b'{"error":"what","code":"invalid_item"}', -1, "what"),
        (b'{"error":"x","code":"invalid_item","index":3,"reason":"r"}', 3, "r"),
        (
            b'{"error":"x","code":"invalid_item","items":[{"index":1,"reason":"q","code":"other"},'
            b'{"index":2,"reason":"r","code":"invalid_item"}]}',
            2,
            "r",
        ),
    ],
)
async def test_index_and_reason_are_there_however_they_are_sent(
    body: bytes, index: int, reason: str
) -> None:
    fake = Fake([answer("400 Bad", body)])
    async with fake.running(), Queen(fake.url) as queen:
        with pytest.raises(InvalidItem) as caught:
            await queen.request("POST", "/any", {})
    assert (caught.value.index, caught.value.reason) == (index, reason)
