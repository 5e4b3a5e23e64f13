"""Slides: what a stream's partitions got between two boundaries of its windows.

A window that slides is as long as several slides, so each message is counted in its slide once
and windows add slides up.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from queen.storage.database import Record

# How many slides are kept before equal ones are put together.
_MANY_SLIDES = 100_000


class Slides:
    """What partitions got between two boundaries, as columns."""

    NAMES = ("partitions", "at", "low", "high", "messages", "bytes")

    def __init__(self) -> None:
        self.columns: list[list[Any]] = [[] for _ in self.NAMES]
        self._merge_at = _MANY_SLIDES

    def add(self, page: Record) -> None:
        """Add what a page has found; the end of the page before may be in the same slides."""
        for column, name in zip(self.columns, self.NAMES, strict=True):
            column.extend(page[name])
        if len(self.columns[0]) > self._merge_at:
            self._merge()

    def _merge(self) -> None:
        merged: dict[tuple[int, datetime], list[Any]] = {}
        for partition_id, at, low, high, messages, size in zip(*self.columns, strict=True):
            slide = merged.setdefault((partition_id, at), [partition_id, at, low, high, 0, 0])
            slide[2], slide[3] = min(slide[2], low), max(slide[3], high)
            slide[4] += messages
            slide[5] += size
        self.columns = [list(column) for column in zip(*merged.values(), strict=True)]
        self._merge_at = len(merged) + _MANY_SLIDES


class SlidesUntil(NamedTuple):
    """Slides of which the windows that end in (since, until] are made."""

    since: datetime
    until: datetime
    slides: Slides
