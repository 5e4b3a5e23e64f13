"""Joins by few keys: rows meet in buckets of time, and pairs are those of plain Python."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from queen import SyncQueen
from queen.spark.pipelines.compiler import compile_definition
from queen.spark.pipelines.reading import schema_of
from queen.spark.pipelines.run import Running, checked_definition, results_of
from queen.wire.answers import iso
from tests.api import Api
from tests.spark.history import messages

WITHIN = timedelta(seconds=2)
BUCKET = 4 * WITHIN
KEYS = ("a", "b")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Row(NamedTuple):
    id: str
    key: str
    at: datetime

    def plain(self) -> dict[str, Any]:
        return {"createdAt": self.at, "data": {"id": self.id, "k": self.key, "ts": self.at}}


def _rows(side: str, count: int) -> list[Row]:
    """Rows around the bounds of buckets, and as far from them as partners may be."""
    chance = random.Random(side)
    apart = [timedelta(0), WITHIN, -WITHIN, 2 * WITHIN, -2 * WITHIN]
    rows = []
    for number in range(count):
        begin = chance.choice([EPOCH, datetime(2026, 1, 1, tzinfo=UTC)])
        bound = begin + BUCKET * chance.randrange(-2, 3)
        at = bound + chance.choice(apart) + timedelta(microseconds=chance.randrange(-1, 2))
        rows.append(Row(f"{side}-{number}", chance.choice(KEYS), at))
    return rows


def _definition(how: str) -> Any:
    schema = "id string, k string, ts timestamp"
    names = ("orders", "payments")
    given = {
        "name": "p",
        "reads": [
            {"name": name, "queues": [name], "schema": schema, "eventTime": "data.ts"}
            for name in names
        ],
        "joins": [
            {
                "on": [("data.k", "data.k")],
                "withinMs": WITHIN // timedelta(milliseconds=1),
                "how": how,
            }
        ],
        "select": {name: f"{name}.data.id" for name in names[: 1 if how == "anti" else 2]},
        "output": {"queue": "out"},
    }
    return checked_definition(given)


def _joined(orders: list[Row], payments: list[Row], how: str) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for order in orders:
        partners = [
            payment.id
            for payment in payments
            if payment.key == order.key and abs(payment.at - order.at) <= WITHIN
        ]
        if how == "anti":
            results += [] if partners else [{"orders": order.id}]
            continue
        nobody = [None] if how == "left" else []
        results += [{"orders": order.id, "payments": each} for each in partners or nobody]
    return results


@pytest.mark.parametrize("how", ["inner", "left", "anti"])
def test_rows_meet_once_wherever_buckets_begin(spark: SparkSession, how: str) -> None:
    definition = _definition(how)
    # Few enough payments that some orders have none.
    sides = {"orders": _rows("orders", 150), "payments": _rows("payments", 50)}
    frames = {
        reads.name: spark.createDataFrame(
            [row.plain() for row in sides[reads.name]], schema_of(reads, markers=False)
        )
        for reads in definition.reads
    }
    results = results_of(compile_definition(definition, frames)).collect()
    wanted = _joined(sides["orders"], sides["payments"], how)
    assert len(wanted) > 10
    assert _sorted([row.asDict() for row in results]) == _sorted(wanted)


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row) for row in rows)


class Shop:
    """Two queues and a pipeline that joins them."""

    def __init__(self, queen: SyncQueen, api: Api, queue: str, spark: SparkSession) -> None:
        self._api, self._spark = api, spark
        self._queues = {side: f"{queue}-{side}" for side in ("orders", "payments")}
        self._out = f"{queue}-out"
        orders, payments = (self._side(queen, side) for side in self._queues)
        joined = orders.join(payments, on="data.user", within=WITHIN).grace_period(3600)
        self.stream = joined.select("orders.data.id", paid="payments.data.id").to(self._out)

    def _side(self, queen: SyncQueen, side: str) -> Any:
        stream = queen.stream(self._out).sources(self._queues[side]).named(side)
        return stream.schema("id bigint, user string, at timestamp").event_time("data.at")

    def push(self, side: str, number: int, at: datetime) -> None:
        payload = {"id": number, "user": "ann", "at": iso(at)}
        assert self._api.push({"queue": self._queues[side], "payload": payload}).status == 201

    def run(self, checkpoint: Path) -> Running:
        running: Running = self.stream.run(
            self._spark, checkpoint=str(checkpoint), available_now=True, starting="earliest"
        )
        assert running.wait()
        return running

    def results(self) -> list[Any]:
        return messages(self._api, self._out)


@pytest.mark.parametrize("is_old", [True, False], ids=["old", "new"])
def test_a_checkpoint_keeps_the_plan_that_it_was_made_with(
    is_old: bool, queen: SyncQueen, api: Api, queue: str, spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(queen, api, queue, spark)
    at = datetime.now(UTC) - timedelta(minutes=1)
    note = tmp_path / "queen.json"
    if is_old:
        fields = {"transaction": queue, "definition": shop.stream.definition(), "has_aside": False}
        note.write_text(json.dumps(fields, default=str))
    shop.push("orders", 1, at)
    shop.push("payments", 7, at - 2 * WITHIN)
    shop.run(tmp_path)
    assert shop.results() == []
    shop.push("payments", 2, at + WITHIN)
    shop.push("orders", 6, at - 3 * WITHIN)
    running = shop.run(tmp_path)
    assert _sorted(shop.results()) == _sorted([{"id": 1, "paid": 2}, {"id": 6, "paid": 7}])
    plan = str(running.query._jsq.explainInternal(False))
    assert ("_bucket" in plan) is not is_old
    assert json.loads(note.read_bytes())["has_buckets"] is not is_old
