"""Tables, files and static joins when their driver is killed: each result is there once.

One driver runs five pipelines over the same events, with every fault that events have. It is
killed when one of them is inside the transaction of its table, and the others are between the
commit of what they wrote and the note of it in Spark's log. What is there in the end is what a
simple program over the same events says, and what a backfill gives where there is one.

`QUEEN_ORACLE_KILLS` says how many drivers die, the others at any moment; `QUEEN_ORACLE_EVENTS`
how many events there are. It takes long. In every run of the tests a driver is killed between two
commits (`test_kills`), and tables and files are written again as it leaves them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from queen import SyncQueen
from queen.spark.pipelines.backfill import backfill, plain_rows
from queen.spark.pipelines.run import Options, checked_definition
from tests.api import Api
from tests.conftest import ServerProcess
from tests.contract.groupcalls import pause, resume
from tests.long import LONG
from tests.spark import delivering
from tests.spark.delivering import KINDS, Deliveries
from tests.spark.drivers import Driver
from tests.spark.history import canonical, made_up, messages, write
from tests.waiting import spend

KILLS = int(os.environ.get("QUEEN_ORACLE_KILLS", "1"))
EVENTS = int(os.environ.get("QUEEN_ORACLE_EVENTS", "1000"))
_LONGEST_PAUSE_S = 2.5
_TRIES = 20
# Those that are paused, so that they are between two batches when the driver dies.
_PAUSED = tuple(kind for kind in KINDS if kind != "latest")


class Campaign:
    """Some checkpoints, and the drivers that die on them."""

    def __init__(self, deliveries: Deliveries, api: Api, database: psycopg.Connection[Any]) -> None:
        self._deliveries = deliveries
        self._api = api
        self._database = database
        self._drivers = 0
        self._stack = ExitStack()

    def close(self) -> None:
        self._stack.close()

    def die_between_commits(self) -> None:
        """One dies inside the transaction of its table, the others after theirs and before Spark
        knows of it."""
        deliveries = self._deliveries
        driver = self._driver()
        driver.until(lambda: self._noted("latest") >= 0 and self._noted("sums") >= 0)
        with psycopg.connect(deliveries.dsn) as holder:
            holder.execute(f"lock table {deliveries.table('latest')} in access exclusive mode")
            self._rest_between_batches(driver)
            driver.until(self._is_held_up)
            driver.kill()
        for kind in _PAUSED:
            deliveries.forget_commit(kind)
            assert resume(self._api, deliveries.name(kind)).status == 200
        assert self._noted("latest") < deliveries.last("latest", "offsets")
        assert self._noted("sums") == deliveries.last("sums", "offsets")
        for kind in KINDS:
            assert deliveries.last(kind, "offsets") == deliveries.last(kind, "commits") + 1

    def _rest_between_batches(self, driver: Driver) -> None:
        """Pause all but one when the last batch of the table without keys had results."""
        for _ in range(_TRIES):
            before = self._noted("sums")
            driver.until(lambda before=before: self._noted("sums") > before)  # type: ignore[misc]
            for kind in _PAUSED:
                assert pause(self._api, self._deliveries.name(kind)).status == 200
            driver.until(lambda: all(map(self._is_at_rest, _PAUSED)))
            if self._noted("sums") == self._deliveries.last("sums", "commits"):
                return
            for kind in _PAUSED:
                assert resume(self._api, self._deliveries.name(kind)).status == 200
        raise AssertionError(f"the moment was missed {_TRIES} times")

    def _is_at_rest(self, kind: str) -> bool:
        done = self._deliveries.last(kind, "commits")
        return done >= 0 and self._deliveries.last(kind, "offsets") == done

    def _is_held_up(self) -> bool:
        waiting = self._database.execute(
            "select 1 from pg_locks where not granted and relation = %s::regclass",
            (self._deliveries.table("latest"),),
        ).fetchone()
        return waiting is not None

    def die_somewhere(self, chance: random.Random) -> None:
        """A commit that was noted is forgotten, or not."""
        driver = self._driver()
        before = {kind: self._deliveries.last(kind, "commits") for kind in KINDS}
        driver.until(
            lambda: any(self._deliveries.last(kind, "commits") > before[kind] for kind in KINDS)
        )
        spend(chance.uniform(0, _LONGEST_PAUSE_S))
        driver.kill()
        for kind in KINDS:
            if self._is_at_rest(kind) and chance.random() < 0.5:
                self._deliveries.forget_commit(kind)

    def _driver(self) -> Driver:
        self._drivers += 1
        log = Path(self._deliveries.folder) / f"driver-{self._drivers}.log"
        driver = Driver("tests.spark.delivering", self._deliveries._asdict(), log)
        self._stack.callback(driver.kill)
        return driver

    def _noted(self, kind: str) -> int:
        """Return the last batch that the database of a table has."""
        if not self._database.execute("select to_regclass('queen_pipeline_batches')").fetchone()[0]:  # type: ignore[index]
            return -1
        row = self._database.execute(
            "select batch from queen_pipeline_batches where pipeline = %s",
            (self._deliveries.transaction(kind),),
        ).fetchone()
        return -1 if row is None else int(row[0])


@pytest.fixture
def deliveries(server: ServerProcess, dsn: str, queue: str, tmp_path: Path) -> Deliveries:
    return Deliveries(server.url, dsn, queue, str(tmp_path))


@pytest.fixture
def campaign(deliveries: Deliveries, api: Api, dsn: str) -> Iterator[Campaign]:
    with psycopg.connect(dsn, autocommit=True) as database:
        made = Campaign(deliveries, api, database)
        yield made
        made.close()


def _table_rows(dsn: str, table: str) -> list[dict[str, Any]]:
    at = 'to_char("{0}" at time zone \'UTC\', \'YYYY-MM-DD"T"HH24:MI:SS.US"Z"\') as "{0}"'
    times = ", ".join(at.format(name) for name in ("windowStart", "windowEnd"))
    with psycopg.connect(dsn) as database:
        cursor = database.execute(f'select {times}, "user", total, n from {table}')
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@LONG
@pytest.mark.timeout(900 + 180 * KILLS)
def test_whenever_the_driver_is_killed_each_result_is_delivered_once(
    campaign: Campaign,
    deliveries: Deliveries,
    spark: SparkSession,
    server: ServerProcess,
    dsn: str,
) -> None:
    events = made_up(EVENTS, [deliveries.queue], seed=EVENTS)
    api = server.api()
    write(api, dsn, events)
    campaign.die_between_commits()
    for number in range(1, KILLS):
        campaign.die_somewhere(random.Random(number))
    rest = deliveries._replace(messages_per_batch=EVENTS)
    with SyncQueen(server.url) as queen:
        running = [rest.start(spark, queen, kind, available_now=True) for kind in KINDS]
        assert all(run.wait() for run in running)
        streams = {kind: rest.stream(queen, kind) for kind in ("sums", "copies")}
    api = server.api()
    wanted = canonical(delivering.sums(events))
    assert len(wanted) > 50
    assert canonical(_table_rows(dsn, deliveries.table("sums"))) == wanted
    assert canonical(_table_rows(dsn, deliveries.table("latest"))) == canonical(
        delivering.latest(events)
    )
    aside = [row["data"]["id"] for row in messages(api, deliveries.out("sums"))]
    assert sorted(aside) == sorted(delivering.late(events))
    files = spark.read.parquet(deliveries.files).select("id", "user", "amount")
    copies = canonical(delivering.copies(events))
    assert canonical(row.asDict() for row in files.collect()) == copies
    for kind, oracle in (("named", delivering.named), ("regions", delivering.regions)):
        rows = canonical(messages(api, deliveries.out(kind)))
        assert rows == canonical(oracle(events)), kind
        assert len(rows) > 20
    for kind, rows in (("sums", wanted), ("copies", copies)):
        definition = checked_definition(streams[kind].definition())
        history = backfill(definition, spark, Options(url=server.url), None, None)
        assert canonical(plain_rows(history)) == rows, kind
