"""Waiting work is taken in proportion to the weights of namespaces."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.core.pacing.shares import FairOrder, parse_weights
from queen.errors import Overloaded
from queen.service.log.batcher import Batcher


class Work(NamedTuple):
    namespace: str
    number: int
    weight: int = 1
    order: str = ""


def owner_of(work: Work) -> tuple[str, str]:
    return work.order or work.namespace, work.namespace


def fair(**weights: int) -> FairOrder[Work]:
    return FairOrder({"*": 1, **weights}, owner_of)


def take(order: FairOrder[Work], count: int) -> list[Work]:
    taken = []
    for _ in range(count):
        first = order[0]
        assert order.popleft() is first
        taken.append(first)
    return taken


def test_a_burst_of_one_leaves_the_others_their_part() -> None:
    order = fair(a=3)
    for number in range(1000):
        order.append(Work("a", number))
    for number in range(10):
        order.append(Work("b", number))
    first = take(order, 40)
    assert Counter(work.namespace for work in first) == {"a": 30, "b": 10}
    assert [work.number for work in take(order, 970)] == list(range(30, 1000))


def test_weights_of_items_count() -> None:
    order = fair()
    for number in range(100):
        order.append(Work("large", number, 10))
        order.append(Work("small", number))
    counts = Counter(work.namespace for work in take(order, 55))
    assert 49 <= counts["small"] <= 51


def test_nobody_saves_up() -> None:
    order = fair()
    for number in range(500):
        order.append(Work("a", number))
    take(order, 400)
    for number in range(50):
        order.append(Work("b", number))
    counts = Counter(work.namespace for work in take(order, 40))
    assert counts == {"a": 20, "b": 20}


def test_what_is_ordered_stays_in_order_though_its_namespace_changes() -> None:
    order = fair(a=100)
    for number in range(5):
        order.append(Work("", number, order="q"))
    for number in range(5, 10):
        order.append(Work("a", number, order="q"))
    assert [work.number for work in take(order, 10)] == list(range(10))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 20)), min_size=1, max_size=200),
    st.integers(1, 9),
)
def test_each_gets_its_part_to_within_its_largest_item(
    works: list[tuple[str, int]], weight: int
) -> None:
    order = fair(a=weight)
    for number, (namespace, size) in enumerate(works):
        order.append(Work(namespace, number, size))
    left = Counter(namespace for namespace, _ in works)
    served: Counter[str] = Counter()
    parts = {"a": weight, "b": 1, "c": 1}
    seen: dict[str, int] = {}
    while len(order):
        work = order.popleft()
        assert seen.get(work.namespace, -1) < work.number
        seen[work.namespace] = work.number
        served[work.namespace] += work.weight
        left[work.namespace] -= 1
        waiting = [namespace for namespace in "abc" if left[namespace]]
        if len(waiting) == len({namespace for namespace, _ in works}):
            for one in waiting:
                for other in waiting:
                    ahead = served[one] / parts[one] - served[other] / parts[other]
                    assert ahead <= 20 / parts[one] + 20 / parts[other]


async def test_a_burst_does_not_take_the_room_of_others() -> None:
    async def flush(_: list[Work]) -> None:
        raise AssertionError("nothing is flushed while the loop is not left")

    batcher: Batcher[Work] = Batcher(
        flush, max_items=10, max_weight=10, max_waiting_weight=100, order=fair()
    )
    for number in range(100):
        batcher.check_room(1, Work("a", number))
        batcher._waiting.append(Work("a", number))
        batcher._waiting_weight += 1
    with pytest.raises(Overloaded):
        batcher.check_room(1, Work("a", 100))
    batcher.check_room(50, Work("b", 0, 50))
    with pytest.raises(Overloaded):
        batcher.check_room(51, Work("b", 0, 51))


def test_weights_are_read_as_they_are_told() -> None:
    assert parse_weights("") == {}
    assert parse_weights("a=3, b = 1,*=2,") == {"a": 3, "b": 1, "*": 2}
    for wrong in ("a", "a=0", "a=x", "a=1001", "=", "a=-1"):
        with pytest.raises(ValueError, match="is no weight"):
            parse_weights(wrong)
