"""A hundred thousand partitions and five million messages: every page a dashboard reads is quick.

The aim is 50 ms at the median. A busy machine is slower, so the limit here is four times that;
the exact numbers are printed, and `python -m benchmarks.dashboard` measures them properly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import asyncpg
import pytest
from benchmarks.dashboard import ROUTES, count, medians_ms
from benchmarks.volume import MESSAGES_EACH, PARTITIONS, QUEUE, fill

from queen.storage.embedded import EmbeddedPostgres
from queen.storage.migrate import migrate
from queen.storage.tuning import settings_for
from tests.api import Api
from tests.conftest import ServerProcess

_AIM_MS = 50
_NOISE = 4
_TRIES = 6
_FILL_LIMIT_S = 240

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


async def _prepare(dsn: str) -> float:
    connection = await asyncpg.connect(dsn)
    try:
        await migrate(connection)
        started = time.monotonic()
        await fill(connection)
        return time.monotonic() - started
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server over a log of that size, counted once."""
    postgres = EmbeddedPostgres(tmp_path_factory.mktemp("pg"), settings_for(2 * 1024**3, 2))
    postgres.start()
    try:
        took_s = asyncio.run(_prepare(postgres.dsn))
        assert took_s < _FILL_LIMIT_S
        running = ServerProcess("--database-url", postgres.dsn)
        try:
            api = running.api()
            count(running.url)
            yield api
        finally:
            assert running.stop() == 0
    finally:
        postgres.stop()


def test_the_counts_are_right(large: Api) -> None:
    found = large.call("GET", f"/api/v1/resources/queues/{QUEUE}?limit=1").json
    half = PARTITIONS * MESSAGES_EACH // 2
    assert found["pagination"]["total"] == PARTITIONS
    assert found["totals"]["total"] == PARTITIONS * MESSAGES_EACH
    groups = {one["name"]: one for one in found["groups"]}
    assert groups["__QUEUE_MODE__"]["pending"] == half
    assert groups["__QUEUE_MODE__"]["leasedPartitions"] == PARTITIONS // 100
    assert groups["__QUEUE_MODE__"]["processing"] == PARTITIONS // 100 * 10
    assert groups["sparse"]["pending"] == half + half // 2
    # It came half an hour into an hour of messages.
    assert abs(groups["late"]["pending"] - half) <= half // 100


def test_groups_are_counted_too(large: Api) -> None:
    found = {one["name"]: one for one in large.call("GET", "/api/v1/consumer-groups").json}
    half = PARTITIONS * MESSAGES_EACH // 2
    everywhere, sparse, late = (found[name] for name in ("__QUEUE_MODE__", "sparse", "late"))
    # Consumers are counted by their leases.
    assert 0 < everywhere["members"] <= everywhere["activeLeases"]
    assert (sparse["members"], late["members"]) == (0, 0)
    assert (everywhere["totalLag"], sparse["totalLag"]) == (half, half + half // 2)
    assert everywhere["partitionsWithLag"] == sparse["partitionsWithLag"] == PARTITIONS
    assert everywhere["activeLeases"] == PARTITIONS // 100
    assert 3600 <= everywhere["maxTimeLag"] < 7200
    assert (everywhere["state"], late["state"]) == ("Lagging", "Dead")


def test_the_worst_partitions_are_the_oldest(large: Api) -> None:
    found = large.call("GET", "/api/v1/consumer-groups/lagging?minLagSeconds=0").json
    # Partitions were filled from now on backwards, and two groups have not read their end.
    names = [f"p{n}" for n in range(PARTITIONS, PARTITIONS - 500, -1)]
    assert [one["partition_name"] for one in found] == [name for name in names for _ in range(2)]
    assert {one["consumer_group"] for one in found} == {"__QUEUE_MODE__", "sparse"}


def test_every_route_is_quick(large: Api) -> None:
    """At the best of some tries: a route that reads the whole log is quick in none of them."""
    best = {path: float("inf") for path in ROUTES}
    for _ in range(_TRIES):
        medians = medians_ms(large.url)
        assert set(medians) == set(ROUTES)
        best = {path: min(ms, medians[path]) for path, ms in best.items()}
        slow = {path: ms for path, ms in best.items() if ms > _AIM_MS * _NOISE}
        if not slow:
            break
    for path, median_ms in best.items():
        print(f"{median_ms:8.1f} ms  {path}")
    assert not slow


def test_an_old_count_says_its_age(large: Api) -> None:
    found = large.call("GET", "/api/v1/resources/overview").json
    assert found["statsAge"] > 0
    assert found["statsAt"] < found["timestamp"]
    refreshed = large.call("POST", "/api/v1/stats/refresh").json
    assert refreshed["skipped"] or refreshed["statsAt"] > found["statsAt"]
