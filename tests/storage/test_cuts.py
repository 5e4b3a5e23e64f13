"""What plans and limits read: no more than they must, whatever lies behind."""

from __future__ import annotations

import json
import uuid
from typing import Any

import asyncpg

from queen.storage.statements import statements

_SEGMENTS = 20_000


async def _filled(connection: asyncpg.Connection) -> int:
    """A queue of many segments, one a microsecond, in a thousand partitions."""
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


async def _blocks(connection: asyncpg.Connection, statement: str, *args: Any) -> int:
    """How many blocks a statement touches, by its plan."""
    plan = await connection.fetchval(f"explain (analyze, buffers, format json) {statement}", *args)
    top = json.loads(plan)[0]["Plan"]
    return int(top["Shared Hit Blocks"]) + int(top["Shared Read Blocks"])


async def test_a_limit_is_found_without_reading_what_lies_behind(
    connection: asyncpg.Connection,
) -> None:
    transaction = connection.transaction()
    await transaction.start()
    try:
        queue_id = await _filled(connection)
        call = (
            f"select queen.admit(array[{queue_id}], array['-infinity'::timestamptz], "
            "'infinity'::timestamptz, {limit}, null)"
        )
        # Once for the plans that are made on the way.
        await connection.fetchval(call.format(limit=10))
        few = await _blocks(connection, call.format(limit=10))
        many = await _blocks(connection, call.format(limit=10_000))
        assert few < 200
        assert few * 10 < many
    finally:
        await transaction.rollback()


async def test_a_page_of_a_slice_reads_a_page(connection: asyncpg.Connection) -> None:
    transaction = connection.transaction()
    await transaction.start()
    try:
        queue_id = await _filled(connection)
        sql = statements()["fetch_slice"].sql
        await connection.execute(
            "prepare page (integer, timestamptz, bigint, bigint, timestamptz, bigint, bigint,"
            f" bigint, bigint) as {sql}"
        )
        used = await _blocks(
            connection,
            f"execute page ({queue_id}, '-infinity', 0, 0, 'infinity', 0, 0, 100, 1000000)",
        )
        assert used < 400
        await connection.execute("deallocate page")
    finally:
        await transaction.rollback()
