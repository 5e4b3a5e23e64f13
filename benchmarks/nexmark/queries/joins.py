"""Queries that bring two or three kinds of events together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.nexmark.events import AUCTION, BID, PERSON
from benchmarks.nexmark.filling import Queues
from benchmarks.nexmark.queries.query import JOINED_WITHIN_S, WINDOW_S, Query, side_of

if TYPE_CHECKING:
    from queen import SyncQueen

LOCAL = ("OR", "ID", "CA")
CATEGORY = 10
_WINDOW_OF = f"floor(unix_millis(data.at) / {WINDOW_S * 1000})"
_WITHIN = "pairs are within an hour of each other, instead of waiting for ever"


def _local_items(queen: SyncQueen, queues: Queues, name: str) -> Any:
    sellers = side_of(queen, queues, PERSON, name).where(f"data.state in {LOCAL}")
    auctions = side_of(queen, queues, AUCTION, name).where(f"data.category = {CATEGORY}")
    joined = auctions.join(sellers, on={"data.seller": "data.id"}, within=JOINED_WITHIN_S)
    person = {field: f"person.data.{field}" for field in ("name", "city", "state")}
    return joined.select(auction="auction.data.id", **person)


def _new_users(queen: SyncQueen, queues: Queues, name: str) -> Any:
    sellers = side_of(queen, queues, PERSON, name)
    auctions = side_of(queen, queues, AUCTION, name)
    on = {"data.id": "data.seller", _WINDOW_OF: _WINDOW_OF}
    joined = sellers.join(auctions, on=on, within=WINDOW_S).dedup("person.data.id")
    return joined.select(id="person.data.id", name="person.data.name", at="person.data.at")


def _expanded_bids(queen: SyncQueen, queues: Queues, name: str) -> Any:
    bids = side_of(queen, queues, BID, name)
    auctions = side_of(queen, queues, AUCTION, name).where(f"data.category = {CATEGORY}")
    joined = bids.join(auctions, on={"data.auction": "data.id"}, within=JOINED_WITHIN_S)
    bid = {field: f"bid.data.{field}" for field in ("auction", "bidder", "price", "channel", "at")}
    auction = {field: f"auction.data.{field}" for field in ("item", "seller", "category")}
    return joined.select(**bid, **auction)


def _bids_of_sellers(queen: SyncQueen, queues: Queues, name: str) -> Any:
    bids = side_of(queen, queues, BID, name)
    persons = side_of(queen, queues, PERSON, name)
    auctions = side_of(queen, queues, AUCTION, name)
    joined = bids.join(persons, on={"data.bidder": "data.id"}, within=JOINED_WITHIN_S)
    joined = joined.join(auctions, on={"bid.data.bidder": "data.seller"}, within=JOINED_WITHIN_S)
    bid = {field: f"bid.data.{field}" for field in ("bidder", "price", "url")}
    return joined.select(**bid, name="person.data.name", sells="auction.data.id")


_WHERE_THE_BID_WAS = "bid.partition"

JOINS = (
    Query(3, "local items: join", (PERSON, AUCTION), _local_items, _WITHIN),
    Query(8, "new users: join in a window, dedup", (PERSON, AUCTION), _new_users),
    Query(
        20,
        "bids with their auctions: join, filter",
        (AUCTION, BID),
        _expanded_bids,
        _WITHIN,
        _WHERE_THE_BID_WAS,
    ),
    Query(
        23,
        "bids of sellers: join of three",
        (PERSON, AUCTION, BID),
        _bids_of_sellers,
        _WITHIN,
        _WHERE_THE_BID_WAS,
    ),
)
