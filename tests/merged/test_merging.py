"""When segments are merged, how large they become, and who is at the same rows meanwhile."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from queen.core.cipher import KeyRing
from queen.service.broker import Broker
from queen.service.catalog import Partition
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.merged.merging import Merger
from queen.service.upkeep.jobs import Jobs
from queen.storage.database import Database, Transaction
from tests.api import Api
from tests.merged.conftest import Merge, Write, rows_of
from tests.merged.history import History
from tests.merged.merging import merge_in
from tests.waiting import until_async

_MERGED = """
select m.*, octet_length(s.body) as bytes, s.codec
from queen.merged_segments m join queen.segments s using (partition_id, base_offset)
join queen.queues q on q.id = m.queue_id where q.name = $1
"""
_FOREIGN = "insert into queen.servers (hostname, port, worker) values ('older', 1, 0) returning id"


def merger(age_s: float = 0, range_s: float = 0) -> Merger:
    return Merger(SegmentEncryption(KeyRing()), age_s, range_s)


async def partition_of(broker: Broker, history: History) -> Partition:
    """The partition that has got most."""
    name = next(iter(history.partitions))
    queue = await broker.catalog.queue(history.queue)
    assert queue is not None
    found = await broker.catalog.partitions([history.partitions[name]])
    return found[history.partitions[name]]


async def test_merged_segments_are_neither_long_nor_large(
    write: Write, merge: Merge, connection: asyncpg.Connection
) -> None:
    history = await write(stretches=3000, partitions=2, large=0, lists=0, gaps_us=(20_000, 900_000))
    await merge(history.queue)
    merged = await connection.fetch(_MERGED, history.queue)
    for row in merged:
        assert 4 <= len(row["stretch_ends"]) <= 500
        assert row["stretch_ends"][-1] == row["end_offset"] - row["base_offset"] <= 500
        assert row["bytes"] <= 64 * 1024
        assert (row["last_at"] - row["first_at"]).total_seconds() < 600
        assert row["codec"] & 16
    assert sum(len(row["stretch_ends"]) for row in merged) > 2500


async def test_large_segments_stay_as_they_are(
    write: Write, merge: Merge, connection: asyncpg.Connection
) -> None:
    history = await write(large=20)
    large = {
        (one.partition_id, one.base_offset)
        for one in history.stored
        if sum(map(len, one.payloads)) > 8192
    }
    assert large
    await merge(history.queue)
    rows = await connection.fetch(
        "select s.partition_id, s.base_offset from queen.segments s"
        " join queen.queues q on q.id = s.queue_id where q.name = $1 and s.codec < 16",
        history.queue,
    )
    assert large <= {tuple(row) for row in rows}


async def test_what_is_merged_is_not_merged_again(
    history: History, merge: Merge, connection: asyncpg.Connection
) -> None:
    await merge(history.queue)
    before = await connection.fetch(_MERGED, history.queue)
    assert await merge(history.queue, must=False) == 0
    assert await connection.fetch(_MERGED, history.queue) == before


async def test_nothing_is_merged_while_a_server_lives_that_does_not_know(
    history: History, merge: Merge, connection: asyncpg.Connection
) -> None:
    server = await connection.fetchval(_FOREIGN)
    try:
        assert await merge(history.queue, must=False) == 0
        await connection.execute(
            "update queen.servers set seen_at = seen_at - interval '2 minutes' where id = $1",
            server,
        )
        await merge(history.queue)
    finally:
        await connection.execute("delete from queen.servers where id = $1", server)


@pytest.mark.parametrize(("age_s", "range_s"), [(7 * 24 * 3600, 0), (0, 7 * 24 * 3600)])
async def test_what_is_young_stays(
    history: History, database: Database, connection: asyncpg.Connection, age_s: int, range_s: int
) -> None:
    rows = await rows_of(connection, history.queue)
    await merge_in(database, merger(age_s, range_s))
    assert await rows_of(connection, history.queue) == rows


async def test_whoever_waits_for_a_row_that_is_merged_finds_what_it_became(
    history: History, broker: Broker, database: Database, connection: asyncpg.Connection
) -> None:
    partition = await partition_of(broker, history)
    async with database.transaction() as transaction:
        work = merger()
        while await work.merge_some(transaction):
            pass
        assert work.rows_merged
        erased = asyncio.create_task(broker.eraser.delete(partition, 3))
        await until_async(lambda: _somebody_waits(connection))
    assert await erased
    assert await broker.message_finder.at(partition, 3) is None


async def _somebody_waits(connection: asyncpg.Connection) -> bool:
    count: int = await connection.fetchval(
        "select count(*) from pg_locks l join pg_stat_activity a using (pid)"
        " where not l.granted and a.datname = current_database()"
    )
    return count > 0


async def test_what_is_erased_while_it_is_merged_stays_erased(
    history: History,
    broker: Broker,
    database: Database,
    connection: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partition = await partition_of(broker, history)
    rows = await rows_of(connection, history.queue)
    fetch, erased = Transaction.fetch, list[bool]()

    async def erase_then(self: Transaction, name: str, *args: Any) -> Any:
        read = await fetch(self, name, *args)
        if name == "segments_to_merge" and any(row["partition_id"] == partition.id for row in read):
            erased.append(await broker.eraser.delete(partition, 3))
        return read

    monkeypatch.setattr(Transaction, "fetch", erase_then)
    work, jobs = merger(), Jobs(database)
    jobs.add("merge", 1, work.merge_some)
    while await jobs.run_once("merge", waits=True):
        pass
    monkeypatch.undo()
    assert erased[0]
    assert await broker.message_finder.at(partition, 3) is None
    # The other neighbours have become one.
    assert await rows_of(connection, history.queue) < rows


async def test_a_row_that_somebody_holds_is_not_waited_for(
    write: Write, merge: Merge, broker: Broker, connection: asyncpg.Connection
) -> None:
    """Whoever waits holds up the seal of the queue, and so whoever pushes to it."""
    history = await write(partitions=2, large=0)
    partition = await partition_of(broker, history)
    async with connection.transaction():
        held = await connection.fetchval(
            "select base_offset from queen.segments where partition_id = $1"
            " order by base_offset limit 1 for update",
            partition.id,
        )
        async with asyncio.timeout(20):
            await merge(history.queue)
    merged = await connection.fetch(_MERGED, history.queue)
    assert merged
    assert (partition.id, held) not in {(row["partition_id"], row["base_offset"]) for row in merged}


async def test_what_was_encrypted_is_not_written_in_the_clear(
    api: Api, merge: Merge, connection: asyncpg.Connection, queue: str
) -> None:
    api.configure(queue, encryptionEnabled=True)
    for number in range(10):
        api.push({"queue": queue, "payload": {"secret": f"parcel {number}"}})
    api.configure(queue, encryptionEnabled=False)
    for number in range(10):
        api.push({"queue": queue, "payload": {"known": number}})
    await merge(queue)
    rows = await connection.fetch(
        "select s.codec, encode(s.body, 'escape') as body from queen.segments s"
        " join queen.queues q on q.id = s.queue_id where q.name = $1",
        queue,
    )
    assert [row["codec"] & 2 for row in rows].count(2) == 10
    assert not any("parcel" in row["body"] for row in rows)


async def test_a_queue_with_much_to_do_has_some_rounds_and_none_is_long(
    write: Write, database: Database, queue: str
) -> None:
    await write(stretches=6000, partitions=1, large=0, lists=0, gaps_us=(900,))
    await write(f"{queue}-2", stretches=6000, partitions=1, large=0, lists=0, gaps_us=(900,))
    work, jobs, after = merger(), Jobs(database), list[int]()
    jobs.add("merge", 1, work.merge_some)
    while await jobs.run_once("merge", waits=True):
        after.append(work.rows_merged)
    assert len(after) >= 4
    assert max(b - a for a, b in pairwise([0, *after])) <= 4000
    assert after[-1] > 11_000
