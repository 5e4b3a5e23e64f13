"""The second act: PostgreSQL is killed while sensors push, and nobody notices.

The server answers on: what the database cannot take waits in its spool, and is stored in order
when PostgreSQL runs again. It is the server that starts it again, as it would after a crash.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from queen.cli.demo.counts import Count
from queen.cli.demo.queues import Http

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from queen.cli.demo.server import DemoServer

_QUEUE = "demo.readings"
_PUSHES = 300
_BATCH = 10
_KILLED_AT = 60
_PAUSE_S = 0.005
_PATIENCE_S = 60.0


def show_outage(server: DemoServer, console: Console) -> list[Count]:
    """Push through an outage, then read everything."""
    http = Http(server.port)
    buffered = 0
    for number in range(_PUSHES):
        if number == _KILLED_AT:
            os.kill(_pid_of_postgres(server.data_dir), signal.SIGKILL)
        results = http.call("POST", "/api/v1/push", {"items": _readings(number)})
        buffered += sum(result["status"] == "buffered" for result in results)
        time.sleep(_PAUSE_S)
    sent = _PUSHES * _BATCH
    console.print(
        f"PostgreSQL was killed while {sent:,} readings were pushed: {sent - buffered:,} were "
        f"stored at once, {buffered:,} waited in the spool, none failed."
    )
    return [Count("readings, database killed", sent, "read in order", _read_in_order(http, sent))]


def _readings(number: int) -> list[dict[str, object]]:
    first = number * _BATCH
    return [
        {"queue": _QUEUE, "partition": "sensor-1", "payload": {"n": first + n}}
        for n in range(_BATCH)
    ]


def _read_in_order(http: Http, sent: int) -> int:
    """Return how many readings came before the first that is missing, doubled or misplaced."""
    right, deadline = 0, time.monotonic() + _PATIENCE_S
    path = f"/api/v1/pop/queue/{_QUEUE}?batch=1000&autoAck=true&wait=true&timeout=500"
    while right < sent and time.monotonic() < deadline:
        answer = http.try_call("GET", path)
        for message in (answer or {}).get("messages", []):
            if message["data"]["n"] != right:
                return right
            right += 1
    return right


def _pid_of_postgres(data_dir: Path) -> int:
    return int((data_dir / "postgres" / "postmaster.pid").read_text().splitlines()[0])
