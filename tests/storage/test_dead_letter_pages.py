"""What a page of dead letters costs when there are many: what is on it, and no more."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from queen.storage.database import session_settings
from queen.storage.embedded import EmbeddedPostgres
from queen.storage.statements import statements
from tests.databases import own_database

_MANY = 60_000
_RARE = "seen once in ten thousand"


@pytest.fixture(scope="module")
async def graveyard(
    postgres: EmbeddedPostgres,
) -> AsyncIterator[tuple[asyncpg.Connection, int]]:
    """Many dead letters in one queue, and the id of that."""
    async with own_database(postgres.dsn) as dsn:
        connection = await asyncpg.connect(dsn, server_settings=session_settings())
        yield connection, await bury(connection)
        await connection.close()


async def bury(connection: asyncpg.Connection) -> int:
    """Fill a queue with dead letters and return its id."""
    queue_id: int = await connection.fetchval(
        "insert into queen.queues (name, namespace) values ('graveyard', 'graves') returning id"
    )
    partition_id = await connection.fetchval(
        "insert into queen.partitions (queue_id, name) values ($1, 'p') returning id", queue_id
    )
    await connection.execute(
        """
        insert into queen.dead_letters (partition_id, group_id, message_offset, transaction_id,
            payload, error, attempts, created_at, queue_id, consumer_group, failed_at)
        select $1, 1, n, n::text, convert_to(repeat('x', 100), 'utf8'),
               case when n % 10000 = 0 then $4 else 'often' end, 1, now(), $2, 'g',
               now() - make_interval(secs => n)
        from generate_series(1, $3::integer) n
        """,
        partition_id,
        queue_id,
        _MANY,
        _RARE,
    )
    await connection.execute("analyze queen.dead_letters")
    return queue_id


def matching(queue_id: int | None = None, error: str | None = None, **more: Any) -> list[Any]:
    """Return the arguments of a filter, in the order of the statements."""
    names = ("partition", "group", "error", "since", "until", "namespaces", "ids")
    return [queue_id, *({"error": error, **more}.get(name) for name in names)]


async def pages_read(connection: asyncpg.Connection, name: str, *arguments: Any) -> int:
    """Return how many pages of the database a statement reads."""
    explain = f"explain (analyze, buffers, format json) {statements()[name].sql}"
    plan = json.loads(await connection.fetchval(explain, *arguments))[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.parametrize("where", ["everywhere", "queue", "queue and error", "error"])
async def test_a_page_reads_what_is_on_it(
    graveyard: tuple[asyncpg.Connection, int], where: str
) -> None:
    connection, queue_id = graveyard
    filters = {
        "everywhere": matching(),
        "queue": matching(queue_id),
        "queue and error": matching(queue_id, _RARE),
        "error": matching(error=_RARE),
    }
    rows = await connection.fetch(statements()["dead_letters"].sql, *filters[where], 50, 0)
    assert len(rows) == (6 if "error" in where else 50)
    # All of them lie on well over a thousand pages.
    assert await pages_read(connection, "dead_letters", *filters[where], 50, 0) < 700


async def test_counting_ends(graveyard: tuple[asyncpg.Connection, int]) -> None:
    connection, queue_id = graveyard
    counted = await connection.fetchval(
        statements()["count_dead_letters"].sql, *matching(queue_id), 10_000
    )
    assert counted == 10_000
    errors = await connection.fetch(
        statements()["dead_letter_errors"].sql, *matching(queue_id), 10_000, 5
    )
    assert {row["error"]: row["letters"] for row in errors} == {"often": 9_999, _RARE: 1}
    assert {row["looked_at"] for row in errors} == {10_000}
