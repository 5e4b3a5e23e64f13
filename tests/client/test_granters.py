"""With several servers, whoever granted a lease is told what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec

from queen import Queen, Received, Window
from tests.client.fake import Fake, answer
from tests.conftest import ServerProcess

# So many that each of two servers is the right one for some.
NAMES = [f"q{number:02}" for number in range(20)]
SETTLED = answer("200 OK", b'{"results":[{"transactionId":"t","success":true}]}')
EXTENDED = answer("200 OK", b'{"seconds":60,"lease_expires_at":"2026-03-01T12:00:00Z"}')
DONE = answer("200 OK", b'{"success":true,"results":[],"pushed":[]}')


def popped(name: str) -> bytes:
    message = {
        "id": "m",
        "transactionId": "t",
        # Hashed, these ids and the names of the queues lead to different servers.
        "partitionId": f"partition-{name}",
        "partition": "Default",
        "data": 1,
        "leaseId": f"lease-{name}",
        "createdAt": "2026-03-01T12:00:00Z",
    }
    claim = {"partitionId": f"partition-{name}", "leaseMs": 60_000, "epoch": 1}
    return answer("200 OK", msgspec.json.encode({"messages": [message], "claims": [claim]}))


def polled(name: str) -> bytes:
    window = {
        "id": "w",
        "leaseId": f"lease-{name}",
        "key": "k",
        "start": "2026-03-01T12:00:00Z",
        "end": "2026-03-01T12:01:00Z",
        "leaseTimeoutMs": 60_000,
        "messages": [],
    }
    return answer("200 OK", msgspec.json.encode({"window": window}))


def respond(request: bytes) -> bytes:
    """Answer as a broker does, whatever is asked."""
    path = request.split(b" ", 2)[1]
    name = next((one for one in NAMES if one.encode() in request), "")
    if path.startswith(b"/api/v1/pop"):
        return popped(name)
    if path == b"/api/v1/stream/poll":
        return polled(name)
    if path.endswith((b"/extend", b"/renew-lease")):
        return EXTENDED
    return SETTLED if path == b"/api/v1/ack/batch" else DONE


@contextlib.asynccontextmanager
async def two_servers() -> AsyncIterator[tuple[Queen, list[Fake]]]:
    fakes = [Fake(respond), Fake(respond)]
    async with contextlib.AsyncExitStack() as running:
        for one in fakes:
            await running.enter_async_context(one.running())
        urls = [one.url for one in fakes]
        yield await running.enter_async_context(Queen(urls, retry_s=0)), fakes


def check_each_went_where_it_was_granted(fakes: list[Fake], requests: int) -> None:
    """Every server has heard all that there is to say of a lease, or nothing."""
    for name in NAMES:
        asked = [sum(name.encode() in one for one in fake.requests) for fake in fakes]
        assert sorted(asked) == [0, requests], name
    assert all(fake.requests for fake in fakes)


async def test_acks_renewals_and_transactions_go_to_who_granted_the_lease() -> None:
    async with two_servers() as (queen, fakes):
        for name in NAMES:
            (message,) = await queen.queue(name).pop()
            await message.renew()
            await message.nack()
            await queen.transaction().ack(message).commit()
        check_each_went_where_it_was_granted(fakes, 4)


async def test_messages_of_several_servers_are_acked_together() -> None:
    async with two_servers() as (queen, fakes):
        messages = [(await queen.queue(name).pop())[0] for name in NAMES]
        await queen.ack(messages)
        assert all(one.is_settled for one in messages)
        check_each_went_where_it_was_granted(fakes, 2)
        assert [len([one for one in fake.requests if b"/ack" in one]) for fake in fakes] == [1, 1]


async def test_consumers_ack_where_they_popped() -> None:
    async def handler(_message: Received) -> None:
        pass

    async with two_servers() as (queen, fakes):
        for name in NAMES[:10]:
            await queen.queue(name).limit(1).consume(handler)
        for name in NAMES[10:]:
            async for _ in queen.queue(name).limit(1).consume():
                pass
        check_each_went_where_it_was_granted(fakes, 2)


async def test_windows_are_settled_where_they_were_polled() -> None:
    async def handler(window: Window) -> None:
        await window.renew()

    async with two_servers() as (queen, fakes):
        for name in NAMES:
            await queen.consumer(name, "g").limit(1).process(handler, signals=False)
        check_each_went_where_it_was_granted(fakes, 3)


async def test_another_server_is_told_when_the_one_that_granted_is_away(
    start_server: Callable[..., ServerProcess], dsn: str, queue: str
) -> None:
    servers = [start_server("--database-url", dsn) for _ in range(2)]
    async with Queen([one.url for one in servers], retry_s=20) as queen:
        mine = queen.queue(queue).group("g")
        await mine.push([1, 2, 3])
        first, second, third = await mine.pop(batch=3, wait_s=20)
        (granter,) = [one for one in servers if one.url == first._server]
        await asyncio.to_thread(granter.kill)
        await first.renew(60)
        await first.ack()
        await queen.transaction().ack(second).push(f"{queue}-out", "done").commit()
        await third.nack("not yet")
        (again,) = await mine.pop(wait_s=30)
        assert (again.data, again.attempt) == (3, 2)
        await again.ack()
