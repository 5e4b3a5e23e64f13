"""What ten open dashboards cost those who push.

Each onlooker asks for what the overview shows, as often as a browser does: all of it at once,
then a pause. Pushes are measured in turns, alone and with onlookers.
"""

from __future__ import annotations

import http.client
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.broker import Broker
from benchmarks.jobs import BenchError, HttpJob, run_job
from benchmarks.roles import Push

_QUEUE = "pushed"
_ONLOOKERS = 10
_PAUSE_S = 5.0
# As in `dashboard/static/lib/live.js`.
_PAUSE_SHARE = 40
_LONGEST_SLOW_S = 15.0
_WARMUP_S = 1.0
_OVERVIEW = (
    "/api/v1/resources/overview",
    "/api/v1/status",
    "/api/v1/status/problems?minLagSeconds=60",
    "/api/v1/dlq/errors?limit=6",
    "/api/v1/spool",
    "/api/v1/resources/streams",
    "/api/v1/system/maintenance",
)


class Cost(NamedTuple):
    alone: float
    looked_at: float

    @property
    def ratio(self) -> float:
        return self.looked_at / self.alone


def measure(broker: Broker, *, rounds: int = 3, seconds: float = 8.0) -> Cost:
    """Return messages a second, undisturbed and with onlookers; the medians of the turns."""
    broker.configure(_QUEUE, "window")
    alone, looked_at = [], []
    for number in range(rounds):
        alone.append(_rate(broker, seconds, 2 * number))
        with _onlookers(broker.port):
            looked_at.append(_rate(broker, seconds, 2 * number + 1))
    return Cost(statistics.median(alone), statistics.median(looked_at))


def _rate(broker: Broker, seconds: float, seed: int) -> float:
    roles = (Push(_QUEUE, 20, 10, 16),)
    result = run_job(HttpJob(broker.port, roles, _WARMUP_S, seconds, seed), broker.usage())
    if result.roles[0].errors:
        raise BenchError(result.roles[0].first_error)
    return result.roles[0].messages / result.seconds


@contextmanager
def _onlookers(port: int) -> Iterator[None]:
    stop = threading.Event()
    running = [threading.Thread(target=_look, args=(port, stop, at)) for at in range(_ONLOOKERS)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in running:
            thread.join()


def _look(port: int, stop: threading.Event, number: int) -> None:
    """Look again and again; not all browsers were opened at the same moment."""
    stop.wait(_PAUSE_S * number / _ONLOOKERS)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while not stop.is_set():
        began = time.perf_counter()
        for path in _OVERVIEW:
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            assert response.status == 200, path
        slow_s = min(_PAUSE_SHARE * (time.perf_counter() - began), _LONGEST_SLOW_S)
        stop.wait(max(_PAUSE_S, slow_s))
    connection.close()
