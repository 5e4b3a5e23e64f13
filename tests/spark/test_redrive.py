"""Dead letters of a pipeline that are sent back: its results are what a simple program says.

Messages of which some cannot be computed with come at random, and letters are sent back at
random, before and after the definition can do with them. `QUEEN_ORACLE_CUTS` says how many
histories are made up.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queen import SyncQueen
from tests.api import Api
from tests.long import IS_LONG
from tests.spark.history import canonical, messages

RUNS = int(os.environ.get("QUEEN_ORACLE_CUTS", "1"))
SCHEMA = "id bigint, amount string"


class Orders:
    """A queue of orders, of which some have an amount that is no number."""

    def __init__(self, api: Api, queue: str, chance: random.Random) -> None:
        self._api = api
        self._queue = queue
        self._chance = chance
        self.good: list[int] = []
        self.bad: list[int] = []

    def push(self, count: int) -> None:
        for _ in range(count):
            number = len(self.good) + len(self.bad)
            is_good = self._chance.random() < 0.7
            (self.good if is_good else self.bad).append(number)
            payload = {"id": number, "amount": str(number) if is_good else "viel"}
            item = {"queue": self._queue, "partition": f"p{number % 3}", "payload": payload}
            assert self._api.push(item).status == 201


class Letters:
    """The dead letters of a pipeline."""

    def __init__(self, queen: SyncQueen, queue: str, group: str) -> None:
        self._queen = queen
        self._where = {"queue": queue, "consumerGroup": group}

    def ids(self) -> list[int]:
        path = "/api/v1/dlq?limit=1000&" + "&".join(f"{k}={v}" for k, v in self._where.items())
        return sorted(
            letter["data"]["id"] for letter in self._queen.request("GET", path)["messages"]
        )

    def send_back(self, limit: int) -> int:
        body = {**self._where, "limit": limit}
        retried: int = self._queen.request("POST", "/api/v1/dlq/retry", body)["retried"]
        return retried


def _run(stream: Any, spark: SparkSession, folder: Path, **options: Any) -> None:
    given = {"checkpoint": str(folder), "available_now": True, "starting": "earliest", **options}
    assert stream.run(spark, max_messages_per_trigger=13 if IS_LONG else 26, **given).wait()


@pytest.mark.parametrize("seed", range(RUNS))
def test_letters_that_are_sent_back_are_tried_again_and_counted_once(
    api: Api, queen: SyncQueen, spark: SparkSession, queue: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    orders = Orders(api, queue, chance)
    stream = queen.stream(f"p-{queue}").sources(queue).schema(SCHEMA).to(f"out-{queue}")
    strict = stream.select("data.id", amount="cast(data.amount as int)")
    lenient = stream.select("data.id", amount="coalesce(try_cast(data.amount as int), -1)")
    letters = Letters(queen, queue, stream.name)
    for _ in range(2):
        orders.push(chance.randrange(15, 30))
        if letters_are := len(orders.bad):
            letters.send_back(chance.randrange(1, letters_are + 1))
        _run(strict, spark, tmp_path)
        # What was sent back has failed again; it is one letter, as before.
        assert letters.ids() == orders.bad
    assert len(orders.bad) > 5
    orders.push(10)
    sent = letters.send_back(3)
    assert sent == 3
    left = letters.ids()
    _run(lenient, spark, tmp_path, accept_changes=True, replace=True)
    assert letters.ids() == left
    rows = [{"id": number, "amount": number} for number in orders.good]
    rows += [{"id": number, "amount": -1} for number in orders.bad if number not in left]
    assert canonical(messages(api, f"out-{queue}")) == canonical(rows)
    assert letters.send_back(1000) == len(left)
    _run(lenient, spark, tmp_path)
    numbers = Counter(row["id"] for row in messages(api, f"out-{queue}"))
    assert numbers == Counter([*orders.good, *orders.bad])
    assert letters.ids() == []
    # The copies were for this pipeline: another one sees what was pushed.
    other = queen.stream(f"other-{queue}").sources(queue).schema(SCHEMA).select("data.id")
    _run(other.to(f"other-out-{queue}"), spark, tmp_path / "other")
    assert Counter(row["id"] for row in messages(api, f"other-out-{queue}")) == numbers
