"""Lists travel as frames to a server that takes them; nobody notices but the server."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from queen import Message, Queen, Received
from queen.client.pushing.requests import PushRequest
from queen.errors import BadRequest, InvalidItem, QueenError, QueueFull, Unavailable
from tests.client.brokers import TAKES_FRAMES, has_frames, ids_in, stored, stored_with_frames
from tests.client.fake import CLOSE, Fake, answer
from tests.conftest import ServerProcess

TRACE = "0f8fad5b-d9cb-469f-a165-70867728950e"


class SentKinds:
    """Notes for each request of a push whether it went as frames."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.were_frames: list[bool] = []
        results = PushRequest.results

        def noted(request: PushRequest, told: Any) -> Any:
            self.were_frames.append(request.went_as_frames)
            return results(request, told)

        monkeypatch.setattr(PushRequest, "results", noted)


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> SentKinds:
    return SentKinds(monkeypatch)


@pytest.fixture
async def framed(queen: Queen, queue: str, kinds: SentKinds) -> Queen:
    """A client that has learned that its server takes frames."""
    await queen.queue(f"{queue}-first").push("asks")
    kinds.were_frames.clear()
    return queen


async def test_an_answer_says_that_frames_are_taken() -> None:
    fake = Fake(stored_with_frames)
    async with fake.running(), Queen(fake.url) as queen:
        for _ in range(2):
            pushed = await queen.queue("q").push(list(range(20)))
    assert [has_frames(request) for request in fake.requests] == [False, True]
    assert [result.message_id for result in pushed[:2]] == [
        "00000000-0000-8007-8000-000000000000",
        "00000000-0000-8007-8000-000000000001",
    ]


async def test_a_broker_that_does_not_say_so_gets_json() -> None:
    fake = Fake(stored)
    async with fake.running(), Queen(fake.url) as queen:
        for _ in range(2):
            await queen.queue("q").push(list(range(300)))
    assert not any(map(has_frames, fake.requests))


@pytest.mark.parametrize(
    "refusal",
    [
        answer("400 Bad Request", b"what?"),
        answer("415 Unsupported Media Type", b""),
        answer("500 Internal Server Error", b'{"error":"parse error"}'),
    ],
)
async def test_another_broker_in_its_place_gets_json_from_then_on(refusal: bytes) -> None:
    def respond(request: bytes) -> bytes:
        if len(fake.requests) == 1:
            return stored_with_frames(request)
        return refusal if has_frames(request) else stored(request)

    fake = Fake(respond)
    async with fake.running(), Queen(fake.url, retry_s=0) as queen:
        for _ in range(3):
            pushed = await queen.queue("q").push(list(range(20)))
    assert [result.status for result in pushed] == ["queued"] * 20
    assert [has_frames(request) for request in fake.requests] == [False, True, False, False]
    assert ids_in(fake.requests[1]) == ids_in(fake.requests[2])


async def test_frames_are_repeated_with_the_same_ids() -> None:
    down = answer("503 Down", b'{"error":"x","code":"unavailable"}')

    def respond(request: bytes) -> bytes:
        return {2: CLOSE, 3: down}.get(len(fake.requests), stored_with_frames(request))

    fake = Fake(respond)
    async with fake.running(), Queen(fake.url) as queen:
        for _ in range(2):
            await queen.queue("q").push(list(range(20)))
    ids = [tuple(ids_in(request)) for request in fake.requests[1:]]
    assert len(ids) == 3 and len(set(ids)) == 1


async def test_each_server_is_sent_what_it_takes() -> None:
    old = Fake(stored)
    new = Fake(lambda request: CLOSE if len(new.requests) > 1 else stored_with_frames(request))
    async with old.running(), new.running(), Queen([old.url, new.url]) as queen:
        names = [f"q{number}" for number in range(20)]
        name = next(name for name in names if queen.cluster.first_for(f"{name}:Default") == new.url)
        for _ in range(2):
            pushed = await queen.queue(name).push(list(range(20)))
        assert len(pushed) == 20
    # A connection that was idle is tried once more by a new one.
    assert [has_frames(request) for request in new.requests] == [False, True, True]
    assert [has_frames(request) for request in old.requests] == [False]
    assert ids_in(new.requests[1]) == ids_in(old.requests[0])


async def test_an_error_of_the_server_is_not_sent_again_as_json() -> None:
    broken = answer("500 Oops", b'{"error":"bug","code":"internal","retryable":false}')
    fake = Fake(lambda request: broken if has_frames(request) else stored_with_frames(request))
    async with fake.running(), Queen(fake.url) as queen:
        await queen.queue("q").push(1)
        with pytest.raises(QueenError):
            # Larger than what is shared, so that it is not sent by itself again.
            await queen.queue("q").push(list(range(600)))
    assert [has_frames(request) for request in fake.requests] == [False, True]


# ---- a real server ----


async def test_results_are_the_same_in_both_languages(
    server: ServerProcess, queue: str, kinds: SentKinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    def items() -> list[Message]:
        many = [Message(n, transaction_id=f"t{n}", partition=f"p{n % 2}") for n in range(40)]
        return [*many[:30], *many[5:15], *many[30:]]

    told = []
    for name, speaks_frames in ((f"{queue}-a", True), (f"{queue}-b", False)):
        async with Queen(server.url) as queen:
            await queen.queue(name).push(Message("old", transaction_id="t7", partition="p1"))
            if not speaks_frames:
                monkeypatch.setattr(PushRequest, "as_frames", lambda _: None)
            pushed = await queen.queue(name).push(items())
            popped: list[Received] = []
            for partition in ("p0", "p1"):
                popped += await queen.queue(name).partition(partition).pop(batch=100)
        by_id = {message.id: message.transaction_id for message in popped}
        assert [by_id[str(result.message_id)] for result in pushed] == [
            result.transaction_id for result in pushed
        ]
        assert {result.partition_id for result in pushed} == {one.partition_id for one in popped}
        told.append([(result.status, str(result.message_id)[24:]) for result in pushed])
    assert kinds.were_frames == [False, True, False, False]
    assert told[0] == told[1]
    assert [status for status, _ in told[0]].count("duplicate") == 11


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Message("bad", transaction_id="x" * 300), "transactionId is longer"),
        (Message("bad", trace_id="no uuid"), "traceId is not a UUID"),
        (Message("bad", partition="x" * 300), "partition name is longer"),
        (Message(msgspec.Raw(b"[" * 200 + b"]" * 200)), "payload is nested deeper"),
    ],
)
async def test_one_that_is_refused_is_named_and_its_neighbours_are_stored(
    framed: Queen, queue: str, bad: Message, reason: str
) -> None:
    items = [*range(10), bad, *range(10, 20)]
    with pytest.raises(InvalidItem) as caught:
        await framed.queue(queue).push(items)
    assert (caught.value.index, len(caught.value.details["results"])) == (10, 20)
    assert caught.value.reason.startswith(reason)
    received = await framed.queue(queue).pop(batch=100)
    assert [one.data for one in received] == list(range(20))


async def test_traces_and_payloads_travel_in_frames(
    framed: Queen, queue: str, kinds: SentKinds
) -> None:
    payloads: list[Any] = [None, "é\n", "", [1, None], {"a": {"b": None}}, 1.5, True, "x" * 5000]
    items = [
        Message(payload, trace_id=TRACE if at % 2 else None)
        for at, payload in enumerate(payloads * 3)
    ]
    items.append(Message(msgspec.Raw(b'{\r\n "raw": 1\n}')))
    await framed.queue(queue).push(items)
    assert kinds.were_frames == [True]
    received = await framed.queue(queue).pop(batch=100)
    assert [one.data for one in received] == [*payloads * 3, {"raw": 1}]
    assert [one.trace_id for one in received] == [item.trace_id for item in items]


async def test_what_a_frame_cannot_say_is_said_in_json(
    framed: Queen, queue: str, kinds: SentKinds
) -> None:
    await framed.queue(queue).push([*range(20), Message("later", delay=3600)])
    await framed.queue(queue).qos0().push(list(range(20)))
    await framed.queue(queue).push([Message(n, partition=f"p{n}") for n in range(20)])
    assert kinds.were_frames == [False] * 3


async def test_what_has_no_room_is_sent_again_by_itself(
    framed: Queen, queue: str, kinds: SentKinds
) -> None:
    await framed.queue(queue).config(max_size=10, dedup="off").create()
    items = [Message(number, partition=f"p{number % 2}") for number in range(20)]
    pushing = asyncio.create_task(framed.queue(queue).push(items))
    received: list[Received] = []
    while len(received) < 20:
        received += await framed.queue(queue).pop(wait_s=20, batch=20, auto_ack=True)
    pushed = await asyncio.wait_for(pushing, 30)
    assert [one.transaction_id for one in pushed] == [item.transaction_id for item in items]
    assert {one.id for one in received} == {one.message_id for one in pushed}
    assert sorted(one.data for one in received) == list(range(20))


async def test_what_has_no_room_for_good_is_told_message_by_message(
    server: ServerProcess, queue: str
) -> None:
    async with Queen(server.url, retry_s=0.2) as queen:
        await queen.queue(queue).config(max_size=10, dedup="off").create()
        await queen.queue(f"{queue}-first").push("asks")
        items = [Message(number, partition=f"p{number % 2}") for number in range(20)]
        with pytest.raises(QueueFull) as caught:
            await queen.queue(queue).push(items)
    assert [told["index"] for told in caught.value.details["results"]] == list(range(0, 20, 2))


@pytest.mark.parametrize("value", [float("nan"), {"a": [None, float("-inf")]}])
async def test_no_number_is_found_among_many(queen: Queen, queue: str, value: Any) -> None:
    with pytest.raises(ValueError, match="NaN or an infinity"):
        await queen.queue(queue).push([1, {"a": None}, value, 2.5])
    assert (await queen.queue(queue).push([{"a": None, "b": 2**70}, 1e308]))[0].status == "queued"


async def test_a_refusal_of_all_is_told_once_more_in_json() -> None:
    refusal = answer("400 Bad", b'{"error":"bad","code":"bad_request","retryable":false}')
    fake = Fake(
        lambda request: refusal if len(fake.requests) > 1 else stored(request, TAKES_FRAMES)
    )
    async with fake.running(), Queen(fake.url) as queen:
        await queen.queue("q").push(1)
        with pytest.raises(BadRequest, match="bad"):
            await queen.queue("q").push(list(range(600)))
        assert [has_frames(request) for request in fake.requests] == [False, True, False]
    with pytest.raises(Unavailable):
        async with Queen(fake.url, retry_s=0) as queen:
            await queen.queue("q").push([1, 2])
