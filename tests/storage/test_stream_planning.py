"""Windows are the same in however many pages their messages were looked at."""

from __future__ import annotations

import json
import uuid
from typing import Any

import asyncpg
import pytest

from queen.service.events import Events
from queen.service.streams.planner import Planner
from queen.storage.database import Database

MINUTE_MS = 60_000
SEGMENTS = 120


async def _queue(connection: asyncpg.Connection, number: int) -> int:
    """A queue with four partitions and segments every ten seconds, some of them together."""
    queue_id: int = await connection.fetchval(
        "insert into queen.queues (name) values ($1) returning id", uuid.uuid4().hex
    )
    await connection.execute(
        """
        with made as (
            insert into queen.partitions (queue_id, name)
            select $1, 'p' || n from generate_series(0, 3) n returning id, name
        )
        insert into queen.segments
            (partition_id, base_offset, end_offset, created_at, queue_id, codec, body)
        select m.id, n / 4 * 2, n / 4 * 2 + 2,
               timestamptz '2020-01-01' + (n / 2 * 10 + $3) * interval '1 second', $1, 0,
               convert_to(repeat('x', n), 'UTF8')
        from generate_series(0, $2::integer - 1) n join made m on m.name = 'p' || n % 4""",
        queue_id,
        SEGMENTS,
        number,
    )
    return queue_id


async def _stream(connection: asyncpg.Connection, queues: list[int], **more: Any) -> dict[str, Any]:
    """A stream that no server plans by itself, as the planner finds it."""
    definition = {"windowGracePeriodMs": 0, "windowDurationMs": 3 * MINUTE_MS, **more}
    stream_id = await connection.fetchval(
        "insert into queen.streams (name, definition, plan_at) values ($1, $2, 'infinity')"
        " returning id",
        name := uuid.uuid4().hex,
        json.dumps(definition),
    )
    await connection.execute(
        "insert into queen.stream_sources select $1, unnest($2::integer[])", stream_id, queues
    )
    row = await connection.fetchrow(
        "select definition, timestamptz '2020-01-01 01:00' as now from queen.streams where id = $1",
        stream_id,
    )
    assert row is not None
    return {"id": stream_id, "name": name, "queue_ids": queues, "planned_until": None, **row}


async def _plan_all(
    database: Database, connection: asyncpg.Connection, row: dict[str, Any], page: int
) -> list[Any]:
    """Plan a stream to its end; everything about its windows but their ids."""
    planner = Planner(database, Events(), page_segments=page)
    before = None
    while row["planned_until"] is None or row["planned_until"] != before:
        before = row["planned_until"]
        await planner._plan(row)  # type: ignore[arg-type]
        row["planned_until"] = await connection.fetchval(
            "select planned_until from queen.streams where id = $1", row["id"]
        )
    rows = await connection.fetch(
        "select key, starts_at, ends_at, partitions, from_offsets, to_offsets, messages, bytes"
        " from queen.stream_windows where stream_id = $1 order by id",
        row["id"],
    )
    return [tuple(one) for one in rows]


@pytest.mark.parametrize(
    "kind",
    [
        {"partitioned": False},
        {"partitioned": True},
        {"partitioned": True, "windowType": "sliding", "windowSlideMs": MINUTE_MS},
        {"partitioned": True, "emitEmpty": True},
    ],
)
async def test_windows_do_not_depend_on_the_pages(
    database: Database, connection: asyncpg.Connection, kind: dict[str, Any]
) -> None:
    queues = [await _queue(connection, number) for number in range(2)]
    found = []
    for page in (3, 10_000):
        row = await _stream(connection, queues, **kind)
        found.append(await _plan_all(database, connection, row, page))
    paged, at_once = found
    assert paged == at_once
    if "windowSlideMs" not in kind:
        assert sum(window[6] for window in paged) == 2 * 2 * SEGMENTS


async def test_equal_slides_are_put_together_when_they_are_many(
    database: Database, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [await _queue(connection, 0)]
    at_once = await _plan_all(database, connection, await _stream(connection, queues), 10_000)
    monkeypatch.setattr("queen.service.streams.slides._MANY_SLIDES", 8)
    row = await _stream(connection, queues)
    assert await _plan_all(database, connection, row, 2) == at_once


async def test_what_was_planned_meanwhile_is_not_planned_again(
    database: Database, connection: asyncpg.Connection
) -> None:
    queues = [await _queue(connection, 0)]
    row = await _stream(connection, queues)
    first = await _plan_all(database, connection, dict(row), 10_000)
    # As a server that had begun before.
    await Planner(database, Events())._plan(row)  # type: ignore[arg-type]
    count = await connection.fetchval(
        "select count(*) from queen.stream_windows where stream_id = $1", row["id"]
    )
    assert count == len(first) > 0
