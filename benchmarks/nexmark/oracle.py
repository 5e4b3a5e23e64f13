"""What the queries must give: the same events in plain Python, all at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from benchmarks.nexmark.events import AUCTION, BID, PERSON, Event, iso
from benchmarks.nexmark.queries import EURO_PER_DOLLAR, LUCKY, SLIDE_S, WINDOW_S

Row = dict[str, Any]
_SIZE_MS = WINDOW_S * 1000
_SLIDE_MS = SLIDE_S * 1000


class Oracle:
    """A history, and the answers to all queries over it."""

    def __init__(self, history: Sequence[Event], begin: datetime) -> None:
        self._persons = [one for one in history if one.kind == PERSON]
        self._auctions = [one for one in history if one.kind == AUCTION]
        self._bids = [one for one in history if one.kind == BID]
        self._begin = begin

    def rows(self, number: int) -> list[Row]:
        """Return the results of a query, in any order."""
        answers: dict[int, Callable[[], Iterator[Row]]] = {
            0: self._pass_through,
            1: self._currency,
            2: self._selection,
            3: self._local_items,
            4: self._average_prices,
            5: self._hot_items,
            7: self._highest_bid,
            8: self._new_users,
            11: self._sessions,
        }
        return list(answers[number]())

    def events(self, kinds: Sequence[str]) -> int:
        """Return how many events there are of some kinds."""
        counts = {PERSON: self._persons, AUCTION: self._auctions, BID: self._bids}
        return sum(len(counts[kind]) for kind in kinds)

    def _at(self, at_ms: int) -> str:
        return iso(self._begin, at_ms)

    def _window(self, start_ms: int) -> Row:
        return {"windowStart": self._at(start_ms), "windowEnd": self._at(start_ms + _SIZE_MS)}

    def _pass_through(self) -> Iterator[Row]:
        for bid in self._bids:
            yield {**bid.fields, "at": self._at(bid.at_ms)}

    def _currency(self) -> Iterator[Row]:
        for bid in self._bids:
            kept = {name: bid.fields[name] for name in ("auction", "bidder")}
            price = bid.fields["price"] * EURO_PER_DOLLAR
            yield {**kept, "at": self._at(bid.at_ms), "price": price}

    def _selection(self) -> Iterator[Row]:
        for bid in self._bids:
            if bid.fields["auction"] % LUCKY == 0:
                yield {name: bid.fields[name] for name in ("auction", "price")}

    def _local_items(self) -> Iterator[Row]:
        near = {
            one.fields["id"]: one.fields
            for one in self._persons
            if one.fields["state"] in ("OR", "ID", "CA")
        }
        for auction in self._auctions:
            seller = near.get(auction.fields["seller"])
            if auction.fields["category"] == 10 and seller is not None:
                person = {name: seller[name] for name in ("name", "city", "state")}
                yield {"auction": auction.fields["id"], **person}

    def _average_prices(self) -> Iterator[Row]:
        auctions = {one.fields["id"]: one for one in self._auctions}
        best: dict[int, int] = {}
        for bid in self._bids:
            auction = auctions.get(bid.fields["auction"])
            if auction is not None and auction.at_ms <= bid.at_ms <= auction.fields["expires"]:
                number = auction.fields["id"]
                best[number] = max(best.get(number, 0), bid.fields["price"])
        finals: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, price in best.items():
            fields = auctions[number].fields
            finals[fields["expires"] // _SIZE_MS * _SIZE_MS, fields["category"]].append(price)
        for (start_ms, category), prices in finals.items():
            average = sum(prices) / len(prices)
            yield {**self._window(start_ms), "category": category, "average": average}

    def _hot_items(self) -> Iterator[Row]:
        windows: dict[int, Counter[int]] = defaultdict(Counter)
        for bid in self._bids:
            newest = bid.at_ms // _SLIDE_MS * _SLIDE_MS
            for start_ms in range(newest, bid.at_ms - _SIZE_MS, -_SLIDE_MS):
                windows[start_ms][bid.fields["auction"]] += 1
        for start_ms, counts in windows.items():
            auction, bids = min(counts.items(), key=lambda one: (-one[1], one[0]))
            yield {**self._window(start_ms), "rank": 1, "auction": auction, "bids": bids}

    def _highest_bid(self) -> Iterator[Row]:
        best: dict[int, tuple[int, int, int]] = {}
        for bid in self._bids:
            start_ms = bid.at_ms // _SIZE_MS * _SIZE_MS
            fields = bid.fields
            this = (fields["price"], fields["auction"], fields["bidder"])
            best[start_ms] = max(best.get(start_ms, (0, 0, 0)), this)
        for start_ms, (price, auction, bidder) in best.items():
            row = {"price": price, "auction": auction, "bidder": bidder}
            yield {**self._window(start_ms), **row}

    def _new_users(self) -> Iterator[Row]:
        sold = {(one.fields["seller"], one.at_ms // _SIZE_MS) for one in self._auctions}
        for person in self._persons:
            if (person.fields["id"], person.at_ms // _SIZE_MS) in sold:
                row = {name: person.fields[name] for name in ("id", "name")}
                yield {**row, "at": self._at(person.at_ms)}

    def _sessions(self) -> Iterator[Row]:
        times: dict[int, list[int]] = defaultdict(list)
        for bid in self._bids:
            times[bid.fields["bidder"]].append(bid.at_ms)
        for bidder, all_of_bidder in times.items():
            session: list[int] = []
            for at_ms in sorted(all_of_bidder):
                if session and at_ms >= session[-1] + _SIZE_MS:
                    yield self._session(bidder, session)
                    session = []
                session.append(at_ms)
            yield self._session(bidder, session)

    def _session(self, bidder: int, session: list[int]) -> Row:
        ends = {"windowStart": session[0], "windowEnd": session[-1] + _SIZE_MS}
        times = {name: self._at(at_ms) for name, at_ms in ends.items()}
        return {**times, "bidder": bidder, "bids": len(session)}
