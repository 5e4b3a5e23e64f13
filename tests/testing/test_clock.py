"""Time that passes at once has the effects of time that passes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from queen import Message, Queen, SyncQueen
from queen.errors import LeaseLost, QueenError
from queen.testing import Clock, RunningServer, SyncClock, expect
from tests.conftest import ServerProcess


async def test_a_retry_delay_passes(queen: Queen, queue_name: str, queen_clock: Clock) -> None:
    queue = queen.queue(queue_name)
    await queue.config(retry_delay=600_000).create()
    await queue.push({"n": 1})
    (message,) = await queue.pop(wait_s=20)
    await message.nack("not now")
    assert await queue.pop(wait_s=0) == []
    await queen_clock.advance(601, queue=queue_name)
    (again,) = await queue.pop(wait_s=20)
    assert again.data == {"n": 1}
    assert again.attempt == 2


@pytest.mark.parametrize("option", ["delayed_processing", "window_buffer"])
async def test_what_holds_messages_back_passes(
    queen: Queen, queue_name: str, queen_clock: Clock, option: str
) -> None:
    queue = queen.queue(queue_name)
    await queue.config({option: 600}).create()
    await queue.push({"n": 1})
    assert await queue.pop(wait_s=0) == []
    await queen_clock.advance(timedelta(seconds=590), queue=queue_name)
    assert await queue.pop(wait_s=0) == []
    await queen_clock.advance(11, queue=queue_name)
    assert [one.data for one in await queue.pop(wait_s=20)] == [{"n": 1}]


async def test_a_parked_poll_is_served_when_a_lease_lapses(
    queen: Queen, queue_name: str, queen_clock: Clock
) -> None:
    queue = queen.queue(queue_name)
    await queue.config(lease_time=600).create()
    await queue.push({"n": 1})
    (first,) = await queue.pop(wait_s=20)
    polling = asyncio.create_task(queue.pop(wait_s=20))
    await queen_clock.advance(500, queue=queue_name)
    # The lease has 100 seconds left: who holds it may still prolong it.
    await first.renew(600)
    assert not polling.done()
    await queen_clock.advance(601, queue=queue_name)
    (second,) = await asyncio.wait_for(polling, 10)
    with pytest.raises(LeaseLost):
        await first.ack()
    await second.ack()
    await expect(queen, queue_name).to_be_empty()


async def test_a_live_lease_survives_a_smaller_step(
    queen: Queen, queue_name: str, queen_clock: Clock
) -> None:
    queue = queen.queue(queue_name)
    await queue.config(lease_time=600).create()
    await queue.push([{"n": 1}, {"n": 2}])
    messages = await queue.pop(wait_s=20, batch=2)
    await queen_clock.advance(300, queue=queue_name)
    assert await queue.pop(wait_s=0) == []
    await queen.ack(messages)
    await expect(queen, queue_name).to_be_empty()


async def test_a_scheduled_message_is_there_at_once(
    queen: Queen, queue_name: str, queen_clock: Clock
) -> None:
    await queen.queue(queue_name).push(Message({"n": 1}, delay=3600))
    await expect(queen, queue_name).to_have(scheduled=1, total=0)
    await queen_clock.advance(3600, queue=queue_name)
    await expect(queen, queue_name).to_have(scheduled=0, total=1)


async def test_retention_removes_what_is_old_by_then(
    queen: Queen, queue_name: str, queen_clock: Clock
) -> None:
    queue = queen.queue(queue_name)
    await queue.config(retention_enabled=True, retention_seconds=3600).create()
    await queue.push({"n": 1})
    await queen_clock.advance(3601, queue=queue_name)
    await queue.push({"n": 2})
    assert await expect(queen, queue_name).messages(1) == [{"n": 2}]


async def test_what_was_popped_from_memory_is_older_too(
    queen: Queen, queue_name: str, queen_clock: Clock
) -> None:
    queue = queen.queue(queue_name)
    await queue.push({"n": 1})
    (before,) = await queue.group("a").pop(wait_s=20)
    await queen_clock.advance(3600, queue=queue_name)
    (after,) = await queue.group("b").pop(wait_s=20)
    assert before.created_at - after.created_at == timedelta(hours=1)


async def test_other_queues_are_left_alone(
    queen: Queen, queue_name: str, queen_clock: Clock
) -> None:
    other = queen.queue(f"{queue_name}-other")
    await other.config(delayed_processing=600).create()
    try:
        await other.push({"n": 1})
        await queen_clock.advance(601, queue=queue_name)
        assert await other.pop(wait_s=0) == []
        await queen_clock.advance(601)
        assert [one.data for one in await other.pop(wait_s=20)] == [{"n": 1}]
    finally:
        await other.delete()


def test_the_clock_without_asyncio(
    sync_queen: SyncQueen, queue_name: str, sync_queen_clock: SyncClock
) -> None:
    queue = sync_queen.queue(queue_name)
    queue.config(delayed_processing=600).create()
    queue.push({"n": 1})
    sync_queen_clock.advance(601, queue=queue_name)
    assert [one.data for one in queue.pop(wait_s=20)] == [{"n": 1}]


@pytest.mark.parametrize("seconds", [-1, 1e12])
async def test_a_step_that_is_none_is_refused(queen_clock: Clock, seconds: float) -> None:
    with pytest.raises(QueenError, match="seconds"):
        await queen_clock.advance(seconds)


async def test_a_server_that_is_not_for_tests_has_no_such_clock(server: ServerProcess) -> None:
    async with Queen(server.url) as queen:
        with pytest.raises(QueenError, match="--test-clock"):
            await Clock(queen).advance(1)


@pytest.fixture
def two_servers(dsn: str) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    first = ServerProcess("--database-url", dsn, "--test-clock")
    second = ServerProcess("--database-url", dsn, "--test-clock")
    yield first, second
    assert first.stop() == second.stop() == 0


async def test_other_servers_look_again_too(
    two_servers: tuple[ServerProcess, ServerProcess], queue: str
) -> None:
    first, second = two_servers
    async with Queen(first.url) as here, Queen(second.url) as there:
        await here.queue(queue).config(delayed_processing=600).create()
        await there.queue(queue).push({"n": 1})
        polling = asyncio.create_task(there.queue(queue).pop(wait_s=20))
        await expect(there, queue).to_have(pending=1)
        await Clock(here).advance(601, queue=queue)
        # Sooner than the sweep would find it.
        assert [one.data for one in await asyncio.wait_for(polling, 10)] == [{"n": 1}]
        (again,) = await there.queue(queue).group("second").pop(wait_s=20)
        assert again.data == {"n": 1}
        await there.queue(queue).delete()


async def test_the_clock_is_in_the_document_of_a_test_server(
    queen: Queen, queen_server: RunningServer
) -> None:
    document = await queen.request("GET", "/api/v1/openapi.json")
    assert "/api/v1/test/advance" in document["paths"]
    assert queen_server.url.startswith("http://127.0.0.1:")
