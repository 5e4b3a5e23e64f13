"""What a query is, and how the three queues are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.nexmark.events import BID_SCHEMA, SCHEMAS
from benchmarks.nexmark.filling import Queues

if TYPE_CHECKING:
    from queen import SyncQueen

# Events are told at most two seconds after they happened.
GRACE_S = 5
WINDOW_S = 10
SLIDE_S = 2
# A history lasts a minute, and has days of its own.
DAY_S = 15
# How far apart two events may be that are joined, where SQL would wait for ever.
JOINED_WITHIN_S = 3600
BID_FIELDS = ("auction", "bidder", "price", "channel", "url", "extra", "at")


class Query(NamedTuple):
    """One query of the benchmark."""

    number: int
    about: str
    # Kinds of the events that it reads.
    reads: tuple[str, ...]
    # Gives the definition, or the function that takes the place of one.
    build: Callable[[SyncQueen, Queues, str], Any]
    # In what its results are not those of the benchmark's SQL.
    differs: str = ""
    # Of the results: a few are all in one, many are spread.
    partition: str = "'all'"
    # Whether results go to files instead of a queue.
    writes_files: bool = False


def bids_of(queen: SyncQueen, queues: Queues, name: str) -> Any:
    return queen.stream(name).sources(queues.bids).schema(BID_SCHEMA)


def timed_bids_of(queen: SyncQueen, queues: Queues, name: str) -> Any:
    """Return bids for what waits for time to pass."""
    return bids_of(queen, queues, name).event_time("data.at").grace_period(GRACE_S)


def side_of(queen: SyncQueen, queues: Queues, kind: str, name: str) -> Any:
    """Return the events of a kind as one side of a join."""
    stream = queen.stream(name).sources(queues.of(kind)).schema(SCHEMAS[kind])
    return stream.event_time("data.at").grace_period(GRACE_S).named(kind)
