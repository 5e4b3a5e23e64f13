"""The database, then the broker, are killed while a micro-batch is under way.

Tasks wait until the outage has begun. So whatever they stage, and what the driver commits, meets
a database that recovers, or a port at which nobody listens; the query goes on when they are back.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from queen.storage.embedded import EmbeddedPostgres
from tests.conftest import ServerProcess
from tests.spark.history import canonical, made_up, messages, write
from tests.spark.summing import Sums, oracle
from tests.waiting import spend, until

_EVENTS, _PER_BATCH = 600, 120
_PATIENCE_S = 120.0


class Outages:
    """A broker with a database of its own, and a query that can be held inside a batch."""

    def __init__(
        self, sums: Sums, postgres: EmbeddedPostgres, start: Callable[[], ServerProcess]
    ) -> None:
        self.sums = sums
        self._postgres = postgres
        self._start = start
        self.server = start()

    def hold_a_batch(self) -> int:
        """Let the next batch begin and not end; return its number."""
        Path(self.sums.waits).touch()
        until(lambda: self.sums.last("offsets") > self.sums.last("commits"), _PATIENCE_S)
        return self.sums.last("offsets")

    def release(self) -> None:
        Path(self.sums.waits).unlink()

    def until_done(self, batch: int) -> None:
        until(lambda: self.sums.last("commits") >= batch, _PATIENCE_S)

    def kill_database(self) -> None:
        pid = self._postgres.postmaster_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def kill_broker(self) -> None:
        self.server.kill()

    def start_broker(self) -> None:
        self.server = self._start()


@pytest.fixture
def outages(
    start_server: Callable[..., ServerProcess], queue: str, tmp_path: Path
) -> Iterator[Outages]:
    data = tmp_path / "data"
    port: list[int] = []

    def start() -> ServerProcess:
        made = start_server("--data-dir", str(data), port=port[0] if port else None)
        port[:] = [made.port]
        return made

    sums = Sums("", queue, f"{queue}-out", str(tmp_path / "checkpoint"), str(tmp_path / "waits"))
    made = Outages(sums, EmbeddedPostgres(data, {}), start)
    made.sums = sums._replace(url=made.server.url, messages_per_batch=_PER_BATCH)
    yield made
    Path(sums.waits).unlink(missing_ok=True)


@pytest.mark.timeout(600)
def test_a_database_or_a_broker_that_dies_in_a_batch_costs_only_time(
    outages: Outages, spark: SparkSession, tmp_path: Path
) -> None:
    sums = outages.sums
    events = made_up(_EVENTS, [sums.queue], seed=59)
    write(outages.server.api(), EmbeddedPostgres(tmp_path / "data", {}).dsn, events)
    running = sums.start(spark, available_now=True)
    try:
        batch = outages.hold_a_batch()
        outages.kill_database()
        outages.release()
        outages.until_done(batch)
        batch = outages.hold_a_batch()
        outages.kill_broker()
        outages.release()
        # Its tasks ask for a while, and nobody answers.
        spend(1)
        outages.start_broker()
        outages.until_done(batch)
        assert running.wait()
    finally:
        running.query.stop()
    wanted = canonical(oracle(events))
    assert len(wanted) > 50
    assert canonical(messages(outages.server.api(), sums.out)) == wanted
