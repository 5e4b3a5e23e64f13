"""What has happened, by kind, and how times and windows of it are written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.nexmark.events import AUCTION, BID, PERSON, Event, iso
from benchmarks.nexmark.queries.query import WINDOW_S

Row = dict[str, Any]
SIZE_MS = WINDOW_S * 1000


class Past:
    """A history in plain lists."""

    def __init__(self, history: Sequence[Event], begin: datetime) -> None:
        self.persons = [event for event in history if event.kind == PERSON]
        self.auctions = [event for event in history if event.kind == AUCTION]
        self.bids = [event for event in history if event.kind == BID]
        self._begin = begin

    def count(self, kinds: Sequence[str]) -> int:
        """Return how many events there are of some kinds."""
        events = {PERSON: self.persons, AUCTION: self.auctions, BID: self.bids}
        return sum(len(events[kind]) for kind in kinds)

    def at(self, at_ms: int) -> str:
        return iso(self._begin, at_ms)

    def time(self, at_ms: int) -> datetime:
        return (self._begin + timedelta(milliseconds=at_ms)).astimezone(UTC)

    def window(self, start_ms: int, size_ms: int = SIZE_MS) -> Row:
        return {"windowStart": self.at(start_ms), "windowEnd": self.at(start_ms + size_ms)}


def start_of(at_ms: int, size_ms: int = SIZE_MS) -> int:
    """Return the start of the window that an instant is in."""
    return at_ms // size_ms * size_ms


def some(event: Event, *fields: str) -> Row:
    """Return some fields of an event."""
    return {field: event.fields[field] for field in fields}
