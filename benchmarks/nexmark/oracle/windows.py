"""What queries give that count in windows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from benchmarks.nexmark.events import Event
from benchmarks.nexmark.oracle.past import SIZE_MS, Past, Row, start_of
from benchmarks.nexmark.queries.query import DAY_S
from benchmarks.nexmark.queries.windows import RANKS

_DAY_MS = DAY_S * 1000


def sessions(past: Past) -> Iterator[Row]:
    times: dict[int, list[int]] = defaultdict(list)
    for bid in past.bids:
        times[bid.fields["bidder"]].append(bid.at_ms)
    for bidder, all_of_bidder in times.items():
        session: list[int] = []
        for at_ms in sorted(all_of_bidder):
            if session and at_ms >= session[-1] + SIZE_MS:
                yield _session(past, bidder, session)
                session = []
            session.append(at_ms)
        yield _session(past, bidder, session)


def _session(past: Past, bidder: int, session: list[int]) -> Row:
    ends = {"windowStart": session[0], "windowEnd": session[-1] + SIZE_MS}
    times = {name: past.at(at_ms) for name, at_ms in ends.items()}
    return {**times, "bidder": bidder, "bids": len(session)}


def by_time_of_writing(past: Past) -> Iterator[Row]:
    counts = Counter((start_of(bid.written_ms), bid.fields["bidder"]) for bid in past.bids)
    for (start_ms, bidder), bids in counts.items():
        yield {**past.window(start_ms), "bidder": bidder, "bids": bids}


def statistics_of_days(past: Past) -> Iterator[Row]:
    for (start_ms, _), bids in _by_day(past).items():
        yield {**past.window(start_ms, _DAY_MS), **_counts(bids), **_all_different(bids)}


def statistics_of_channels(past: Past) -> Iterator[Row]:
    for (start_ms, channel), bids in _by_day(past, "channel").items():
        minute = f"{past.time(max(bid.at_ms for bid in bids)):%H:%M}"
        row = {**past.window(start_ms, _DAY_MS), "channel": channel, "minute": minute}
        yield {**row, **_counts(bids), **_all_different(bids)}


def statistics_of_auctions(past: Past) -> Iterator[Row]:
    for (start_ms, auction), bids in _by_day(past, "auction").items():
        prices = [bid.fields["price"] for bid in bids]
        yield {
            **past.window(start_ms, _DAY_MS),
            **_counts(bids),
            "auction": auction,
            "minPrice": min(prices),
            "maxPrice": max(prices),
            "avgPrice": sum(prices) / len(prices),
            "sumPrice": sum(prices),
        }


def _by_day(past: Past, key: str | None = None) -> dict[tuple[int, object], list[Event]]:
    days: dict[tuple[int, object], list[Event]] = defaultdict(list)
    for bid in past.bids:
        days[start_of(bid.at_ms, _DAY_MS), key and bid.fields[key]].append(bid)
    return days


def _ranked(bids: Sequence[Event]) -> Iterator[tuple[str, list[Event]]]:
    """Yield all bids, and those of each rank."""
    yield "total", list(bids)
    for rank, (first, end) in RANKS.items():
        yield rank, [bid for bid in bids if first <= bid.fields["price"] < end]


def _counts(bids: Sequence[Event]) -> Row:
    return {f"{rank}Bids": len(theirs) for rank, theirs in _ranked(bids)}


def _all_different(bids: Sequence[Event]) -> Row:
    return {
        f"{rank}{field.title()}s": len({bid.fields[field] for bid in theirs})
        for rank, theirs in _ranked(bids)
        for field in ("bidder", "auction")
    }
