"""What plans and limits read: no more than they must, whatever lies behind."""

from __future__ import annotations

import uuid
from typing import Any

import asyncpg

from queen.storage.statements import statements

_SEGMENTS = 20_000
# Of this transaction: nobody else's reading is counted, and no block that happens to be shared.
_LOOKED_AT = """
    select seq_tup_read + coalesce(idx_tup_fetch, 0)
    from pg_stat_xact_user_tables where relid = 'queen.segments'::regclass"""


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
        queue_id = await _filled(connection)
        call = (
            f"select queen.admit(array[{queue_id}], array['-infinity'::timestamptz], "
            "'infinity'::timestamptz, {limit}, null)"
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
        queue_id = await _filled(connection)
        sql = statements()["fetch_slice"].sql
        await connection.execute(
            "prepare page (integer, timestamptz, bigint, bigint, timestamptz, bigint, bigint,"
            f" bigint, bigint) as {sql}"
        )
        page = f"execute page ({queue_id}, '-infinity', 0, 0, 'infinity', 0, 0, 100, 1000000)"
        assert 100 <= await _rows_read(connection, page) < 500
        await connection.execute("deallocate page")
    finally:
        await transaction.rollback()
