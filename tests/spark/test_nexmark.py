"""The queries of NEXMark as live pipelines over queues: each gives what plain Python gives."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from benchmarks.nexmark.events import events, iso
from benchmarks.nexmark.filling import Queues, fill, new_queues
from benchmarks.nexmark.oracle import Oracle
from benchmarks.nexmark.queries import QUERIES, run
from benchmarks.nexmark.queries.query import Query
from pyspark.sql import SparkSession

from queen.spark.pipelines.run import Running
from tests.api import Api
from tests.conftest import ServerProcess
from tests.long import IS_LONG, LONG
from tests.spark.history import canonical, messages

EVENTS = 4000
PER_S = 80
# While one query waits for Spark or the broker, another computes.
AT_ONCE = 4
# One of each kind: filters, expressions, files, joins, a static table, windows, sessions, ranks.
QUICK = (3, 5, 10, 11, 13, 19, 21)
CASES = [
    pytest.param(query, id=f"q{query.number}", marks=() if query.number in QUICK else LONG)
    for query in QUERIES
]


class House(NamedTuple):
    """An auction house, what to say about it, and what is being said."""

    queues: Queues
    oracle: Oracle
    files: Path
    # By the numbers of the queries.
    runs: dict[int, Future[Running]]


@pytest.fixture(scope="module")
def house(
    server: ServerProcess,
    dsn: str,
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    queues = new_queues()
    history = list(events(EVENTS, per_s=PER_S, seed=7))
    with psycopg.connect(dsn, autocommit=True) as database:
        fill(server.url, database, history, queues, partitions=3)
    folder = tmp_path_factory.mktemp("nexmark")

    def run_query(query: Query) -> Running:
        own = str(folder / f"q{query.number}")
        out = _out(queues, query)
        running = run(query, server.url, spark, queues, out, files=f"{own}-files", checkpoint=own)
        assert running.wait()
        return running

    with ThreadPoolExecutor(AT_ONCE) as threads:
        runs = {query.number: threads.submit(run_query, query) for query in _asked_for(request)}
        yield House(queues, Oracle(history, queues.begin), folder, runs)


def _asked_for(request: pytest.FixtureRequest) -> list[Query]:
    """Return the queries of the tests that are going to run, in their order."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    given = [call.params.get("query") for call in calls if call is not None]
    asked = [query for query in given if isinstance(query, Query)]
    return [query for query in asked if IS_LONG or query.number in QUICK]


def _out(queues: Queues, query: Query) -> str:
    return f"{queues.bids}-out-{query.number}"


def test_no_query_is_left_out() -> None:
    assert [query.number for query in QUERIES] == list(range(24))


def test_the_page_says_in_what_queries_differ() -> None:
    page = (Path(__file__).parents[2] / "benchmarks" / "README.md").read_text()
    for query in QUERIES:
        if query.differs:
            assert f"| q{query.number} | {query.differs} |" in page


@pytest.mark.parametrize("query", CASES)
def test_a_query_gives_what_plain_python_gives(query: Query, house: House, api: Api) -> None:
    progress = house.runs[query.number].result().progress
    assert progress.dropped_rows == 0
    assert progress.late_rows == 0
    wanted = house.oracle.rows(query.number)
    assert len(wanted) >= 4
    assert progress.output_rows == len(wanted)
    rows: Iterable[dict[str, Any]]
    if query.writes_files:
        rows = _rows_of_files(house.files / f"q{query.number}-files")
    else:
        rows = messages(api, _out(house.queues, query))
    assert canonical(map(_plain, rows)) == canonical(map(_plain, wanted))


def _rows_of_files(folder: Path) -> Iterator[dict[str, Any]]:
    for path in folder.rglob("*.json"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            # A file has as few digits as will do.
            yield {**row, "at": iso(datetime.fromisoformat(row["at"]), 0)}


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """In JSON 227 and 227.0 are the same number."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in row.items()
    }
