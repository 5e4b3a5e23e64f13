"""Plans become tasks, as often as a query asks for them."""

from __future__ import annotations

from itertools import pairwise

from queen.spark.broker import BrokerAddress
from queen.spark.source.planning import Planner, Selection
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
