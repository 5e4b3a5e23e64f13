"""Lag: what groups have not read yet, and for how long it has been waiting.

To know who waits longest means to look at every partition, so the statistics' count collects
them on its way (`Worst`) and leaves them in a table. It is bounded: the worst thousand of
all, and a share of ten thousand for each namespace, at most a thousand and at least one. With
up to ten namespaces a caller that sees only some of them gets exactly their worst thousand;
with more it gets fewer of each, but never nothing where something waits.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Any, NamedTuple

from queen.storage.database import Database, Record

MAX_LAGGING = 1000
_ALL_NAMESPACES = 10_000
# Partitions in one answer: each costs a few index probes.
_MAX_PARTITIONS = 1000


class Late(NamedTuple):
    """A partition in which a group has something to read. Those that wait longest sort first."""

    oldest_at: datetime
    partition_id: int
    group_id: int
    pending: int


class Worst:
    """Those that wait longest, of everything that is added."""

    def __init__(self, namespaces: int) -> None:
        self.share = max(min(MAX_LAGGING, _ALL_NAMESPACES // max(namespaces, 1)), 1)
        self._of_all: list[Late] = []
        self._by_namespace: dict[str, list[Late]] = {}

    def add(self, rows: list[Record]) -> None:
        """Add what one page of partitions has found, in which none is there twice."""
        by_namespace: defaultdict[str, list[Late]] = defaultdict(list)
        for row in rows:
            late = Late(row["oldest"], row["partition_id"], row["group_id"], row["outstanding"])
            by_namespace[row["namespace"]].append(late)
        for namespace, lates in by_namespace.items():
            kept = self._by_namespace.get(namespace, [])
            self._by_namespace[namespace] = sorted([*kept, *lates])[: self.share]
            self._of_all += lates
        self._of_all = sorted(self._of_all)[:MAX_LAGGING]

    def columns(self) -> tuple[list[Any], ...]:
        """Return what was kept as `store_lagging` takes it."""
        kept = set(self._of_all).union(*self._by_namespace.values())
        return (
            [late.group_id for late in kept],
            [late.partition_id for late in kept],
            [late.pending for late in kept],
            [late.oldest_at for late in kept],
        )


class Lag:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def lagging(self, before: datetime, among: list[str] | None = None) -> list[Record]:
        """Return where something had waited since before an instant when it was counted."""
        return await self._database.fetch("lagging_partitions", before, among, MAX_LAGGING)

    async def partitions(
        self, group_ids: list[int], limit: int, offset: int
    ) -> tuple[dict[int, list[Record]], set[int]]:
        """Return a page of the partitions of each group's queue, and which groups have more.

        A group that reads many queues gets fewer of each.
        """
        limit = min(limit, max(_MAX_PARTITIONS // max(len(group_ids), 1), 1))
        rows = await self._database.fetch("group_partitions", group_ids, limit + 1, offset)
        by_group: dict[int, list[Record]] = defaultdict(list)
        for row in rows:
            by_group[row["group_id"]].append(row)
        more = {group_id for group_id, page in by_group.items() if len(page) > limit}
        return {group_id: page[:limit] for group_id, page in by_group.items()}, more
