"""Plans become tasks, as often as a query asks for them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from queen.spark.broker import BrokerAddress
from queen.spark.source.planning import Planner, Selection, ranges_of, selection_of
from queen.spark.source.slices import SliceTask
from queen.wire.cuts import Plan, Point, Range, Slice


def test_tasks_can_be_made_of_one_plan_twice() -> None:
    """A query with two branches reads its queues twice: late messages go a way of their own."""
    lane = "00000000-0000-8007-bfff-ffffffffffff"
    points = [Point(at, lane, 0) for at in range(5)]
    ranges = [Range("orders", start, end) for start, end in pairwise(points)]
    plan = Plan([], 5, 4, 400, [Slice([one], 1, 100) for one in ranges])
    planner = Planner(Selection(BrokerAddress(("http://127.0.0.1:1",)), ("orders",)))

    def made() -> list[bytes]:
        tasks = planner.tasks(plan, {"orders": 0}, 5)
        return [one.ranges_json for one in tasks if isinstance(one, SliceTask)]

    assert made() == made()


def _planner(**options: int) -> Planner:
    given = {name.lower(): str(value) for name, value in options.items()}
    return Planner(selection_of({"queue": "orders", **given}, must_be_whole=True))


def _plan_of(slices: int, each_bytes: int) -> Plan:
    lane = "00000000-0000-8007-bfff-ffffffffffff"
    points = [Point(at, lane, 0) for at in range(slices + 1)]
    ranges = [Range("orders", start, end) for start, end in pairwise(points)]
    parts = [Slice([part], 1, each_bytes) for part in ranges]
    return Plan([], slices, slices, slices * each_bytes, parts)


@pytest.mark.parametrize(
    ("options", "each_bytes", "count"),
    [
        # A little: one task, unless there must be more.
        ({}, 10, 1),
        ({"minTasks": 5}, 10, 5),
        ({"minTasks": 500}, 10, 64),
        # Some: as many as cores.
        ({}, 1024 * 1024, 4),
        ({"maxTasks": 3}, 1024 * 1024, 3),
        ({"minTasks": 6, "maxTasks": 6}, 1024 * 1024, 6),
        # Much: more of them, unless there must be fewer.
        ({}, 32 * 1024 * 1024, 64),
        ({"maxTasks": 10}, 32 * 1024 * 1024, 10),
    ],
)
def test_tasks_have_bounds(options: dict[str, int], each_bytes: int, count: int) -> None:
    plan = _plan_of(64, each_bytes)
    tasks = _planner(tasks=4, **options).tasks(plan, {"orders": 0})
    assert len(tasks) == count
    assert sum(task.messages for task in tasks) == 64


def test_bounds_hold_for_a_window_by_its_ranges() -> None:
    held = ranges_of(
        '[{"queue": "q", "partitionId": "00000000-0000-8007-bfff-ffffffffffff",'
        ' "from": 0, "to": 100}]'
    )
    assert len(_planner(tasks=4).tasks_of_ranges(held)) == 1
    assert len(_planner(tasks=4, minTasks=3).tasks_of_ranges(held)) == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"minTasks": 3, "maxTasks": 2}, "minTasks, 3, is more than maxTasks, 2"),
        ({"minTasks": 0}, "less than 1"),
        ({"maxTasks": 10_001}, "more than 10000"),
    ],
)
def test_bounds_that_nothing_can_keep_are_refused(options: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        _planner(**options)
