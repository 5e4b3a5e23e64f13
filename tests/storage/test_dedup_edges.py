"""Dedup where what a server remembers could be wrong: each edge has a number that tells."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import numpy as np
import pytest

from queen.core.options import QueueOptions
from queen.service.broker import Broker, Limits
from queen.service.catalog import Partition
from queen.service.log import dedup as dedup_module
from queen.service.log import dedup_index
from queen.service.log.append import Append
from tests.waiting import until_async

_TAIL = 1 << 14


@pytest.fixture
async def brokers(dsn: str) -> AsyncIterator[tuple[Broker, Broker]]:
    limits = Limits(dedup_hashes=300_000, connections=4)
    one, other = await Broker.start(dsn, limits), await Broker.start(dsn, limits)
    yield one, other
    await one.stop()
    await other.stop()


async def _queue(broker: Broker, **options: Any) -> str:
    name = f"edge-{uuid.uuid4().hex[:8]}"
    await broker.queues.configure(name, "", "", QueueOptions(**options))
    return name


async def _push(
    broker: Broker, queue: str, *ids: str, partition: str = "p"
) -> list[tuple[int, bool]]:
    append = Append(queue, partition, [name.encode() for name in ids], [b"1"] * len(ids), 100)
    await broker.pusher.push([append])
    return [(append.offset_of(at), append.is_duplicate(at)) for at in range(len(ids))]


async def _partition(broker: Broker, queue: str) -> Partition:
    owner = await broker.catalog.queue(queue)
    assert owner is not None
    partition = await broker.catalog.partition(owner, "p")
    assert partition is not None
    return partition


def _age(broker: Broker, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let a server believe that time has passed, and let it drop what it then may."""
    later = time.monotonic() + seconds
    monkeypatch.setattr(broker.dedup.recent, "_clock", lambda: later)
    # What is gathered is sorted away, and looked at for its age, when there is enough of it.
    broker.dedup.recent.add(np.arange(3 * _TAIL, dtype=np.uint64) + np.uint64(seconds * 10**6))


async def test_a_window_above_ten_minutes_is_kept_for_a_new_partition(
    brokers: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = brokers
    queue = await _queue(one, dedup_window_seconds=3600)
    await _push(one, queue, "a")
    _age(one, monkeypatch, 1)
    _age(one, monkeypatch, 1000)
    assert await _push(one, queue, "a") == [(0, True)]


async def test_a_window_that_was_made_longer_knows_what_the_shorter_one_forgot(
    brokers: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = brokers
    queue = await _queue(one, dedup_window_seconds=600)
    await _push(one, queue, "a", "b")
    _age(one, monkeypatch, 1)
    _age(one, monkeypatch, 1000)
    await one.queues.configure(queue, "", "", QueueOptions(dedup_window_seconds=3600))
    assert await _push(one, queue, "a", "c") == [(0, True), (2, False)]


async def test_a_push_between_the_comparison_and_the_commit_of_a_transaction_is_seen(
    brokers: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction looks closely at one partition while another of it is written to."""
    one, _ = brokers
    queue = await _queue(one)
    await _push(one, queue, "first", partition="p")
    await _push(one, queue, "again", partition="slow")
    looking, may_go_on = asyncio.Event(), asyncio.Event()
    verify = one.dedup._verify_recent

    async def slowly(*arguments: Any) -> None:
        looking.set()
        await may_go_on.wait()
        await verify(*arguments)

    monkeypatch.setattr(one.dedup, "_verify_recent", slowly)
    appends = [
        Append(queue, "p", [b"same"], [b"1"], 100),
        Append(queue, "slow", [b"again"], [b"1"], 100),
    ]
    transaction = asyncio.create_task(one.transactor.run(appends, [], [], []))
    await looking.wait()
    assert await _push(one, queue, "same") == [(1, False)]
    may_go_on.set()
    await transaction
    assert (appends[0].offset_of(0), appends[0].is_duplicate(0)) == (1, True)


async def test_much_that_others_wrote_is_loaded_in_pages(
    brokers: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup_module, "_PAGE_HASHES", 30_000)
    one, other = brokers
    queue = await _queue(one)
    await _push(one, queue, "mine")
    for n in range(11):
        await _push(other, queue, *(f"{n}-{m}" for m in range(10_000)))
    assert await _push(one, queue, "0-0", "5-123", "mine", "new") == [
        (1, True),
        (50_124, True),
        (0, True),
        (110_001, False),
    ]
    # A server that has never written there.
    assert await _push(other, queue, "mine") == [(0, True)]


async def test_a_search_for_a_repeat_reads_its_page_only(
    brokers: tuple[Broker, Broker], connection: asyncpg.Connection
) -> None:
    """Also in a table that nobody has counted."""
    one, _ = brokers
    queue = await _queue(one, dedup="off")
    await _push(one, queue, "x")
    partition = await _partition(one, queue)
    await connection.execute(
        "insert into queen.segments select $1, n, n + 1, clock_timestamp(), $2, 0,"
        " int8send(n), 'x' from generate_series(1, 40000) n",
        partition.id,
        partition.queue.id,
    )
    for _ in range(2):
        # The first time it also looks up what the function is.
        plan = await connection.fetchval(
            "explain (analyze, buffers, format json)"
            " select * from queen.hashes_before($1, 0, 40001, 64)",
            partition.id,
        )
    (top,) = json.loads(plan)
    blocks = top["Plan"]["Shared Hit Blocks"] + top["Plan"]["Shared Read Blocks"]
    # All of them lie on more than four hundred blocks.
    assert blocks < 200, blocks
    await connection.execute("delete from queen.segments where partition_id = $1", partition.id)


# ---- options that others changed ----


async def _are(things: list[str], count: int) -> bool:
    return len(things) >= count


async def test_a_switch_to_forever_beside_traffic_forgets_no_id(
    brokers: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup_index, "_PAGE_MESSAGES", 50)
    queue = await _queue(brokers[0])
    pushed: list[str] = []
    stop = asyncio.Event()

    async def pusher(broker: Broker, name: str) -> None:
        number = 0
        while not stop.is_set():
            ids = [f"{name}-{number}-{n}" for n in range(3)]
            await _push(broker, queue, *ids)
            pushed.extend(ids)
            number += 1

    pushers = [
        asyncio.create_task(pusher(broker, f"{at}-{n}"))
        for at, broker in enumerate(brokers)
        for n in range(3)
    ]
    await until_async(lambda: _are(pushed, 600))
    queue_id, _ = await brokers[0].queues.configure(queue, "", "", QueueOptions(dedup="forever"))
    assert await brokers[0].indexer.wait_until_complete(queue_id, 60)
    before = len(pushed)
    await until_async(lambda: _are(pushed, before + 300))
    stop.set()
    await asyncio.gather(*pushers)
    for broker in brokers:
        again = await _push(broker, queue, *pushed)
        assert all(is_duplicate for _, is_duplicate in again)


async def test_an_append_made_for_other_options_is_made_again(
    brokers: tuple[Broker, Broker],
) -> None:
    """The other server has not heard that the queue keeps ids for ever."""
    one, other = brokers
    queue = await _queue(one, dedup="off")
    await _push(other, queue, "a")
    await one.queues.configure(queue, "", "", QueueOptions(dedup="forever"))
    # As if the signal had been lost, and the options were fresh.
    known = await other.catalog.queue(queue)
    assert known is not None
    known.options, known.options_text, known.revision = QueueOptions(dedup="off"), "", 0
    known.loaded_at = time.monotonic()
    await _push(other, queue, "b")
    assert await _push(one, queue, "b") == [(1, True)]


async def test_a_queue_is_indexed_beside_its_pushes(
    brokers: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the index is built, the window holds; and what came before counts at the end."""
    one, other = brokers
    queue = await _queue(one)
    await _push(one, queue, "old")
    index = one.indexer._page
    may_index = asyncio.Event()

    async def later(*arguments: Any) -> bool:
        await may_index.wait()
        return await index(*arguments)

    for broker in brokers:
        monkeypatch.setattr(broker.indexer, "_page", later)
    queue_id, _ = await one.queues.configure(queue, "", "", QueueOptions(dedup="forever"))
    assert not await one.indexer.wait_until_complete(queue_id, 0)
    assert await _push(other, queue, "new", "old") == [(1, False), (0, True)]
    may_index.set()
    assert await one.indexer.wait_until_complete(queue_id, 60)
    assert await _push(other, queue, "new", "old") == [(1, True), (0, True)]


async def test_the_same_configuration_again_changes_nothing(
    brokers: tuple[Broker, Broker], connection: asyncpg.Connection
) -> None:
    one, _ = brokers
    queue = await _queue(one, lease_time=17)
    sql = "select revision from queen.queues where name = $1"
    before = await connection.fetchval(sql, queue)
    await one.queues.configure(queue, "", "", QueueOptions(lease_time=17))
    assert await connection.fetchval(sql, queue) == before
    await one.queues.configure(queue, "", "", QueueOptions(lease_time=18))
    assert await connection.fetchval(sql, queue) == before + 1


# ---- a database that went back in time ----


async def test_what_was_written_after_the_database_went_back_is_compared(
    brokers: tuple[Broker, Broker], connection: asyncpg.Connection
) -> None:
    """One server knows eight messages. The database loses four, the other server writes six."""
    one, other = brokers
    queue = await _queue(one)
    for n in range(8):
        await _push(one, queue, f"{n}")
    partition = await _partition(one, queue)
    await connection.execute(
        "delete from queen.segments where partition_id = $1 and base_offset >= 4", partition.id
    )
    await connection.execute("update queen.partitions set head = 4 where id = $1", partition.id)
    for n in range(10, 16):
        await _push(other, queue, f"{n}")
    for n in range(10, 16):
        assert await _push(one, queue, f"{n}") == [(n - 6, True)]
    # What was lost is taken again.
    assert await _push(one, queue, "5") == [(10, False)]
