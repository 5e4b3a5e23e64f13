"""A page of statistics names the partitions that wait longest: of all, and of each namespace."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from queen.storage.statements import statements

_MAKE = """
with q as (
    insert into queen.queues (name, namespace) select $1 || n, $2 from generate_series(1, 2) n
    returning id
),
g as (
    insert into queen.groups (queue_id, name)
    select q.id, w.name from q, (values ('a'), ('b')) w (name)
    returning id, queue_id
),
p as (
    insert into queen.partitions (queue_id, name, head, head_at)
    select q.id, 'p' || n, 4, now() - make_interval(secs => $3[n])
    from q, generate_series(1, cardinality($3::integer[])) n
    returning id, queue_id, head_at
),
s as (
    insert into queen.segments
        (partition_id, base_offset, end_offset, created_at, queue_id, codec, body)
    select p.id, 2 * n, 2 * n + 2, p.head_at - (1 - n) * interval '1 day', p.queue_id, 0, 'x'
    from p, generate_series(0, 1) n
)
insert into queen.cursors (partition_id, group_id, committed)
select p.id, g.id, (p.id + g.id) % 5 from p join g on g.queue_id = p.queue_id
where (p.id * 7 + g.id) % 3 > 0
"""

# Partition, group, how much it has not read, and since when.
Lagging = tuple[int, int, int, datetime]


async def _count_by_hand(connection: asyncpg.Connection, low: int) -> dict[str, list[Lagging]]:
    """Return everything that waits, by namespace, the worst first."""
    rows = await connection.fetch(
        """
        select q.namespace, p.id as partition, g.id as "group", p.head_at,
               coalesce(c.committed, 0) as committed
        from queen.partitions p join queen.queues q on q.id = p.queue_id
        join queen.groups g on g.queue_id = q.id
        left join queen.cursors c on c.partition_id = p.id and c.group_id = g.id
        where p.id > $1 and coalesce(c.committed, 0) < 4
        """,
        low,
    )
    day = await connection.fetchval("select interval '1 day'")
    by_namespace: defaultdict[str, list[Lagging]] = defaultdict(list)
    for row in rows:
        oldest = row["head_at"] - (day if row["committed"] < 2 else 0 * day)
        lagging = row["partition"], row["group"], 4 - row["committed"], oldest
        by_namespace[row["namespace"]].append(lagging)
    return {name: sorted(in_namespace, key=_order) for name, in_namespace in by_namespace.items()}


def _order(lagging: Lagging) -> Any:
    partition, group, _, oldest = lagging
    return oldest, partition, group


@pytest.mark.parametrize("namespaces", [1, 2, 4])
async def test_the_worst_are_named(
    connection: asyncpg.Connection, queue: str, namespaces: int
) -> None:
    dice = random.Random(namespaces)
    low = await connection.fetchval("select coalesce(max(id), 0) from queen.partitions")
    # Rolled back: nobody else ever sees these queues.
    undone = connection.transaction()
    await undone.start()
    try:
        for number in range(namespaces):
            ages = [dice.randrange(50) * 3600 // (number + 1) for _ in range(20)]
            await connection.execute(_MAKE, f"{queue}-{number}-", f"{queue}-{number}", ages)
        high = await connection.fetchval("select max(id) from queen.partitions")
        at = await connection.fetchval("select now()")
        rows = await connection.fetch(statements()["stats_page"].sql, low, high, at, 3, 10)
        by_namespace = await _count_by_hand(connection, low)
    finally:
        await undone.rollback()
    told = [
        (row["partition_id"], row["group_id"], row["outstanding"], row["oldest"])
        for row in rows
        if row["partition_id"] is not None
    ]
    everything = sorted(
        (lagging for in_namespace in by_namespace.values() for lagging in in_namespace), key=_order
    )
    assert len(by_namespace) == namespaces and len(everything) > 20 * namespaces
    expected = set(everything[:10])
    for in_namespace in by_namespace.values():
        expected |= set(in_namespace[:3])
    assert len(told) == len(expected)
    assert set(told) == expected
