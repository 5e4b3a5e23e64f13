"""Lag: what groups have not read yet, and for how long it has been waiting.

Messages are counted from where a group reads next to the head of the partition; seconds are
the age of the first of them, on the database's clock. Everything is read page by page of
partitions, so no statement gets slow with their number; only the number of pages grows.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from queen.storage.database import Database, Record

# Partitions of one group in one page, and groups in one statement.
_PARTITIONS = 2000
_GROUPS = 50
_MAX_LAGGING = 1000
# Longer than any message has been waiting: then none is late.
_NEVER_S = 1e9


@dataclass(slots=True)
class Totals:
    """All partitions of one group in one queue together."""

    # Partitions the group has a cursor in.
    members: int = 0
    leases: int = 0
    partitions_with_lag: int = 0
    messages: int = 0
    seconds: float = 0.0

    def add(self, page: Record) -> None:
        self.members += page["members"]
        self.leases += page["leases"]
        self.partitions_with_lag += page["partitions_with_lag"]
        self.messages += page["total_lag"]
        if page["oldest_at"] is not None:
            self.seconds = max(self.seconds, _seconds(page["now"], page["oldest_at"]))


class Late(NamedTuple):
    """A partition in which a group has had something to read for too long."""

    seconds: float
    group_id: int
    partition_id: int
    messages: int
    oldest_at: datetime


class Lag:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def totals(self, group_ids: list[int]) -> dict[int, Totals]:
        """Return the lag of groups, each in its queue."""
        found = {one: Totals() for one in group_ids}
        for at in range(0, len(group_ids), _GROUPS):
            async for page in self._pages(group_ids[at : at + _GROUPS], _NEVER_S):
                found[page["id"]].add(page)
        return found

    async def lagging(self, min_seconds: float, among: list[str] | None = None) -> list[Late]:
        """Return the partitions that wait longest, of all groups; longer than a limit."""
        worst: list[Late] = []
        after = 0
        while rows := await self._database.fetch("groups_after", after, _GROUPS, among):
            after = rows[-1]["id"]
            async for page in self._pages([row["id"] for row in rows], min_seconds):
                worst = heapq.nlargest(_MAX_LAGGING, [*worst, *_late(page)])
        return worst

    async def partitions(
        self, group_ids: list[int], limit: int, offset: int
    ) -> dict[int, list[Record]]:
        """Return a page of the partitions of each group's queue, and one more if there is."""
        rows = await self._database.fetch("group_partitions", group_ids, limit + 1, offset)
        found: dict[int, list[Record]] = defaultdict(list)
        for row in rows:
            found[row["group_id"]].append(row)
        return found

    async def _pages(self, group_ids: list[int], min_seconds: float) -> AsyncIterator[Record]:
        """Yield all pages of some groups, some groups in one statement."""
        after = dict.fromkeys(group_ids, 0)
        while after:
            pages = await self._database.fetch(
                "lag_pages", list(after), list(after.values()), min_seconds, _PARTITIONS
            )
            after = {}
            for page in pages:
                yield page
                if page["seen"] == _PARTITIONS:
                    after[page["id"]] = page["last"]


def _late(page: Record) -> list[Late]:
    if page["late_ids"] is None:
        return []
    columns = zip(page["late_ids"], page["late_lags"], page["late_at"], strict=True)
    return [
        Late(_seconds(page["now"], oldest), page["id"], partition, lag, oldest)
        for partition, lag, oldest in columns
    ]


def _seconds(now: datetime, since: datetime) -> float:
    return max((now - since).total_seconds(), 0.0)
