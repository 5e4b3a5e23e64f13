"""The watchdog tells when the event loop stands still, what it is at, and for how long."""

from __future__ import annotations

import logging
import threading

import pytest

from queen.service.upkeep.watchdog import Watchdog
from tests.waiting import spend_async, until_met

_GIVE_UP_S = 30.0


class Told(logging.Handler):
    """Knows from another thread when something was logged."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self._word = word
        self.happened = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._word in record.getMessage():
            self.happened.set()


@pytest.fixture
def told() -> Told:
    return Told("has not turned for")


def hold_up_the_loop(told: Told, payload: str) -> None:
    """Stand still until the watchdog has noticed."""
    assert payload and told.happened.wait(_GIVE_UP_S)


async def test_a_stall_is_told_with_its_functions_and_its_end(
    caplog: pytest.LogCaptureFixture, told: Told
) -> None:
    logging.getLogger("queen.service.upkeep.watchdog").addHandler(told)
    watchdog = Watchdog()
    watchdog.start()
    try:
        hold_up_the_loop(told, "a payload")
        await until_met(lambda: watchdog.stalls)
    finally:
        watchdog.stop()
        logging.getLogger("queen.service.upkeep.watchdog").removeHandler(told)
    (first, last) = (record.getMessage() for record in caplog.records)
    assert "hold_up_the_loop" in first and "a payload" not in first
    assert "it stood still for" in last
    assert watchdog.stalls == 1 and watchdog.stalled_s >= 1


async def test_a_loop_that_turns_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog(stall_s=60)
    watchdog.start()
    for _ in range(50):
        await spend_async(0.01)
    watchdog.stop()
    assert watchdog.stalls == 0 and not caplog.records


async def test_it_ends_with_its_server() -> None:
    watchdog = Watchdog()
    watchdog.start()
    assert "queen-watchdog" in {thread.name for thread in threading.enumerate()}
    watchdog.stop()
    assert "queen-watchdog" not in {thread.name for thread in threading.enumerate()}
