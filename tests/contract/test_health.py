"""Health tells what is wrong, and a server that is not well still ends in order."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.api import Answer, Api
from tests.conftest import ServerProcess
from tests.long import LONG
from tests.waiting import spend, until

Start = Callable[..., ServerProcess]


def health_when(api: Api, met: Callable[[Answer], bool]) -> Answer:
    """Ask until the answer is the one that is waited for."""
    answers: list[Answer] = []

    def is_met() -> bool:
        answers[:] = [api.call("GET", "/health")]
        return met(answers[0])

    until(is_met)
    return answers[0]


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
    spend(1.5)
    os.kill(running.pid, signal.SIGCONT)
    health_when(api, lambda _: "the event loop turns again" in log.read_text())
    text = api.call("GET", "/metrics/prometheus").raw.decode()
    assert re.search(r"^queen_event_loop_stalls_total [1-9]", text, re.MULTILINE)
    assert running.stop() == 0


_FULL = """
create function public.refuse() returns trigger language plpgsql as
$$ begin raise exception 'no space left on device' using errcode = '53100'; end $$;
create trigger full_disk before insert on queen.segments execute function public.refuse()
"""


def test_a_full_disk_of_the_database_is_told_and_pushes_wait_in_the_spool(
    own_database: str, start_server: Start
) -> None:
    running = start_server("--database-url", own_database)
    api = running.api()
    assert api.push({"queue": "q", "payload": 1}).status == 201
    with psycopg.connect(own_database, autocommit=True) as connection:
        connection.execute(_FULL)
        assert api.push({"queue": "q", "payload": 2}).status == 202
        answer = api.call("GET", "/health")
        assert (answer.status, answer.json["status"]) == (503, "unhealthy")
        assert answer.json["database"] == "connected"
        assert answer.json["problems"] == ["PostgreSQL has no disk space left (SQLSTATE 53100)"]
        assert api.call("GET", "/health/live").status == 200
        connection.execute("drop trigger full_disk on queen.segments")
    until(lambda: api.push({"queue": "q", "payload": 3}).status == 201)
    stored = [one["data"] for one in api.messages("q", batch=999)]
    assert stored[:2] == [1, 2] and set(stored[2:]) == {3}
    assert api.call("GET", "/health").json["status"] == "healthy"
    assert running.stop() == 0


@pytest.mark.parametrize("is_written", [True, pytest.param(False, marks=LONG)])
def test_a_database_that_is_read_only_is_told(
    own_database: str, start_server: Start, is_written: bool
) -> None:
    running = start_server("--database-url", own_database)
    api = running.api()
    with psycopg.connect(own_database, autocommit=True) as connection:
        (name,) = connection.execute("select current_database()").fetchone() or ("",)
        connection.execute(f"alter database {name} set default_transaction_read_only = on")
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name = 'queen'"
        )
        if is_written:
            api.push({"queue": "q", "payload": 1})
        # Where nobody pushes, what the server writes of itself is enough to know, half a minute on.
        answer = health_when(api, lambda one: "problems" in one.json)
        assert answer.status == 503
        assert answer.json["problems"] == ["PostgreSQL is read-only (SQLSTATE 25006)"]
        connection.execute(f"alter database {name} reset default_transaction_read_only")
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name = 'queen'"
        )
    health_when(api, lambda one: one.status == 200)
    assert running.stop() == 0
