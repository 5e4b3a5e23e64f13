"""The bounded list of what waits longest holds what a sort of everything would."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queen.service.stats.lag import MAX_LAGGING, Worst

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_PAGES = 6


def _page(dice: random.Random, number: int, namespaces: int) -> list[dict[str, Any]]:
    return [
        {
            "oldest": _NOW - timedelta(seconds=dice.randrange(10_000)),
            "partition_id": number * 1000 + n,
            "group_id": dice.randrange(3),
            "outstanding": dice.randrange(1, 100),
            # The first namespace has nearly everything; the last nearly nothing.
            "namespace": f"n{min(int(dice.expovariate(1)), namespaces - 1)}",
        }
        for n in range(1000)
    ]


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["group_id"], row["partition_id"], row["outstanding"], row["oldest"]


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["oldest"], row["partition_id"], row["group_id"]


@pytest.mark.parametrize(("namespaces", "share"), [(1, 1000), (10, 1000), (100, 100), (20_000, 1)])
def test_the_worst_of_all_and_of_each_namespace_are_kept(namespaces: int, share: int) -> None:
    dice = random.Random(namespaces)
    pages = [_page(dice, number, namespaces) for number in range(_PAGES)]
    worst = Worst(namespaces)
    assert worst.share == share
    for page in pages:
        worst.add(page)  # type: ignore[arg-type]

    everything = sorted((row for page in pages for row in page), key=_order)
    by_namespace: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in everything:
        by_namespace[row["namespace"]].append(row)
    wanted = {_key(row) for row in everything[:MAX_LAGGING]}
    for rows in by_namespace.values():
        wanted |= {_key(row) for row in rows[:share]}
    kept = list(zip(*worst.columns(), strict=True))
    assert len(kept) == len(wanted)
    assert set(kept) == wanted


def test_nothing_is_kept_of_nothing() -> None:
    worst = Worst(0)
    worst.add([])
    assert worst.columns() == ([], [], [], [])
