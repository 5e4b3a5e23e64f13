"""`queen serve` as a user runs it: starts, joins, refuses, stops, comes back."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psutil  # type: ignore[import-untyped,unused-ignore]
import pytest
from rich.console import Console

from queen.cli.demo.shop import show_shop
from queen.cli.serve.database import url_from_environment
from queen.errors import QueenError, StartupError, Unavailable
from queen.service.preparation import refusal
from queen.storage.embedded import EmbeddedPostgres
from queen.storage.tuning import settings_for
from tests.api import Api
from tests.conftest import ServerProcess
from tests.ports import free_port
from tests.waiting import until

Start = Callable[..., ServerProcess]

_QUEEN = str(Path(sys.executable).parent / "queen")


@pytest.fixture
def start_server(start_server: Start) -> Start:
    """Here it is the command itself that is started."""
    return partial(start_server, installed=True)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself, and soon."""
    return run_for(60, *arguments, **environment)


def run_for(
    timeout_s: float, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    return subprocess.run(
        [_QUEEN, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **environment},
    )


def postmaster(data_dir: Path) -> int:
    return int((data_dir / "postgres" / "postmaster.pid").read_text().splitlines()[0])


def test_the_settings_can_be_looked_at() -> None:
    shown = run("serve", "--show-settings")
    assert shown.returncode == 0
    assert "shared_buffers" in shown.stdout
    assert "max_wal_size" in shown.stdout


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])  # noqa: S104
def test_another_address_than_loopback_is_refused(host: str, tmp_path: Path) -> None:
    refused = run("serve", "--host", host, "--data-dir", str(tmp_path))
    assert refused.returncode == 78
    assert "--insecure" in refused.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"path": "/nothing_of_this_name"}, "does not exist"),
        ({"query": "host=/&sslmode=nonsense"}, "sslmode"),
        ({"scheme": "mysql"}, "scheme"),
        ({"netloc": "[::1"}, "URL"),
    ],
)
def test_a_database_that_will_never_answer_is_named(
    dsn: str, change: dict[str, str], said: str
) -> None:
    url = urlunsplit(urlsplit(dsn)._replace(**change))
    refused = run("serve", "--port", str(free_port()), "--database-url", url)
    assert refused.returncode == 78
    assert said in refused.stderr and "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (asyncpg.InvalidPasswordError("no"), StartupError),
        (asyncpg.InvalidAuthorizationSpecificationError("no"), StartupError),
        (ssl.SSLCertVerificationError("no"), StartupError),
        (PermissionError("no"), StartupError),
        (asyncpg.CannotConnectNowError("starting up"), Unavailable),
        (asyncpg.TooManyConnectionsError("later"), Unavailable),
        (ConnectionRefusedError("nobody"), Unavailable),
        (TimeoutError(), Unavailable),
    ],
    ids=lambda one: getattr(one, "__name__", type(one).__name__),
)
def test_only_what_may_pass_is_waited_for(error: Exception, meant: type[QueenError]) -> None:
    assert type(refusal(error)) is meant


def start_without_database(url: str, log: Path, *more: str) -> subprocess.Popen[str]:
    """Start a server and return when it has said that it waits.

    Its spool is its own: a server that has met a database before takes pushes while it is away,
    and another test may have had its database in a folder of the same name.
    """
    spool = log.with_name("spool")
    with log.open("w") as errors:
        waiting = subprocess.Popen(
            [
                *(_QUEEN, "serve", "--port", str(free_port())),
                *("--database-url", url, "--spool-dir", str(spool), *more),
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    until(lambda: "waiting for the database" in log.read_text() or waiting.poll() is not None)
    assert waiting.poll() is None, log.read_text()
    return waiting


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_waits_for_its_database(tmp_path: Path, workers: str) -> None:
    later = EmbeddedPostgres(tmp_path / "later", settings_for(1024**3, 2))
    log = tmp_path / "log"
    # The database of that name is made a moment after PostgreSQL answers.
    dsn = later.dsn.replace("/queen?", "/postgres?")
    with start_without_database(dsn, log, "--workers", workers) as waiting:
        try:
            later.start()
            assert waiting.stdout is not None
            is_ready = any(line.startswith("queen ready on") for line in waiting.stdout)
            assert is_ready, log.read_text()
        finally:
            waiting.send_signal(signal.SIGTERM)
            code = waiting.wait(timeout=60)
            later.stop()
    assert code == 0, log.read_text()


def test_a_server_that_waits_can_be_stopped(tmp_path: Path) -> None:
    url = f"postgresql://postgres@127.0.0.1:{free_port()}/none"
    with start_without_database(url, tmp_path / "log") as waiting:
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(timeout=60) == 0


def test_a_taken_port_is_named(server: ServerProcess, dsn: str) -> None:
    refused = run("serve", "--port", str(server.port), "--database-url", dsn)
    assert refused.returncode == 78
    assert f"127.0.0.1:{server.port}" in refused.stderr


def test_weak_durability_is_refused_unless_told_otherwise(
    tmp_path: Path, start_server: Start
) -> None:
    weak = EmbeddedPostgres(tmp_path, {**settings_for(1024**3, 2), "fsync": "off"})
    weak.start()
    try:
        refused = run("serve", "--port", str(free_port()), "--database-url", weak.dsn)
        assert refused.returncode == 78
        assert "fsync=off" in refused.stderr
        running = start_server("--database-url", weak.dsn, "--allow-weak-durability")
        assert running.stop() == 0
    finally:
        weak.stop()


def test_the_originals_variables_make_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PG_"):
            monkeypatch.delenv(name)
    assert url_from_environment() is None
    monkeypatch.setenv("PG_HOST", "db.example")
    monkeypatch.setenv("PG_PASSWORD", "p@ss/word")
    monkeypatch.setenv("PG_DB", "queen")
    assert url_from_environment() == "postgresql://postgres:p%40ss%2Fword@db.example:5432/queen"
    monkeypatch.setenv("PG_USE_SSL", "true")
    assert (url_from_environment() or "").endswith("?sslmode=verify-full")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("QUEEN_DATABASE_URL", "", "is set, but empty"),
        ("QUEEN_DATABASE_URL", " ", "is set, but empty"),
        ("PG_HOST", "", "PG_HOST is set, but empty"),
        ("QUEEN_DATABASE_URL_FILE", "/run/secrets/x", "queen-with-secrets"),
    ],
)
def test_a_lost_secret_does_not_mean_an_empty_database(
    tmp_path: Path, name: str, value: str, said: str
) -> None:
    arguments = ("serve", "--port", str(free_port()), "--data-dir", str(tmp_path / "data"))
    refused = run(*arguments, **{name: value})
    assert refused.returncode == 78
    assert said in refused.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("QUEEN_PORT", "tcp://10.0.0.1:6632", "integer"),
        ("PORT", "abc", "integer"),
        ("QUEEN_WORKERS", "0", "1"),
        ("QUEEN_LOG_LEVEL", "loud", "debug"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_and_nobody_tries_again(
    name: str, value: str, reason: str
) -> None:
    refused = run("serve", **{name: value})
    assert refused.returncode == 78
    assert refused.stderr.startswith(f"queen: {name}={value} cannot be used: ")
    assert reason in refused.stderr


def test_an_option_that_is_typed_wrong_is_wrong_usage() -> None:
    refused = run("serve", "--port", "abc", QUEEN_PORT="6632")
    assert refused.returncode == 2
    assert "'--port'" in refused.stderr and "QUEEN_PORT" not in refused.stderr


def test_a_killed_server_comes_back_with_everything(tmp_path: Path, start_server: Start) -> None:
    first = start_server("--data-dir", str(tmp_path))
    first.api().push({"queue": "q", "payload": 1, "transactionId": "a"})
    first.kill()
    second = start_server("--data-dir", str(tmp_path))
    assert [one["transactionId"] for one in second.api().messages("q")] == ["a"]
    assert second.stop() == 0


def test_a_second_server_joins_and_the_last_one_stops_postgresql(
    tmp_path: Path, start_server: Start
) -> None:
    first = start_server("--data-dir", str(tmp_path))
    second = start_server("--data-dir", str(tmp_path))
    pid = postmaster(tmp_path)
    first.api().push({"queue": "q", "payload": 1})
    assert len(second.api().messages("q")) == 1
    assert first.stop() == 0
    assert psutil.pid_exists(pid)
    assert second.api().push({"queue": "q", "payload": 2}).status == 201
    assert second.stop() == 0
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_killed_postgresql_is_started_again(tmp_path: Path, start_server: Start) -> None:
    running = start_server("--data-dir", str(tmp_path))
    api = running.api()
    assert api.push({"queue": "q", "payload": 1, "transactionId": "a"}).status == 201
    killed = postmaster(tmp_path)
    os.kill(killed, signal.SIGKILL)
    # Backends outlive their postmaster for a moment; wait for the new one.
    until(lambda: api.call("GET", "/health").status == 200 and postmaster(tmp_path) != killed)
    assert api.push({"queue": "q", "payload": 2, "transactionId": "b"}).status == 201
    assert [one["transactionId"] for one in api.messages("q", batch=9)] == ["a", "b"]
    assert running.stop() == 0


def test_several_workers_share_the_port_and_the_work(tmp_path: Path, start_server: Start) -> None:
    running = start_server("--data-dir", str(tmp_path), "--workers", "2")
    apis = [running.api() for _ in range(8)]
    for number, api in enumerate(apis):
        item = {"queue": "q", "payload": number, "transactionId": str(number)}
        assert api.push(item).json[0]["status"] == "queued"
    for number, api in enumerate(reversed(apis)):
        item = {"queue": "q", "payload": number, "transactionId": str(number)}
        assert api.push(item).json[0]["status"] == "duplicate"
    assert len(apis[0].messages("q", batch=20)) == 8
    assert running.stop() == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_agrees_with_itself() -> None:
    shown = demo_that_stays()
    assert "All counts agree" in shown
    counts = dict(re.findall(r"│ ([^│]+?) +│ +([\d,]+) │ [^│]+ │ +\2 │", shown))
    assert counts["orders"] == "10,000"
    assert counts["both"] == "90"
    assert counts["clicks, an hour late"] == "160"
    assert counts["purchases"] == "61"
    assert re.search(r"anna .* archive-[12] ", shown)


def demo_that_stays() -> str:
    """Run the demo, look at what it leaves, end it; return what it has said."""
    demo = subprocess.Popen((_QUEEN, "demo", "--keep"), stdout=subprocess.PIPE, text=True)
    said = []
    assert demo.stdout is not None
    try:
        for line in demo.stdout:
            said.append(line)
            stays = re.search(r"look at (http://127\.0\.0\.1:\d+)/", line)
            if stays is not None:
                break
        else:
            pytest.fail("".join(said))
        api = Api(stays[1])
        assert b"/dashboard/app.js" in api.call("GET", "/streams").raw
        (stream,) = api.call("GET", "/api/v1/resources/streams").json["streams"]
        assert stream["name"] == "demo.chats"
        api.close()
        demo.send_signal(signal.SIGINT)
        assert demo.wait(timeout=60) == 0
    finally:
        demo.kill()
        demo.wait()
        demo.stdout.close()
    return "".join(said)


def test_without_spark_the_demo_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queen.cli.demo.shop.find_spec", lambda _name: None)
    console = Console(record=True, width=200)
    assert show_shop(0, console) == []
    assert "pip install 'queen[spark]'" in console.export_text()
