"""What the README promises of streams, asked of servers through their port for Redis clients."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from queen import Queen
from tests.conftest import ServerProcess
from tests.integration.test_serve import Start
from tests.ports import free_port
from tests.waiting import until_async

# The types of redis-py allow for every reply of every version.
Client = Any
Open = Callable[[], tuple[ServerProcess, Client]]


@pytest.fixture
async def open_server(start_server: Start, dsn: str) -> AsyncIterator[Open]:
    """Starts servers of one database, each with a client."""
    clients: list[Client] = []

    def start() -> tuple[ServerProcess, Client]:
        port = free_port()
        running = start_server("--database-url", dsn, "--resp-port", str(port))
        clients.append(Redis(port=port, decode_responses=True, protocol=2))
        return running, clients[-1]

    yield start
    for client in clients:
        await client.aclose()


@pytest.fixture
def stream() -> str:
    return f"entries-{uuid.uuid4().hex[:8]}"


async def test_what_was_answered_outlives_a_server_that_is_killed(
    open_server: Open, stream: str
) -> None:
    server, client = open_server()
    await client.xgroup_create(stream, "group", "0", mkstream=True)
    await client.execute_command("XGROUP", "SETLIMIT", stream, "group", 7)
    ids = [await client.xadd(stream, {"number": number}) for number in range(20)]
    await client.xreadgroup("group", "worker", {stream: ">"}, count=10)
    await client.xack(stream, "group", *ids[:4])
    await client.execute_command("XNACK", stream, "group", "FAIL", "IDS", 1, ids[4])
    await client.xdel(stream, ids[-1])
    asked: list[tuple[Any, ...]] = [
        ("XRANGE", stream, "-", "+"),
        ("XPENDING", stream, "group"),
        ("XINFO", "STREAM", stream),
        ("XINFO", "GROUPS", stream),
    ]
    before = [await client.execute_command(*command) for command in asked]
    server.kill()
    _, client = open_server()
    assert [await client.execute_command(*command) for command in asked] == before


async def test_a_server_answers_what_another_has_just_been_told(
    open_server: Open, stream: str
) -> None:
    clients = [open_server()[1], open_server()[1]]
    await clients[0].xgroup_create(stream, "group", "0", mkstream=True)
    for number in range(20):
        told, asked = clients[number % 2], clients[1 - number % 2]
        entry_id = await told.xadd(stream, {"number": number})
        assert (await asked.xrevrange(stream, count=1))[0][0] == entry_id
        [[_, [(delivered, _)]]] = await asked.xreadgroup("group", "worker", {stream: ">"})
        assert delivered == entry_id
        assert (await told.xpending(stream, "group"))["pending"] == 1
        assert await told.xack(stream, "group", entry_id) == 1
        assert (await asked.xpending(stream, "group"))["pending"] == 0


async def test_each_entry_goes_to_one_consumer_of_a_group_on_any_server(
    open_server: Open, stream: str
) -> None:
    clients = [open_server()[1], open_server()[1]]
    await clients[0].xgroup_create(stream, "group", "0", mkstream=True)
    total = 200

    async def add(client: Client, start: int) -> None:
        for number in range(start, total, 2):
            await client.xadd(stream, {"number": number})

    async def read(client: Client, consumer: str) -> list[str]:
        ids: list[str] = []
        while streams := await client.xreadgroup(
            "group", consumer, {stream: ">"}, count=3, block=2000
        ):
            ids += [entry_id for entry_id, _ in streams[0][1]]
            await client.xack(stream, "group", *ids[-3:])
        return ids

    readers = [read(client, f"{at}-{n}") for at, client in enumerate(clients) for n in range(2)]
    adding = [add(client, start) for start, client in enumerate(clients)]
    *deliveries, _, _ = await asyncio.gather(*readers, *adding)
    delivered = [entry_id for ids in deliveries for entry_id in ids or []]
    assert len(delivered) == len(set(delivered)) == total
    assert all(ids == sorted(ids, key=_order) for ids in deliveries if ids)
    (info,) = await clients[0].xinfo_groups(stream)
    assert (info["pending"], info["lag"]) == (0, 0)


def _order(entry_id: str) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split("-")))


async def test_a_reader_that_waits_is_told_of_what_another_server_took(
    open_server: Open, stream: str
) -> None:
    (_, waiter), (other, producer) = open_server(), open_server()
    await producer.xgroup_create(stream, "group", "0", mkstream=True)

    async def next_entry() -> Any:
        return await waiter.xreadgroup("group", "worker", {stream: ">"}, block=60_000)

    async def is_waiting() -> bool:
        return bool((await waiter.info())["blocked_clients"])

    waiting = asyncio.create_task(next_entry())
    await until_async(is_waiting)
    entry_id = await producer.xadd(stream, {"from": "elsewhere"})
    assert await waiting == [[stream, [(entry_id, {"from": "elsewhere"})]]]
    waiting = asyncio.create_task(next_entry())
    await until_async(is_waiting)
    message = {"items": [{"queue": stream, "payload": {"from": "a push"}}]}
    assert other.api().call("POST", "/api/v1/push", message).status == 201
    [[_, [(_, fields)]]] = await waiting
    assert fields == {"data": '{"from": "a push"}'}


async def test_a_transaction_over_streams_is_all_or_nothing(open_server: Open, stream: str) -> None:
    """Whoever looks sees as many entries in both streams."""
    (_, writer), (_, looker) = open_server(), open_server()
    both = (f"{stream}-a", f"{stream}-b")

    async def write() -> None:
        for number in range(50):
            async with writer.pipeline(transaction=True) as unit:
                for name in both:
                    unit.xadd(name, {"number": number})
                await unit.execute()

    async def look() -> set[bool]:
        seen: set[bool] = set()
        while not writing.done():
            async with looker.pipeline(transaction=True) as unit:
                for name in both:
                    unit.xlen(name)
                first, second = await unit.execute()
            seen.add(first == second)
        return seen

    writing = asyncio.create_task(write())
    assert await look() <= {True}
    await writing
    assert [await looker.xlen(name) for name in both] == [50, 50]


async def test_an_entry_is_a_message_and_a_message_is_an_entry(
    open_server: Open, stream: str
) -> None:
    server, client = open_server()
    ids = [
        await client.xadd(stream, {"data": '{"total": 12}'}),
        await client.xadd(stream, {"item": "tea", "pieces": "2"}),
        await client.xadd(stream, {b"\xff": b"\x00"}),
    ]
    api = server.api()
    message = {"items": [{"queue": stream, "payload": {"pushed": True}}]}
    assert api.call("POST", "/api/v1/push", message).status == 201
    popped = api.call("GET", f"/api/v1/pop/queue/{stream}?batch=10").json["messages"]
    assert [(each["transactionId"], each["data"]) for each in popped[:3]] == [
        (ids[0], {"total": 12}),
        (f"{ids[1]}/fields", {"item": "tea", "pieces": "2"}),
        (f"{ids[2]}/bytes", {"fields": [["/w==", "AA=="]]}),
    ]
    assert [each["partition"] for each in popped] == ["Default"] * 4
    [(_, fields)] = await client.xrevrange(stream, count=1)
    assert fields == {"data": '{"pushed": true}'}


async def test_entries_are_in_the_windows_of_their_queue(open_server: Open, stream: str) -> None:
    server, client = open_server()
    async with Queen(server.url) as queen:
        windows = queen.stream(f"windows-{stream}").sources(stream).tumbling_time(0.5)
        await windows.grace_period(0).define()
        await client.xadd(stream, {"item": "tea"})
        await client.xadd(stream, {"data": '{"item": "cup"}'})
        consumer = queen.consumer(windows.name, "group")
        seen: list[Any] = []
        while len(seen) < 2:
            window = await consumer.poll_window(10)
            assert window is not None
            seen += [message.data for message in window.messages]
            await window.ack()
    assert seen == [{"item": "tea"}, {"item": "cup"}]
