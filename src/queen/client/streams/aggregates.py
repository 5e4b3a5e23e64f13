"""Aggregates over the messages of a window, exact ones.

Sums of integers are exact, sums with floats are rounded once, at the end. A percentile is the
nearest rank: the smallest value that at least so many percent of the values do not exceed. It is
always a value that is there, never one between two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from queen.client.streams.fields import identity, numbers_at, values_at
from queen.client.streams.messages import WindowMessage

Number = int | float
Spec = Mapping[str, Any]

_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)")


def compute_aggregates(messages: Sequence[WindowMessage], spec: Spec) -> dict[str, Any]:
    """Return what was asked for: `{"count": 3, "sum": {"data.amount": 12}, …}`."""
    results: dict[str, Any] = {}
    for name, asked in spec.items():
        if name == "count":
            if asked:
                results[name] = len(messages)
            continue
        compute = _aggregate(name)
        paths = [asked] if isinstance(asked, str) else asked
        results[name] = {path: compute(messages, path) for path in paths}
    return results


def _aggregate(name: str) -> Callable[[Iterable[WindowMessage], str], Any]:
    if name == "distinct":
        return _distinct
    percentile = _PERCENTILE.fullmatch(name)
    if percentile is not None and Fraction(percentile[1]) <= 100:
        share = Fraction(percentile[1]) / 100
        return lambda messages, path: nearest_rank(numbers_at(messages, path), share)
    if name not in _OF_NUMBERS:
        known = ", ".join(("count", *_OF_NUMBERS, "distinct"))
        raise ValueError(f"{name!r} is no aggregate: there are {known} and p0 to p100")
    compute = _OF_NUMBERS[name]
    return lambda messages, path: compute(numbers_at(messages, path))


def _distinct(messages: Iterable[WindowMessage], path: str) -> int:
    return len({identity(value) for value in values_at(messages, path)})


def nearest_rank(numbers: Sequence[Number], share: Fraction) -> Number | None:
    """Return the value at a share of the way, None when there are no values.

    >>> nearest_rank([15, 20, 35, 40, 50], Fraction(40, 100))
    20
    """
    if not numbers:
        return None
    # In fractions: 0.95 * 20 is a little more than 19 in floats, and its ceiling is 20.
    rank = max(1, math.ceil(share * len(numbers)))
    return sorted(numbers)[rank - 1]


def total(numbers: Sequence[Number]) -> Number:
    """Return the sum, 0 of nothing."""
    if not any(isinstance(number, float) for number in numbers):
        return sum(numbers)
    try:
        return math.fsum(numbers)
    except OverflowError:
        # A sum on the way was too large for a float; the result need not be.
        return _as_float(sum(map(Fraction, numbers), Fraction()))


def _mean(numbers: Sequence[Number]) -> float | None:
    if not numbers:
        return None
    whole = total(numbers)
    if isinstance(whole, float) and math.isfinite(whole):
        return whole / len(numbers)
    exact = sum(map(Fraction, numbers), Fraction()) if isinstance(whole, float) else Fraction(whole)
    return _as_float(exact / len(numbers))


def _as_float(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


_OF_NUMBERS: dict[str, Callable[[Sequence[Number]], Number | None]] = {
    "sum": total,
    "avg": _mean,
    "min": lambda numbers: min(numbers, default=None),
    "max": lambda numbers: max(numbers, default=None),
}
