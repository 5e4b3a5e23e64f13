"""Token buckets: what a group may be given in which time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queen.core.options import QueueOptions
from queen.core.pacing.limits import Rate, whole


def test_by_default_there_is_no_limit() -> None:
    assert not QueueOptions().is_limited
    assert QueueOptions().limits == (None, None, None, None, None, None)


def test_a_bucket_is_full_at_first_and_never_fuller() -> None:
    rate = Rate(10, 1000, 25)
    assert rate.tokens(None, 0) == 25
    assert rate.tokens(20, 10_000) == 25
    assert rate.tokens(0, 100) == 1


def test_what_is_missing_is_waited_for() -> None:
    rate = Rate(10, 1000, 10)
    assert rate.wait_ms(0) == 100
    assert rate.wait_ms(0.5) == 50
    assert rate.wait_ms(3) == 0
    assert whole(rate.tokens(0.3, rate.wait_ms(0.3))) == 1


@given(
    st.integers(1, 1000),
    st.integers(1, 100_000),
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 100)), max_size=50),
)
def test_no_time_brings_more_than_its_tokens_and_the_burst(
    limit: int, interval_ms: int, burst: int, looks: list[tuple[int, int]]
) -> None:
    rate = Rate(limit, interval_ms, burst)
    stored: float | None = None
    granted = passed_ms = 0
    for elapsed_ms, wanted in looks:
        passed_ms += elapsed_ms
        tokens = rate.tokens(stored, elapsed_ms)
        taken = min(whole(tokens), wanted)
        stored = tokens - taken
        granted += taken
        assert granted <= burst + limit * passed_ms / interval_ms + 0.01
