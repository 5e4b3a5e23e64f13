"""Ordinary items are planned as all others are, or left to those who look at each."""

from __future__ import annotations

import random
import uuid
from typing import Any

import msgspec
import pytest

from queen.core.payload import MAX_DEPTH
from queen.service.intake.items import Planned, plan, plan_plain
from queen.wire.requests import PlainPushRequest, PushRequest

plain = msgspec.json.Decoder(PlainPushRequest)
whole = msgspec.json.Decoder(PushRequest)

QUEUES = ["q", "orders.new", "ü", "", "x" * 256, "a\x00b"]
IDS = ["t1", "t2", "ü", "", "y" * 255, "y" * 256, "a\x00b", None]
PAYLOADS: list[Any] = [1, None, {"a": "b" * 300}, [[]] * 200, "ü", "x" * 1000]
DEEP = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)


def as_plain(body: bytes, subject: str | None = None) -> list[Planned] | None:
    try:
        return plan_plain(plain.decode(body).items, subject)
    except msgspec.DecodeError:
        return None


def shape(planned: list[Planned]) -> list[Any]:
    return [
        (
            append.queue,
            append.partition,
            list(append.ids),
            [bytes(payload) for payload in append.payloads or ()],
            append.weight,
            append.extras,
            list(indexes),
            list(ids),
        )
        for append, indexes, ids in planned
    ]


def random_item(rng: random.Random, good: int) -> dict[str, Any]:
    """Return an item; of each list the first ones, so many, are as they should be."""
    item = {
        "queue": rng.choice(QUEUES[:good]),
        "transactionId": rng.choice(IDS[:good]),
        "payload": rng.choice(PAYLOADS),
    }
    if rng.random() < 0.5:
        item["partition"] = rng.choice(["p", "Default", "p2"])
    return item


@pytest.mark.parametrize("subject", [None, "somebody"])
@pytest.mark.parametrize("good", [2, 6])
def test_what_is_planned_at_once_is_planned_alike(subject: str | None, good: int) -> None:
    rng = random.Random(good)
    times = 0
    for _ in range(2000):
        items = [random_item(rng, good) for _ in range(rng.randint(1, 4))]
        body = msgspec.json.encode({"items": items})
        planned = as_plain(body, subject)
        if planned is None:
            continue
        times += 1
        pushed = whole.decode(body).items
        expected, refused, timed = plan(pushed, range(len(items)), trusted=True, subject=subject)
        assert (refused, timed) == ([], False)
        assert shape(planned) == shape(expected)
    assert times > 100


@pytest.mark.parametrize(
    "item",
    [
        {"transactionId": "t", "payload": 1},
        {"queue": "q", "transactionId": "t"},
        {"queue": "q", "transactionId": "t", "payload": 1, "partition": None},
        {"queue": "q", "transactionId": "t", "payload": 1, "partition": ""},
        {"queue": "q", "transactionId": "t", "payload": 1, "delay": 1},
        {"queue": "q", "transactionId": "t", "payload": 1, "traceId": None},
        {"queue": "q", "transactionId": "t", "payload": 1, "unknown": 1},
        {"queue": "", "transactionId": "t", "payload": 1},
        {"queue": "q", "transactionId": "ü", "payload": 1},
        {"queue": "q", "transactionId": "t", "payload": msgspec.Raw(DEEP)},
    ],
    ids=",".join,
)
def test_what_is_unusual_is_left_to_others(item: dict[str, Any]) -> None:
    good = {"queue": "q", "transactionId": "t0", "payload": 1}
    assert as_plain(msgspec.json.encode({"items": [good]})) is not None
    assert as_plain(msgspec.json.encode({"items": [good, item]})) is None


def test_an_item_without_an_id_gets_one() -> None:
    items = [{"queue": "q", "payload": 1}, {"queue": "q", "transactionId": "t", "payload": 1}]
    planned = as_plain(msgspec.json.encode({"items": items}))
    assert planned is not None
    ((append, _, (made, given)),) = planned
    assert given == "t" and str(uuid.UUID(made)) == made
    assert list(append.ids) == [made.encode(), b"t"]


def test_a_request_without_items_is_left_to_others() -> None:
    assert as_plain(b'{"items":[]}') is None
