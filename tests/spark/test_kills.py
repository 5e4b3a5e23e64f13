"""Drivers and workers of a stateful pipeline are killed; each of its results is there once.

A campaign is a list of deaths. Each begins with a new driver on the checkpoint of the last one:

    a  asked for the next batch, which has no number yet
    b  the batch is in Spark's log, its tasks are at work
    c  published, and not yet in Spark's log of commits
    d  as soon as Spark has noted a commit
    w  the Python processes of its tasks die, the driver lives
    t  a second driver starts on the same checkpoint
    r  at any moment

`QUEEN_TEST_SPARK_KILLS` says how many random ones there are; without it only c happens, the one
that leaves something to recognise.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped,unused-ignore]
import psycopg
import pytest
from pyspark.sql import SparkSession

from tests.api import Api
from tests.conftest import ServerProcess
from tests.spark.drivers import Driver
from tests.spark.history import canonical, made_up, messages, write
from tests.spark.summing import Sums, oracle
from tests.waiting import spend, until

_KILLS = int(os.environ.get("QUEEN_TEST_SPARK_KILLS", "0"))
_DEATHS = "c" if not _KILLS else "abcdwt" + "r" * _KILLS
_EVENTS = 750 + 150 * len(_DEATHS)
_LONGEST_PAUSE_S = 2.5
_TRIES = 5
_TWINS_S = 120.0
_REPEATED_S = 240.0


class Campaign:
    """One checkpoint, and the drivers that die on it."""

    def __init__(
        self, sums: Sums, server: ServerProcess, database: psycopg.Connection[Any], folder: Path
    ) -> None:
        self._sums = sums
        self._server = server
        self._database = database
        self._folder = folder
        self._stack = ExitStack()
        self._drivers = 0
        self.happened: list[str] = []

    def close(self) -> None:
        self._stack.close()

    def die(self, death: str) -> None:
        """Start a driver, and let something happen to it; again when the moment was missed."""
        deaths: dict[str, Callable[[], bool]] = {
            "a": self._asked_for_a_batch,
            "b": self._inside_a_batch,
            "c": self._published,
            "d": self._committed,
            "w": self._without_workers,
            "t": self._with_a_twin,
            "r": self._somewhere,
        }
        for _ in range(_TRIES):
            if deaths[death]():
                self.happened.append(death)
                return
        raise AssertionError(f"{death}: the moment was missed {_TRIES} times")

    def _driver(self) -> Driver:
        """Return a driver that has finished a batch of its own."""
        before = self._sums.last("commits")
        driver = self._started()
        driver.until(lambda: self._sums.last("commits") > before)
        return driver

    def _started(self) -> Driver:
        self._drivers += 1
        log = self._folder / f"driver-{self._drivers}.log"
        driver = Driver("tests.spark.summing", self._sums._asdict(), log)
        self._stack.callback(driver.kill)
        return driver

    # ---- deaths ----

    def _asked_for_a_batch(self) -> bool:
        """A paused group is given no batch, so its driver asks again and again. The server stops
        to answer, and the driver dies while it waits for it."""
        driver = self._driver()
        api = self._server.api()
        path = f"/api/v1/consumer-groups/{self._sums.name}"
        assert api.call("POST", f"{path}/pause").status == 200
        driver.until(lambda: self._sums.last("offsets") == self._sums.last("commits"))
        server = [psutil.Process(self._server.pid), *psutil.Process(self._server.pid).children()]
        for process in server:
            process.suspend()
        driver.kill()
        for process in server:
            process.resume()
        assert api.call("POST", f"{path}/resume").status == 200
        return self._sums.last("offsets") == self._sums.last("commits")

    def _inside_a_batch(self) -> bool:
        driver = self._driver()
        waits = Path(self._sums.waits)
        waits.touch()
        driver.until(self._is_inside)
        driver.kill()
        waits.unlink()
        return self._is_inside() and self._last_published() < self._sums.last("offsets")

    def _is_inside(self) -> bool:
        return self._sums.last("offsets") > self._sums.last("commits")

    def _published(self) -> bool:
        """Kill it when the broker has published; a commit that was noted even so is forgotten,
        which leaves everything as if it had not been noted yet."""
        driver = self._driver()
        before = self._last_published()
        driver.until(lambda: self._last_published() > before)
        driver.kill()
        batch = self._last_published()
        self._sums.forget_commit(batch)
        return self._sums.last("offsets") == batch == self._sums.last("commits") + 1

    def _last_published(self) -> int:
        found = self._database.execute(
            "select last_batch from queen.sinks where query = %s", (self._sums.query_id,)
        ).fetchone()
        return -1 if found is None else int(found[0])

    def _committed(self) -> bool:
        self._driver().kill()
        return True

    def _without_workers(self) -> bool:
        """Tasks are repeated by others. Spark gives a query up whose planner dies: then the
        driver ends, and the next one goes on."""
        driver = self._driver()
        waits = Path(self._sums.waits)
        waits.touch()
        driver.until(self._is_inside)
        batch = self._sums.last("offsets")
        driver.until(lambda: bool(driver.workers()))
        for worker in driver.workers():
            os.kill(worker.pid, signal.SIGKILL)
        waits.unlink()
        until(lambda: not driver.is_running or self._sums.last("commits") >= batch, _REPEATED_S)
        driver.kill()
        return True

    def _with_a_twin(self) -> bool:
        """One of two must give up; both may reach the sink before."""
        first = self._driver()
        second = self._started()
        with suppress(AssertionError):
            until(lambda: not (first.is_running and second.is_running), _TWINS_S)
        one_gave_up = first.is_running != second.is_running
        for one in (first, second):
            one.kill()
        return one_gave_up

    def _somewhere(self) -> bool:
        driver = self._driver()
        spend(random.uniform(0, _LONGEST_PAUSE_S))
        driver.kill()
        return True


@pytest.fixture
def sums(start_server: Callable[..., ServerProcess], dsn: str, queue: str, tmp_path: Path) -> Sums:
    return Sums("", queue, f"{queue}-out", str(tmp_path / "checkpoint"), str(tmp_path / "waits"))


@pytest.fixture
def campaign(
    sums: Sums, start_server: Callable[..., ServerProcess], dsn: str, tmp_path: Path
) -> Iterator[Campaign]:
    # A server of its own, since it is stopped for a while.
    server = start_server("--database-url", dsn, log=tmp_path / "server.log")
    with psycopg.connect(dsn, autocommit=True) as database:
        made = Campaign(sums._replace(url=server.url), server, database, tmp_path)
        yield made
        made.close()


@pytest.mark.timeout(900 + 180 * len(_DEATHS))
def test_whoever_is_killed_each_result_is_there_once(
    campaign: Campaign, spark: SparkSession, server: ServerProcess, api: Api, sums: Sums, dsn: str
) -> None:
    events = made_up(_EVENTS, [sums.queue], seed=_EVENTS)
    write(api, dsn, events)
    for death in _DEATHS:
        campaign.die(death)
    assert "".join(campaign.happened) == _DEATHS
    wanted = canonical(oracle(events))
    assert len(wanted) > 50
    # The other connection has been idle for long.
    api = server.api()
    rest = sums._replace(url=server.url, messages_per_batch=_EVENTS)
    assert rest.start(spark, available_now=True).wait()
    assert canonical(messages(api, sums.out)) == wanted
    # A new checkpoint is a new query: its batches are not taken for those of the old one.
    anew = rest._replace(checkpoint=f"{rest.checkpoint}-new", messages_per_batch=_EVENTS // 3)
    assert anew.start(spark, available_now=True).wait()
    assert canonical(messages(api, sums.out)) == sorted(wanted * 2)
