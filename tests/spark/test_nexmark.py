"""The queries of NEXMark as live pipelines over queues: each gives what plain Python gives."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
import pytest
from benchmarks.nexmark.events import events
from benchmarks.nexmark.filling import Queues, fill, new_queues
from benchmarks.nexmark.oracle import Oracle
from benchmarks.nexmark.queries import QUERIES, Query, run
from pyspark.sql import SparkSession

from tests.api import Api
from tests.conftest import ServerProcess
from tests.spark.history import canonical, messages

EVENTS = 4000
PER_S = 80


class House(NamedTuple):
    """An auction house, and what to say about it."""

    queues: Queues
    oracle: Oracle


@pytest.fixture(scope="module")
def house(server: ServerProcess, dsn: str) -> House:
    queues = new_queues()
    history = list(events(EVENTS, per_s=PER_S, seed=7))
    with psycopg.connect(dsn, autocommit=True) as database:
        fill(server.url, database, history, queues, partitions=3)
    return House(queues, Oracle(history, queues.begin))


@pytest.mark.parametrize("query", QUERIES, ids=[f"q{query.number}" for query in QUERIES])
def test_a_query_gives_what_plain_python_gives(
    query: Query,
    house: House,
    server: ServerProcess,
    spark: SparkSession,
    api: Api,
    checkpoint: str,
) -> None:
    out = f"{house.queues.bids}-out-{query.number}"
    running = run(query, server.url, spark, house.queues, out, checkpoint=checkpoint)
    assert running.wait()
    assert running.progress.dropped_rows == 0
    assert running.progress.late_rows == 0
    wanted = house.oracle.rows(query.number)
    assert len(wanted) >= 4
    assert canonical(map(_plain, messages(api, out))) == canonical(map(_plain, wanted))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """In JSON 227 and 227.0 are the same number."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in row.items()
    }
