"""Random definitions give the same live, as backfills, and as plain Python.

`python -m tests.spark.random_definitions --seed 7 --count 200` tries as many as one likes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.conftest import ServerProcess
from tests.long import IS_LONG
from tests.spark.random_definitions.generator import made_up
from tests.spark.random_definitions.runner import Broker, Outcome, tried_all

# Of every kind: windows, joins, sessions, ranks, dedup, of the past and beside pushes.
SEEDS = [4, 7, 22, 26, *([1, 2, 6, 9, 12, 18] if IS_LONG else [])]
_AT_ONCE = 5
# The first test waits for all of them.
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def outcomes(
    server: ServerProcess, dsn: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, Outcome]]:
    broker = Broker(server.url, dsn, spark, tmp_path_factory.mktemp("checkpoints"))
    yield {outcome.spec.seed: outcome for outcome in tried_all(broker, SEEDS, _AT_ONCE)}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_definition_gives_the_same_in_every_way(
    outcomes: dict[int, Outcome], seed: int
) -> None:
    outcome = outcomes[seed]
    assert not outcome.differences, outcome.report
    assert outcome.numbers["messages"] >= 40


def test_they_are_of_every_kind() -> None:
    specs = [made_up(seed, "any") for seed in range(1, 201)]
    windows = {spec.window.type if spec.window else None for spec in specs}
    assert windows == {None, "tumbling", "sliding", "session"}
    hows = {join.how for spec in specs for join in spec.joins}
    assert hows == {"inner", "left", "full", "anti"}
    assert {len(spec.joins) for spec in specs} == {0, 1, 2}
    assert len({spec.zone_name for spec in specs}) == 5
    for part in ("dedup", "keys", "distinct", "having", "top", "select", "late_to", "errors_to"):
        assert sum(bool(getattr(spec, part)) for spec in specs) >= 10, part
    assert {spec.is_past for spec in specs} == {True, False}
