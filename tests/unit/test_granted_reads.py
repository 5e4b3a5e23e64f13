"""What a pop is given: bounded by itself, and by what others have not read yet."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from queen.core.frame import segment_of
from queen.errors import Overloaded
from queen.service.consume.feeds import Grant
from queen.service.consume.granted_reads import Budget, Claimed
from queen.service.log.segment_cache import StoredSegment

_KB, _MB = 1024, 1024 * 1024
_AT = datetime(2030, 1, 1, tzinfo=UTC)


def _grant(count: int) -> Grant:
    nowhere: Any = SimpleNamespace()
    return Grant(nowhere, "g", None, 0, count, 1, 1, 0, 0, {}, 0)


def _given(budget: Budget, *sizes: int) -> Claimed:
    """Offer segments of one message each to a pop."""
    nobody: Any = SimpleNamespace()
    claimed = Claimed(nobody, budget)
    grant = _grant(len(sizes))
    claimed.grants.append(grant)
    for at, size in enumerate(sizes):
        if not grant.is_read:
            claimed.add(grant, StoredSegment(at, _AT, segment_of([b"t"], [b"x" * size])))
    return claimed


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([100], 1),
        ([30 * _MB, 100], 1),
        ([5 * _MB, 2 * _MB, 100], 3),
        ([5 * _MB, 5 * _MB], 1),
    ],
)
def test_a_pop_is_given_what_fits_and_at_least_one_segment(sizes: list[int], count: int) -> None:
    claimed = _given(Budget(100 * _MB), *sizes)
    (grant,) = claimed.grants
    assert (grant.stop, claimed.error) == (count, None)
    assert grant.is_cut == (count < len(sizes))


def test_who_does_not_read_keeps_nobody_from_small_answers() -> None:
    budget = Budget(10 * _MB)
    budget.used = 15 * _MB
    assert _given(budget, 100 * _KB).error is None
    (grant,) = _given(budget, 100 * _KB, 100 * _KB, 100 * _KB).grants
    assert grant.stop == 2
    assert isinstance(_given(budget, 2 * _MB).error, Overloaded)
    budget.used = 21 * _MB
    assert isinstance(_given(budget, 100).error, Overloaded)
