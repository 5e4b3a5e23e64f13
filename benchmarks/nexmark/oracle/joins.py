"""What queries give that bring two or three kinds of events together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from benchmarks.nexmark.oracle.past import Past, Row, some, start_of
from benchmarks.nexmark.queries.joins import CATEGORY, LOCAL


def local_items(past: Past) -> Iterator[Row]:
    near = {
        person.fields["id"]: person for person in past.persons if person.fields["state"] in LOCAL
    }
    for auction in past.auctions:
        seller = near.get(auction.fields["seller"])
        if auction.fields["category"] == CATEGORY and seller is not None:
            yield {"auction": auction.fields["id"], **some(seller, "name", "city", "state")}


def new_users(past: Past) -> Iterator[Row]:
    sold = {(auction.fields["seller"], start_of(auction.at_ms)) for auction in past.auctions}
    for person in past.persons:
        if (person.fields["id"], start_of(person.at_ms)) in sold:
            yield {**some(person, "id", "name"), "at": past.at(person.at_ms)}


def expanded_bids(past: Past) -> Iterator[Row]:
    auctions = {
        auction.fields["id"]: auction
        for auction in past.auctions
        if auction.fields["category"] == CATEGORY
    }
    for bid in past.bids:
        auction = auctions.get(bid.fields["auction"])
        if auction is not None:
            row = some(bid, "auction", "bidder", "price", "channel")
            yield {**row, "at": past.at(bid.at_ms), **some(auction, "item", "seller", "category")}


def bids_of_sellers(past: Past) -> Iterator[Row]:
    names = {person.fields["id"]: person.fields["name"] for person in past.persons}
    sold = defaultdict(list)
    for auction in past.auctions:
        sold[auction.fields["seller"]].append(auction.fields["id"])
    for bid in past.bids:
        bidder = bid.fields["bidder"]
        for auction in sold[bidder] if bidder in names else []:
            yield {**some(bid, "bidder", "price", "url"), "name": names[bidder], "sells": auction}
