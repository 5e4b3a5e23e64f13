"""What plans and limits read: no more than they must, whatever lies behind."""

from __future__ import annotations

import uuid
from typing import Any

import asyncpg
import pytest

from queen.core.options import QueueOptions
from queen.service.catalog import Partition, Queue
from queen.service.instants import instant_at
from queen.service.read import sealed_reads
from queen.service.read.sealed_reads import Plan, SealedReads, TimeRange
from queen.storage.database import Database
from queen.storage.statements import statements

_SEGMENTS = 20_000
# Of this transaction: nobody else's reading is counted, and no block that happens to be shared.
_LOOKED_AT = """
    select seq_tup_read + coalesce(idx_tup_fetch, 0)
    from pg_stat_xact_user_tables where relid = 'queen.segments'::regclass"""


async def _fill_queue(connection: asyncpg.Connection) -> int:
    """Make a queue of many segments, one a microsecond, in a thousand partitions."""
    queue_id: int = await connection.fetchval(
        "insert into queen.queues (name) values ($1) returning id", uuid.uuid4().hex
    )
    await connection.execute(
        """
        insert into queen.segments
            (partition_id, base_offset, end_offset, created_at, queue_id, codec, body)
        select 9000000000 + n % 1000, n / 1000, n / 1000 + 1,
               timestamptz '2020-01-01' + n * interval '1 microsecond', $1, 0, '\\x00'
        from generate_series(1, $2::integer) n""",
        queue_id,
        _SEGMENTS,
    )
    await connection.execute("analyze queen.segments")
    return queue_id


async def _rows_read(connection: asyncpg.Connection, statement: str, *args: Any) -> int:
    """How many segments a statement looks at, whatever the way it finds them."""
    before: int = await connection.fetchval(_LOOKED_AT)
    await connection.execute(statement, *args)
    return int(await connection.fetchval(_LOOKED_AT)) - before


async def test_a_limit_is_found_without_reading_what_lies_behind(
    connection: asyncpg.Connection,
) -> None:
    transaction = connection.transaction()
    await transaction.start()
    try:
        queue_id = await _fill_queue(connection)
        call = (
            f"select queen.latest_instant_within(array[{queue_id}], "
            "array['-infinity'::timestamptz], 'infinity'::timestamptz, {limit}, null)"
        )
        # Rows come from the index in portions, so that some more are read than are wanted.
        assert 10 < await _rows_read(connection, call.format(limit=10)) < 500
        assert 10_000 < await _rows_read(connection, call.format(limit=10_000)) < 10_500
    finally:
        await transaction.rollback()


async def test_a_page_of_a_slice_reads_a_page(connection: asyncpg.Connection) -> None:
    transaction = connection.transaction()
    await transaction.start()
    try:
        queue_id = await _fill_queue(connection)
        sql = statements()["fetch_queue"].sql
        await connection.execute(
            "prepare page (integer, timestamptz, bigint, bigint, timestamptz, bigint, bigint,"
            f" bigint, bigint) as {sql}"
        )
        page = f"execute page ({queue_id}, '-infinity', 0, 0, 'infinity', 0, 0, 100, 1000000)"
        assert 100 <= await _rows_read(connection, page) < 500
        await connection.execute("deallocate page")
    finally:
        await transaction.rollback()


@pytest.mark.parametrize(
    ("name", "types", "arguments"),
    [
        (
            "plan_page",
            "integer, timestamptz, bigint, bigint, timestamptz, bigint, bigint",
            "{queue}, '-infinity', 0, 0, 'infinity', 100, 10",
        ),
        (
            "plan_offsets_page",
            "bigint, bigint, bigint, bigint, bigint",
            "9000000007, 3, 1000, 10, 5",
        ),
        (
            "segments_to_seal",
            "integer, timestamptz, bigint, bigint, bytea, bigint",
            "{queue}, '-infinity', 0, 0, '', 100",
        ),
        (
            "slides_page",
            "integer, interval, timestamptz, timestamptz, bigint",
            "{stream}, '1 day', '2019-12-31', '2020-01-02', 100",
        ),
    ],
)
async def test_a_page_of_a_walk_reads_a_page(
    connection: asyncpg.Connection, name: str, types: str, arguments: str
) -> None:
    transaction = connection.transaction()
    await transaction.start()
    try:
        queue = await _fill_queue(connection)
        stream = await connection.fetchval(
            "with s as (insert into queen.streams (name, definition, plan_at)"
            " values ($1, '{}', 'infinity') returning id)"
            " insert into queen.stream_sources select id, $2 from s returning stream_id",
            uuid.uuid4().hex,
            queue,
        )
        await connection.execute(f"prepare page ({types}) as {statements()[name].sql}")
        call = arguments.format(queue=queue, stream=stream)
        assert 0 < await _rows_read(connection, f"execute page ({call})") < 1500
        await connection.execute("deallocate page")
    finally:
        await transaction.rollback()


@pytest.fixture
async def written(connection: asyncpg.Connection) -> tuple[Queue, Partition]:
    """A queue of forty segments that grow, in four partitions."""
    queue_id = await connection.fetchval(
        "insert into queen.queues (name) values ($1) returning id", name := uuid.uuid4().hex
    )
    rows = await connection.fetch(
        "insert into queen.partitions (queue_id, name, head, head_at)"
        " select $1, 'p' || n, 20, timestamptz '2020-01-01' from generate_series(0, 3) n"
        " returning id",
        queue_id,
    )
    ids = [row["id"] for row in rows]
    await connection.execute(
        """
        insert into queen.segments
            (partition_id, base_offset, end_offset, created_at, queue_id, codec, body)
        select $2::bigint + n % 4, n / 4 * 2, n / 4 * 2 + 2,
               timestamptz '2020-01-01' + n / 3 * interval '1 second', $1, 0,
               convert_to(repeat('x', n * 100), 'UTF8')
        from generate_series(0, 39) n""",
        queue_id,
        ids[0],
    )
    queue = Queue(queue_id, name, "", "", QueueOptions())
    return queue, Partition(ids[1], queue, "p1", 20)


@pytest.mark.parametrize("page_rows", [1, 7, 40])
async def test_a_plan_is_the_same_however_it_was_walked(
    database: Database, written: tuple[Queue, Partition], page_rows: int
) -> None:
    queue, partition = written
    until = instant_at(2**51)

    async def plans(service: SealedReads) -> list[Plan]:
        whole = await service.plan({queue: instant_at(0)}, until, 5)
        part = await service.plan_partitions({partition: instant_at(0)}, until, (3, 17), 3)
        return [whole, part]

    whole, part = await plans(SealedReads(database, page_rows=page_rows))
    assert [whole, part] == await plans(SealedReads(database))
    assert (whole.messages, len(whole.slices), part.messages, len(part.slices)) == (80, 5, 14, 3)
    assert sum(one.messages for one in part.slices) == 14


async def test_a_long_plan_keeps_few_marks_and_counts_everything(
    database: Database, written: tuple[Queue, Partition], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, _ = written
    monkeypatch.setattr(sealed_reads, "_PAGE_MARKS", 2)
    monkeypatch.setattr(sealed_reads, "_MAX_MARKS", 8)
    added = sealed_reads.Walk.add
    kept: list[int] = []

    def add(walk: sealed_reads.Walk, *arguments: Any) -> None:
        added(walk, *arguments)
        kept.append(len(walk.marks))

    monkeypatch.setattr(sealed_reads.Walk, "add", add)
    plan = await SealedReads(database, page_rows=4).plan(
        {queue: instant_at(0)}, instant_at(2**51), 3
    )
    assert len(kept) == 10 and max(kept) <= 8
    assert sum(part.messages for part in plan.slices) == plan.messages == 80
    ranges = [one for part in plan.slices for one in part.ranges if isinstance(one, TimeRange)]
    # Each goes on where the one before it ends.
    assert [one.end for one in ranges[:-1]] == [one.start for one in ranges[1:]]
