"""How long the disk lasts: what is stored, what comes in, and which queues never let go.

A queue keeps its messages for ever unless it was told otherwise. That is a promise, not an
oversight, but it has an end: the disk's. So it is worked out here when that will be, from what was
pushed in the last days into the queues that keep everything. What a queue with retention takes in
it also lets go.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from queen.service.rows import Record
from queen.storage.database import Database

# How far back what comes in is looked at.
_LOOK_BACK = timedelta(days=7)
# What came in within less than this says nothing about a day.
_LEAST_OBSERVED = timedelta(minutes=5)
_LISTED = 100


@dataclass(frozen=True, slots=True)
class KeptQueue:
    name: str
    messages: int
    stored_bytes: int
    pushed_bytes_per_day: int | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is stored now, and when there is no more room for it."""

    at: datetime
    database_bytes: int
    # None where the database is on another machine, whose disk nobody here can see.
    disk_path: str | None
    disk_total_bytes: int | None
    disk_free_bytes: int | None
    # Of the queues that keep everything; None while too little was seen to say.
    growth_bytes_per_day: int | None
    observed_seconds: float
    days_until_full: float | None
    keeping_count: int
    keeping_bytes: int
    # The largest of them.
    keeping: list[KeptQueue]

    def sentence(self) -> str | None:
        """Say what somebody should know who has not asked; None when there is nothing."""
        if not self.keeping_count:
            return None
        names = ", ".join(_short(queue.name) for queue in self.keeping[:3])
        more = f" and {self.keeping_count - 3} more" if self.keeping_count > 3 else ""
        noun, verb = ("queue", "keeps") if self.keeping_count == 1 else ("queues", "keep")
        return (
            f"{self.keeping_count} {noun} {verb} every message for ever ({names}{more}): "
            f"{_size(self.keeping_bytes)} stored, {self.growth_sentence()}"
        )

    def growth_sentence(self) -> str:
        """Say how it grows, and until when."""
        if self.growth_bytes_per_day is None:
            return "too new to say how fast that grows"
        grows = f"{_size(self.growth_bytes_per_day)} more a day"
        if self.days_until_full is None:
            return grows
        if self.days_until_full > _FAR_DAYS:
            return f"{grows}, the disk lasts for years"
        return f"{grows}, the disk is full in {self.days_until_full:,.0f} days"


_FAR_DAYS = 3650


class Storage:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def forecast(self) -> Forecast:
        since = datetime.now(UTC) - _LOOK_BACK
        numbers = await self._database.fetchrow("storage_numbers", since)
        rows = await self._database.fetch("queues_that_keep", since, _LISTED)
        observed = _observed(numbers, since)
        growth = _per_day(rows[0]["all_pushed_bytes"] if rows else 0, observed)
        path, total, free = await asyncio.to_thread(_disk, numbers)
        return Forecast(
            at=numbers["now"],
            database_bytes=numbers["database_bytes"],
            disk_path=path,
            disk_total_bytes=total,
            disk_free_bytes=free,
            growth_bytes_per_day=growth,
            observed_seconds=observed.total_seconds(),
            days_until_full=free / growth if growth and free is not None else None,
            keeping_count=rows[0]["total"] if rows else 0,
            keeping_bytes=rows[0]["all_stored_bytes"] if rows else 0,
            keeping=[
                KeptQueue(
                    row["name"],
                    row["messages"],
                    row["stored_bytes"],
                    _per_day(row["pushed_bytes"], observed),
                )
                for row in rows
            ],
        )


def _observed(numbers: Record, since: datetime) -> timedelta:
    """Return for how long what comes in was counted."""
    counted_since = numbers["counted_since"]
    if counted_since is None:
        return timedelta(0)
    observed: timedelta = numbers["now"] - max(counted_since, since)
    return observed


def _per_day(count: int, observed: timedelta) -> int | None:
    if observed < _LEAST_OBSERVED:
        return None
    return round(count * 86400 / observed.total_seconds())


def _disk(numbers: Record) -> tuple[str | None, int | None, int | None]:
    """Return the folder of the database with the room on its disk, where that can be known."""
    named = numbers["data_directory"]
    if not numbers["is_local"] or not named:
        return None, None, None
    # The embedded PostgreSQL calls it the folder it is in, which is not the one that we are in.
    shown = named.replace("/proc/self/", f"/proc/{numbers['pid']}/")
    try:
        folder = Path(shown).resolve(strict=True)
        usage = shutil.disk_usage(folder)
    except OSError:
        return None, None, None
    return str(folder), usage.total, usage.free


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:40]}…{name[-19:]}"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
