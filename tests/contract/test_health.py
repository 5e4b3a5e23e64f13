"""Health tells what is wrong, and a server that is not well still ends in order."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from tests.api import Answer, Api
from tests.conftest import ServerProcess

_GIVE_UP_S = 60.0
Start = Callable[..., ServerProcess]


def health_when(api: Api, met: Callable[[Answer], bool]) -> Answer:
    """Ask until the answer is the one that is waited for."""
    deadline = time.monotonic() + _GIVE_UP_S
    while not met(answer := api.call("GET", "/health")):
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
    return answer


def test_a_loop_that_keeps_failing_is_named_and_the_server_still_serves(
    own_database: str, start_server: Start, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    running = start_server("--database-url", own_database, log=log)
    api = running.api()
    with psycopg.connect(own_database, autocommit=True) as connection:
        # Nothing that a server writes, and nothing that it can read.
        connection.execute(
            "insert into queen.system_state (key, value) values ('maintenance_mode', '\"x\"')"
        )
        answer = health_when(api, lambda one: one.json["status"] != "healthy")
        assert answer.status == 200
        assert answer.json["status"] == "degraded"
        assert answer.json["problems"] == ["the loop maintenance fails again and again"]
        assert api.push({"queue": "q", "payload": 1}).status == 201
        assert running.stop() == 0
        # Nothing that it had opened is left.
        left = connection.execute(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and application_name = 'queen'"
        ).fetchone()
        assert left == (0,)
    text = log.read_text()
    assert "the loop maintenance has failed" in text and "  | Traceback" in text


def test_a_server_tells_that_it_stood_still(
    own_database: str, start_server: Start, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    running = start_server("--database-url", own_database, log=log)
    api = running.api()
    os.kill(running.pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(running.pid, signal.SIGCONT)
    health_when(api, lambda _: "the event loop turns again" in log.read_text())
    text = api.call("GET", "/metrics/prometheus").raw.decode()
    assert re.search(r"^queen_event_loop_stalls_total [1-9]", text, re.MULTILINE)
    assert running.stop() == 0
