"""Claims of shared groups where something is in the way: a lost answer, a grant that goes back, an
answer that is too large, messages of other groups, too much that is out."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from queen.core.cursor import AckStatus
from queen.core.options import QueueOptions
from queen.errors import OutcomeUnknown
from queen.service.acks.ack_batch import OffsetBatch
from queen.service.broker import Broker, Limits
from queen.service.catalog import Queue
from queen.service.consume.feeds import Grant, Pop
from queen.service.log.append import Append
from tests.waiting import until_async, until_met


@pytest.fixture
async def broker(dsn: str) -> AsyncIterator[Broker]:
    started = await Broker.start(dsn, Limits(dedup_hashes=100_000, connections=3))
    yield started
    await started.stop()


async def _queue(broker: Broker, count: int = 6, payload: bytes = b"1", **options: Any) -> Queue:
    """A queue whose groups are shared, with messages in one partition, each in its own segment."""
    name = f"shared-{uuid.uuid4().hex[:8]}"
    wanted = QueueOptions(shared_groups=True, retry_delay=0, **options)
    await broker.queues.configure(name, "", "", wanted)
    for number in range(count):
        ids = [str(number).encode()]
        await broker.pusher.push([Append(name, "p", ids, [payload], len(payload))])
    queue = await broker.catalog.queue(name)
    assert queue is not None
    return queue


async def _pop(broker: Broker, queue: Queue, batch: int, **how: Any) -> Grant | None:
    grants = await broker.popper.pop([queue], Pop("g", batch, named="p", **how), 0)
    broker.popper.release(grants)
    return grants[0] if grants else None


async def _ack(broker: Broker, queue: Queue, grant: Grant) -> OffsetBatch:
    feed = broker.dispatcher.feed(queue.id, "g")
    assert feed is not None
    batch = OffsetBatch(grant.partition, "g", feed.group_id, grant.lease_id)
    batch.runs, batch.count = [(grant.start, grant.stop)], grant.stop - grant.start
    await broker.acker.ack([batch])
    return batch


async def _spans(connection: asyncpg.Connection, grant: Grant) -> list[tuple[int, int, int]]:
    rows = await connection.fetch(
        "select first_offset, end_offset, attempts from queen.shared_spans "
        "where partition_id = $1 order by 1",
        grant.partition.id,
    )
    return [tuple(row) for row in rows]


async def test_a_claim_whose_answer_was_lost_is_recognised(
    broker: Broker, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await _queue(broker)
    assert (await _pop(broker, queue, 1)) is not None
    fetch = broker.hot.fetch

    async def lose_the_answer(statement: str, *arguments: Any) -> Any:
        rows = await fetch(statement, *arguments)
        if statement == "claim_shared":
            monkeypatch.setattr(broker.hot, "fetch", fetch)
            raise OutcomeUnknown
        return rows

    monkeypatch.setattr(broker.hot, "fetch", lose_the_answer)
    grant = await _pop(broker, queue, 2)
    assert grant is not None and (grant.start, grant.stop) == (1, 3)
    # It was leased once.
    assert await _spans(connection, grant) == [(0, 1, 1), (1, 3, 1)]
    assert (await _ack(broker, queue, grant)).lost == 0


async def test_what_nobody_reads_goes_back_and_is_not_counted(
    broker: Broker, connection: asyncpg.Connection
) -> None:
    queue = await _queue(broker)
    first, second = await _pop(broker, queue, 2), await _pop(broker, queue, 2)
    assert first is not None and second is not None
    broker.popper.give_back([first])
    again: list[Grant] = []

    async def comes_again() -> bool:
        grant = await _pop(broker, queue, 1)
        if grant is not None:
            again.append(grant)
        return grant is not None and grant.start < 2

    await until_async(comes_again)
    assert again[-1].attempt == 1
    assert (await _ack(broker, queue, first)).lost == 2
    assert (await _ack(broker, queue, second)).lost == 0


async def test_an_answer_that_is_too_large_leaves_the_rest_to_others(
    broker: Broker, connection: asyncpg.Connection
) -> None:
    queue = await _queue(broker, count=4, payload=b'"' + b"x" * 4_000_000 + b'"')
    first = await _pop(broker, queue, 4)
    assert first is not None and first.stop < 4
    rest = await _pop(broker, queue, 4)
    assert rest is not None and (rest.start, rest.attempt) == (first.stop, 1)
    for grant in (rest, first):
        assert (await _ack(broker, queue, grant)).lost == 0
    while (last := await _pop(broker, queue, 4, auto_ack=True)) is not None:
        assert last.start >= rest.stop
    assert await _spans(connection, first) == []


async def test_letters_of_another_group_are_passed_over(
    broker: Broker, connection: asyncpg.Connection
) -> None:
    queue = await _queue(broker, count=2)
    await broker.pusher.push(
        [Append(queue.name, "p", [b"x"], [b"1"], 1, {"onlyGroup": ["another"]})]
    )
    first, second = await _pop(broker, queue, 2), await _pop(broker, queue, 2)
    assert first is not None and second is None
    assert (await _ack(broker, queue, first)).lost == 0
    assert await _spans(connection, first) == []
    at = "select committed from queen.cursors where partition_id = $1"
    assert await connection.fetchval(at, first.partition.id) == 3


async def test_no_more_than_a_bound_is_out(broker: Broker, connection: asyncpg.Connection) -> None:
    queue = await _queue(broker, retry_limit=9)
    first = await _pop(broker, queue, 2)
    assert first is not None
    await connection.execute(
        "update queen.cursors set in_flight = in_flight + 100000 where partition_id = $1",
        first.partition.id,
    )
    assert await _pop(broker, queue, 1) is None
    await connection.execute(
        "update queen.cursors set in_flight = in_flight - 100000 where partition_id = $1",
        first.partition.id,
    )
    fresh = await _pop(broker, queue, 1)
    assert fresh is not None and fresh.start == 2


async def test_what_fails_again_and_again_takes_turns_with_what_is_new(broker: Broker) -> None:
    queue = await _queue(broker, count=8, dlq_after_max_retries=False)
    seen: list[int] = []
    while 7 not in seen:
        grant = await _pop(broker, queue, 1)
        assert grant is not None
        seen.append(grant.start)
        assert len(seen) < 40, seen
        if grant.start:
            await _ack(broker, queue, grant)
            continue
        feed = broker.dispatcher.feed(queue.id, "g")
        assert feed is not None
        batch = OffsetBatch(grant.partition, "g", feed.group_id, grant.lease_id, count=1)
        batch.failed = {0: AckStatus.FAILED}
        await broker.acker.ack([batch])
    assert seen.count(0) >= 3


async def test_a_group_turned_by_another_server_is_served_as_it_is(
    broker: Broker, dsn: str, connection: asyncpg.Connection
) -> None:
    queue = await _queue(broker)
    assert await _pop(broker, queue, 1) is not None
    other = await Broker.start(dsn, Limits(dedup_hashes=100_000, connections=3))
    try:
        (group,) = await other.groups.find("g", queue.name)
        await other.groups.share([group], shared=False)
        feed = broker.dispatcher.feed(queue.id, "g")
        assert feed is not None
        await until_met(lambda: feed.said is False)
        assert await _pop(broker, queue, 1) is None
        await other.groups.share([group], shared=True)
        grant = await _pop(broker, queue, 1)
        assert grant is not None and grant.start == 1
    finally:
        await other.stop()
