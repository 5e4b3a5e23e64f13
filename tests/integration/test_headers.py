"""Headers come back as they were pushed: every way in, and every way out of each."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from queen import Message, Queen
from queen.core.cipher import KeyRing
from queen.errors import InvalidItem
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.upkeep.reencrypt import Reencrypter
from queen.storage.database import Database
from tests.client.gate import gate_to
from tests.conftest import ENCRYPTION_KEY, ServerProcess
from tests.waiting import until_async

_TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_COUNT = 12
Headers = dict[str, str]
# By the number that is the payload.
Expected = dict[int, Headers]


def _headers(number: int) -> Headers:
    """What is pushed with a number: every third has none, and one has what must be escaped."""
    if number % 3 == 0:
        return {}
    odd = 'ä "quoted" %d \\ \n' if number == 1 else str(number)
    return {"number": odd, "traceparent": _TRACE}


EXPECTED: Expected = {number: _headers(number) for number in range(_COUNT)}


def _anew() -> list[Message]:
    return [Message(number, headers=headers) for number, headers in EXPECTED.items()]


class Scene:
    """A queue, and who pushes to it and reads from it."""

    def __init__(
        self, queen: Queen, server: ServerProcess, queue: str, dsn: str, folder: Path
    ) -> None:
        self.queen = queen
        self.server = server
        self.queue = queue
        self.dsn = dsn
        self.folder = folder


# ---- ways in ----


async def _one_by_one(scene: Scene) -> None:
    for message in _anew():
        await scene.queen.queue(scene.queue).push(message)


async def _frames(scene: Scene) -> None:
    await scene.queen.queue(scene.queue).push(_anew())


async def _json(scene: Scene) -> None:
    items = [
        {"queue": scene.queue, "payload": number, "headers": headers}
        for number, headers in EXPECTED.items()
    ]
    assert scene.server.api().push(*items).status == 201


async def _qos0(scene: Scene) -> None:
    await scene.queen.queue(scene.queue).qos0(max_ms=5).push(_anew())


async def _buffer(scene: Scene) -> None:
    queue = scene.queen.queue(scene.queue).buffer(5, 10)
    for message in _anew():
        await queue.push(message)
    await scene.queen.flush()


async def _client_spool(scene: Scene) -> None:
    async with (
        gate_to(scene.server.port) as gate,
        Queen(gate.url, spool=scene.folder) as producer,
    ):
        pushed = await producer.queue(scene.queue).push(_anew())
        assert {result.status for result in pushed} == {"buffered"}
        await gate.turn("open")
        await producer.flush()


async def _transaction(scene: Scene) -> None:
    async with scene.queen.transaction() as transaction:
        transaction.push(scene.queue, _anew())


async def _schedule(scene: Scene) -> None:
    soon = [Message(number, headers=headers, delay=0.2) for number, headers in EXPECTED.items()]
    await scene.queen.queue(scene.queue).push(soon)


async def _sql(scene: Scene) -> None:
    connection = await asyncpg.connect(scene.dsn)
    try:
        for number, headers in EXPECTED.items():
            sql = "select queen.push($1, 'Default', to_jsonb($2::integer), headers => $3::jsonb)"
            await connection.execute(sql, scene.queue, number, json.dumps(headers))
    finally:
        await connection.close()


Way = Callable[[Scene], Awaitable[None]]
WAYS_IN: list[Way] = [
    _one_by_one,
    _frames,
    _json,
    _qos0,
    _buffer,
    _client_spool,
    _transaction,
    _schedule,
    _sql,
]


# ---- ways out ----


async def _stored(scene: Scene) -> Expected:
    """Everything that is stored, read in bulk."""
    stored = scene.queen.queue(scene.queue).replay()
    return {message.data: message.headers async for message in stored}


async def _popped(scene: Scene, group: str) -> Expected:
    messages = (
        await scene.queen.queue(scene.queue).group(group).subscription_mode("all").pop(batch=100)
    )
    return {message.data: dict(message.headers) for message in messages}


async def _popped_as_json(scene: Scene) -> Expected:
    asked: Any = {"consumerGroup": "json", "subscriptionMode": "all", "batch": 100}
    messages = scene.server.api().pop(scene.queue, **asked).json["messages"]
    assert all("headers" not in message or message["headers"] for message in messages)
    return {message["data"]: message.get("headers", {}) for message in messages}


async def _browsed(scene: Scene) -> Expected:
    listed = scene.server.api().call(
        "GET", f"/api/v1/messages?queue={scene.queue}&limit=100&preview=100"
    )
    by_number: Expected = {}
    for entry in listed.json["messages"]:
        path = f"/api/v1/messages/{entry['partitionId']}/{entry['transactionId']}"
        detail = scene.server.api().call("GET", path).json
        assert detail["headers"] == entry.get("headers", {})
        by_number[detail["data"]] = detail["headers"]
    return by_number


async def _define_stream(scene: Scene) -> None:
    stream = scene.queen.stream(scene.queue).sources(scene.queue)
    await stream.count(_COUNT).grace_period(0).define()


async def _windowed(scene: Scene, group: str, inline_bytes: int) -> Expected:
    consumer = scene.queen.consumer(scene.queue, group).max_inline_bytes(inline_bytes)
    window = await consumer.poll_window(60)
    assert window is not None
    await window.ack()
    return {message.data: message.headers for message in window.all_messages}


async def _redriven(scene: Scene) -> Expected:
    queue = scene.queen.queue(scene.queue).group("dead").subscription_mode("all")
    for message in await queue.pop(batch=100):
        await message.dead_letter("on purpose")
    page = await queue.dlq().get()
    assert {letter.data: letter.headers for letter in page.messages} == EXPECTED
    assert await queue.dlq().retry() == _COUNT
    return {message.data: dict(message.headers) for message in await queue.pop(batch=100)}


async def _is_whole(scene: Scene) -> bool:
    return len(await _stored(scene)) == _COUNT


async def _check_all_ways_out(scene: Scene) -> None:
    await until_async(lambda: _is_whole(scene))
    assert await _stored(scene) == EXPECTED
    assert await _popped(scene, "frames") == EXPECTED
    assert await _popped_as_json(scene) == EXPECTED
    assert await _browsed(scene) == EXPECTED
    assert await _windowed(scene, "inline", 4_000_000) == EXPECTED
    assert await _windowed(scene, "fetched", 0) == EXPECTED
    assert await _redriven(scene) == EXPECTED


@pytest.fixture
async def scene(
    server: ServerProcess, queue: str, dsn: str, tmp_path: Path
) -> AsyncIterator[Scene]:
    async with Queen(server.url) as queen:
        yield Scene(queen, server, queue, dsn, tmp_path)


@pytest.mark.parametrize("way_in", WAYS_IN, ids=lambda way: way.__name__.strip("_"))
async def test_round_trips(scene: Scene, way_in: Way) -> None:
    await _define_stream(scene)
    await way_in(scene)
    await _check_all_ways_out(scene)


async def test_round_trips_through_a_front(
    start_server: Callable[..., ServerProcess], queue: str, dsn: str, tmp_path: Path
) -> None:
    """Of two workers one writes for both; whichever is asked, headers are there."""
    server = start_server("--database-url", dsn, "--workers", "2")
    for number, way_in in enumerate((_one_by_one, _frames, _qos0, _transaction)):
        # Each client has connections of its own, to one worker or the other.
        async with Queen(server.url) as queen:
            scene = Scene(queen, server, f"{queue}-{number}", dsn, tmp_path)
            await _define_stream(scene)
            await way_in(scene)
            await _check_all_ways_out(scene)


@pytest.mark.parametrize("way_in", [_frames, _json, _schedule, _qos0])
async def test_an_encrypted_queue_keeps_none_in_plain_text(scene: Scene, way_in: Way) -> None:
    await scene.queen.queue(scene.queue).config(encryption_enabled=True).create()
    await _define_stream(scene)
    connection = await asyncpg.connect(scene.dsn)
    try:
        await way_in(scene)
        waiting = await connection.fetch(
            "select headers from queen.staged where queue = $1", scene.queue
        )
        await _check_all_ways_out(scene)
        buried = scene.queen.queue(scene.queue).group("buried").subscription_mode("all")
        for message in await buried.pop(batch=100):
            await message.dead_letter("on purpose")
        letters = await connection.fetch(
            "select d.headers from queen.dead_letters d join queen.queues q on q.id = d.queue_id"
            " where q.name = $1",
            scene.queue,
        )
        segments = await connection.fetch(
            "select s.body as headers from queen.segments s"
            " join queen.queues q on q.id = s.queue_id where q.name = $1",
            scene.queue,
        )
    finally:
        await connection.close()
    assert len([row for row in letters if row["headers"]]) == sum(map(bool, EXPECTED.values()))
    for row in (*waiting, *letters, *segments):
        assert b"traceparent" not in (row["headers"] or b"")


# ---- limits ----

BAD: list[tuple[Any, str]] = [
    ({"n": 1}, "Expected `str`, got `int`"),
    (["a"], "Expected `object | null`"),
    ({"": "v"}, "a header's name has 0 bytes, not 1 to 256"),
    ({"x" * 257: "v"}, "a header's name has 257 bytes"),
    ({"a\tb": "v"}, "has a control character in its name"),
    ({"a": "\0"}, "has a NUL character in its value"),
    ({"a": "v" * 8193}, "header 'a' has 8193 bytes, over 8192"),
    ({f"h{n}": "" for n in range(65)}, "65 are more than 64"),
    ({f"h{n}": "v" * 8000 for n in range(3)}, "headers have 24006 bytes, over 16384"),
]


@pytest.mark.parametrize(("headers", "reason"), BAD)
async def test_bad_headers_fail_their_item_alone(scene: Scene, headers: Any, reason: str) -> None:
    items = [
        {"queue": scene.queue, "payload": 0, "headers": {"ok": "1"}},
        {"queue": scene.queue, "payload": 1, "headers": headers},
        {"queue": scene.queue, "payload": 2},
    ]
    answer = scene.server.api().push(*items)
    assert answer.status == 400
    (wrong,) = answer.json["items"]
    assert wrong["index"] == 1 and reason in wrong["reason"]
    assert {message["data"] for message in scene.server.api().messages(scene.queue, batch=9)} == {
        0,
        2,
    }


async def test_frames_with_bad_headers_name_the_message(scene: Scene) -> None:
    messages = [Message(n) for n in range(20)]
    messages[7].headers = {"k": "v" * 9000}
    with pytest.raises(InvalidItem, match="header 'k' has 9000 bytes") as refused:
        await scene.queen.queue(scene.queue).push(messages)
    assert refused.value.index == 7
    assert len(await _stored(scene)) == 19


@pytest.mark.parametrize("headers", [headers for headers, _ in BAD])
async def test_sql_refuses_the_same(
    connection: asyncpg.Connection, queue: str, headers: Any
) -> None:
    sql = "select queen.push($1, 'p', '1', headers => $2::jsonb)"
    # A text with NUL is no jsonb to begin with.
    with pytest.raises(asyncpg.PostgresError, match=r"header|u0000"):
        await connection.execute(sql, queue, json.dumps(headers))


async def test_sql_takes_as_much_as_fits(scene: Scene, connection: asyncpg.Connection) -> None:
    await scene.queen.queue(scene.queue).create()
    largest = {f"h{n:063}": "v" * 192 for n in range(64)}
    await connection.execute(
        "select queen.push_many($1, 'p', array['1', '2']::jsonb[], $2::jsonb)",
        scene.queue,
        json.dumps(largest),
    )
    # As it was called before there were headers.
    await connection.execute("select queen.push($1, 'p', '3', 'an-id')", scene.queue)

    async def are_all_there() -> bool:
        return len(await _stored(scene)) == 3

    await until_async(are_all_there)
    assert await _stored(scene) == {1: largest, 2: largest, 3: {}}


# ---- what JSON has no word for ----


async def test_bytes_and_decimals_come_back(scene: Scene) -> None:
    queue = scene.queen.queue(scene.queue)
    await queue.push([b"\x00\xff", bytearray(b"ab"), memoryview(b""), Decimal("1.10"), "AP8="])
    await queue.push(b"alone")
    await queue.push(Message(Decimal(7), headers={"k": "v"}))
    expected = [b"\x00\xff", b"ab", b"", Decimal("1.10"), "AP8=", b"alone", Decimal(7)]
    got = await queue.pop(batch=10)
    assert [message.data for message in got] == expected
    assert str(got[3].data) == "1.10"
    assert dict(got[0].headers) == {
        "content-type": "application/octet-stream",
        "content-encoding": "base64",
    }
    assert got[6].headers["k"] == "v"
    assert got[0].into(bytes) == b"\x00\xff"
    assert [message.data async for message in queue.replay()] == expected
    listed = scene.server.api().messages(scene.queue, batch=10, consumerGroup="other")
    assert [message["data"] for message in listed][:4] == ["AP8=", "YWI=", "", "1.10"]


async def test_a_mark_that_is_wrong_changes_nothing(scene: Scene) -> None:
    queue = scene.queen.queue(scene.queue)
    marked = {"content-encoding": "base64", "content-type": "application/vnd.queen.decimal"}
    await queue.push(["no base64", {"a": 1}, 7], headers=marked)
    assert [message.data for message in await queue.pop(batch=10)] == ["no base64", {"a": 1}, 7]


# ---- what is stored without them ----


async def test_messages_without_headers_are_stored_as_ever(scene: Scene) -> None:
    await scene.queen.queue(scene.queue).push(list(range(50)))
    await scene.queen.queue(scene.queue).push(50)
    for frame in scene.server.api().frames(scene.queue):
        assert frame.segment().extras == {}


async def test_a_deleted_message_leaves_no_headers(scene: Scene) -> None:
    await scene.queen.queue(scene.queue).push([Message(n, headers={"n": str(n)}) for n in (0, 1)])
    first = (await scene.queen.queue(scene.queue).pop())[0]
    path = f"/api/v1/messages/{first.partition_id}/{first.transaction_id}"
    assert scene.server.api().call("DELETE", path).status == 200
    (frame,) = scene.server.api().frames(scene.queue)
    assert frame.segment().column("headers") == [None, '{"n":"1"}']


async def test_a_queue_that_becomes_encrypted_takes_the_headers_of_its_dead_letters_along(
    scene: Scene, database: Database
) -> None:
    queue = scene.queen.queue(scene.queue)
    await queue.push(_anew())
    for message in await queue.pop(batch=100):
        await message.dead_letter("on purpose")
    await queue.config(encryption_enabled=True).alter()
    keys = KeyRing([bytes.fromhex(ENCRYPTION_KEY)])
    reencrypter, more = Reencrypter(SegmentEncryption(keys), wait_s=0), True
    while more:
        async with database.transaction() as transaction:
            more = await reencrypter.encrypt_some(transaction)
    connection = await asyncpg.connect(scene.dsn)
    try:
        stored = await connection.fetch(
            "select d.headers, d.codec from queen.dead_letters d"
            " join queen.queues q on q.id = d.queue_id where q.name = $1",
            scene.queue,
        )
    finally:
        await connection.close()
    assert {row["codec"] for row in stored} == {2}
    assert not any(b"traceparent" in (row["headers"] or b"") for row in stored)
    page = await queue.dlq().get()
    assert {letter.data: letter.headers for letter in page.messages} == EXPECTED
    assert await queue.dlq().retry() == _COUNT
    assert {m.data: dict(m.headers) for m in await queue.pop(batch=100)} == EXPECTED
