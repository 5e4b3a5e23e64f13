"""How long a message waits between its tries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.core.options import MAX_SECONDS, QueueOptions
from queen.core.pacing.backoff import Backoff


def test_by_default_each_failure_costs_the_same_second() -> None:
    backoff = QueueOptions().backoff
    assert [backoff.wait_ms(failures, 1, 1, 7) for failures in (1, 2, 3, 50)] == [1000] * 4


def test_a_fixed_delay_is_not_cut_by_the_longest() -> None:
    """Queues that wait for longer than the default of `retryMaxDelay` keep doing so."""
    assert QueueOptions(retry_delay=7_200_000).backoff.wait_ms(1, 1, 1, 7) == 7_200_000


@pytest.mark.parametrize(
    ("failures", "delay_ms"),
    [(1, 1000), (2, 2000), (3, 4000), (6, 32_000), (7, 60_000), (99, 60_000)],
)
def test_a_delay_doubles_up_to_the_longest(failures: int, delay_ms: int) -> None:
    backoff = Backoff("exponential", 1000, 60_000)
    for offset in range(200):
        assert delay_ms / 2 <= backoff.wait_ms(failures, 3, 5, offset) <= delay_ms


def test_messages_that_failed_together_come_back_apart() -> None:
    backoff = Backoff("exponential", 1000, 60_000)
    waits = [backoff.wait_ms(1, 3, 5, offset) for offset in range(1000)]
    assert len(set(waits)) > 400
    assert 730 < sum(waits) / len(waits) < 770


def test_the_same_failure_has_the_same_wait_anywhere() -> None:
    backoff = Backoff("exponential", 1000, 60_000)
    assert [backoff.wait_ms(failures, 3, 5, 7) for failures in (1, 2, 3)] == [885, 1780, 3887]


@given(
    st.integers(0, MAX_SECONDS * 1000), st.integers(0, MAX_SECONDS * 1000), st.integers(1, 10**6)
)
def test_no_wait_is_longer_than_the_longest(delay_ms: int, max_ms: int, failures: int) -> None:
    options = QueueOptions(
        retry_delay=delay_ms, retry_max_delay=max_ms, retry_backoff="exponential"
    )
    wait_ms = options.backoff.wait_ms(failures, 1, 1, 1)
    assert 0 <= wait_ms <= max(delay_ms, max_ms)
    assert options.backoff.asked_wait_ms(10**15) == max(delay_ms, max_ms)
