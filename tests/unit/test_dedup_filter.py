"""The memory of recent hashes: never forgets early, never grows past its bound."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from queen.service.log.dedup_filter import RecentKeys


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def keys(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=50), max_size=20))
def test_what_was_added_is_seen_and_nothing_else(batches: list[list[int]]) -> None:
    recent = RecentKeys(100_000, 600, Clock())
    known: set[int] = set()
    for batch in batches:
        assert recent.seen(keys(batch)).tolist() == [value in known for value in batch]
        recent.add(keys(batch))
        known.update(batch)
    everything = sorted(known)
    assert recent.seen(keys(everything)).all()


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=8), max_size=20))
def test_few_keys_at_a_time_are_the_same_keys(batches: list[list[int]]) -> None:
    recent, other = RecentKeys(100_000, 600, Clock()), RecentKeys(100_000, 600, Clock())
    for batch in batches:
        assert not any(recent.seen(keys(batch))) or recent.may_have_seen_any(batch)
        recent.add_few(batch)
        other.add(keys(batch))
        assert not batch or other.may_have_seen_any(batch)
        assert recent.seen(keys(batch)).all()
    assert len(recent) == len(other)


def test_few_keys_at_a_time_are_sorted_with_the_others() -> None:
    recent = RecentKeys(100_000, 600, Clock())
    random = np.random.default_rng(3)
    added = random.integers(0, 2**64, 40_000, dtype=np.uint64).tolist()
    for at in range(0, len(added), 7):
        recent.add_few(added[at : at + 7])
    assert recent.seen(keys(added)).all()
    assert len(recent) == len(added)
    fresh = random.integers(0, 2**64, 1000, dtype=np.uint64).tolist()
    # A filter may be wrong now and then, and only to the safe side.
    assert sum(recent.may_have_seen_any([key]) for key in fresh) < 100


def test_many_keys_are_kept_through_sorting_and_merging() -> None:
    recent = RecentKeys(1_000_000, 600, Clock())
    random = np.random.default_rng(1)
    added = [random.integers(0, 2**63, 5000, dtype=np.uint64) for _ in range(60)]
    for batch in added:
        recent.add(batch)
    for batch in added:
        assert recent.seen(batch).all()
    fresh = random.integers(2**63, 2**64, 100_000, dtype=np.uint64)
    assert not recent.seen(fresh).any()


def test_memory_is_bounded_and_says_what_it_still_holds() -> None:
    clock = Clock()
    recent = RecentKeys(100_000, 600, clock)
    random = np.random.default_rng(2)
    newest = np.empty(0, dtype=np.uint64)
    for _ in range(100):
        clock.now += 1
        newest = random.integers(0, 2**64, 10_000, dtype=np.uint64)
        recent.add(newest)
    assert len(recent) <= 100_000 + 16_384
    assert 5 <= recent.held_seconds() <= 15
    assert recent.seen(newest).all()


def test_what_is_older_than_the_window_goes() -> None:
    clock = Clock()
    recent = RecentKeys(1_000_000, 60, clock)
    old = np.arange(1, 20_000, dtype=np.uint64)
    recent.add(old)
    clock.now += 1000
    recent.add(np.arange(100_000, 200_000, dtype=np.uint64))
    assert len(recent) < 110_000
