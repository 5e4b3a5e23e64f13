"""Signals that stop consumers.

Several consumers may run in one loop; a signal is for all of them. The first one takes the
signals over, the last one puts back what was there.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_NUMBERS = (signal.SIGTERM, signal.SIGINT)

_stops: list[Callable[[], None]] = []
_before: dict[int, Any] = {}


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Let SIGTERM and SIGINT stop something for a while. Only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    _stops.append(stop)
    if len(_stops) == 1:
        _take_over(loop)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            _put_back_from_anywhere(loop)


def _stop_all() -> None:
    for stop in list(_stops):
        stop()


def _take_over(loop: asyncio.AbstractEventLoop) -> None:
    for number in _NUMBERS:
        before = signal.getsignal(number)
        with contextlib.suppress(NotImplementedError, RuntimeError):
            loop.add_signal_handler(number, _stop_all)
            _before[number] = before


def _put_back_from_anywhere(loop: asyncio.AbstractEventLoop) -> None:
    """Put the handlers back. What was left in the middle is ended by the collector, in whatever
    thread that runs; only the main thread may set handlers."""
    if threading.current_thread() is threading.main_thread():
        _put_back(loop)
        return
    # A loop that is closed has put them back already.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_put_back_if_unused, loop)


def _put_back_if_unused(loop: asyncio.AbstractEventLoop) -> None:
    if not _stops:
        _put_back(loop)


def _put_back(loop: asyncio.AbstractEventLoop) -> None:
    for number, handler in _before.items():
        if not loop.is_closed():
            loop.remove_signal_handler(number)
        signal.signal(number, handler)
    _before.clear()
