"""What the queries must give: the same events in plain Python, all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from benchmarks.nexmark.events import Event
from benchmarks.nexmark.oracle import ended_auctions, joins, stateless, top, windows
from benchmarks.nexmark.oracle.past import Past, Row

_ANSWERS: dict[int, Callable[[Past], Iterator[Row]]] = {
    0: stateless.pass_through,
    1: stateless.currency,
    2: stateless.selection,
    3: joins.local_items,
    4: ended_auctions.average_prices,
    5: top.hot_items,
    6: ended_auctions.last_prices,
    7: top.highest_bid,
    8: joins.new_users,
    9: ended_auctions.winning_bids,
    10: stateless.into_files,
    11: windows.sessions,
    12: windows.by_time_of_writing,
    13: stateless.side_input,
    14: stateless.calculation,
    15: windows.statistics_of_days,
    16: windows.statistics_of_channels,
    17: windows.statistics_of_auctions,
    18: top.last_bids,
    19: top.highest_bids_of_auctions,
    20: joins.expanded_bids,
    21: stateless.channel_ids,
    22: stateless.folders,
    23: joins.bids_of_sellers,
}


class Oracle:
    """A history, and the answers to all queries over it."""

    def __init__(self, history: Sequence[Event], begin: datetime) -> None:
        self._past = Past(history, begin)

    def rows(self, number: int) -> list[Row]:
        """Return the results of a query, in any order."""
        return list(_ANSWERS[number](self._past))

    def events(self, kinds: Sequence[str]) -> int:
        """Return how many events there are of some kinds."""
        return self._past.count(kinds)
