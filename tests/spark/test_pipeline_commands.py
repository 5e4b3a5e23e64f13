"""`queen pipeline`: in this process, on the session of all tests; one run in its own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import tarfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from queen import SyncQueen
from queen.cli.commands.pipelines import _ROCKSDB
from queen.cli.main import app
from tests.api import Api
from tests.cli.conftest import QUEEN, environment
from tests.conftest import ServerProcess
from tests.programs import bound
from tests.spark.history import BEGIN, Event, canonical, messages, write

SCHEMA = "user string, id string, ts timestamp, amount bigint"
_FILE = """
from queen.spark import pipeline

@pipeline(reads={{"{queue}": "user string, amount bigint"}}, writes="{out}", name="{name}")
def shout(orders):
    return orders.selectExpr("upper(data.user) as user", "data.amount * 2 as twice")
"""

Command = Callable[..., list[Any]]


@pytest.fixture
def command(server: ServerProcess, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command here; return the rows that it prints."""
    for name, value in environment(server.url).items():
        if name.startswith("QUEEN_"):
            monkeypatch.setenv(name, value)

    def run(*arguments: str, code: int = 0, words: str = "") -> list[Any]:
        done = CliRunner().invoke(app, ["pipeline", *arguments])
        assert done.exit_code == code, (done.output, done.stderr, str(done.exception))
        assert words in done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


@pytest.fixture
def name() -> str:
    return f"p-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def defined(server: ServerProcess, api: Api, dsn: str, queue: str, name: str) -> str:
    """A pipeline with something to read: 30 events in three minutes, one of them late."""
    at = [BEGIN + timedelta(seconds=6 * number) for number in range(30)]
    events = [Event(queue, f"u{n % 3}", f"e{n}", one, n, one) for n, one in enumerate(at)]
    write(api, dsn, [*events, Event(queue, "u0", "late", at[0], 1, at[-1])])
    with SyncQueen(server.url) as queen:
        stream = queen.stream(name).sources(queue).schema(SCHEMA).event_time("data.ts")
        stream = stream.key("data.user").tumbling_time(60).grace_period(5)
        stream = stream.aggregate(total="sum(data.amount)", n="count(*)")
        stream.late_to(f"late-{name}").to(f"out-{name}").define()
    return name


def test_a_live_run_and_a_backfill_give_the_same_rows(
    command: Command, defined: str, api: Api, tmp_path: Path
) -> None:
    folder = ("--checkpoint", str(tmp_path))
    (ended,) = command("run", defined, "--once", "--from", "earliest", *folder)
    assert (ended["state"], ended["inputRows"], ended["lateRows"]) == ("stopped", 31, 1)
    live = canonical(messages(api, f"out-{defined}"))
    assert len(live) == 9
    assert canonical(command("backfill", defined)) == live
    # As of an earlier instant: only what had closed by then.
    until = (BEGIN + timedelta(seconds=125)).isoformat()
    early = command("backfill", defined, "--to", until)
    assert len(early) == 6
    assert set(canonical(early)) < set(live)
    (told,) = command("backfill", defined, "--into", f"again-{defined}")
    assert told["rows"] == 9
    assert canonical(messages(api, f"again-{defined}")) == live
    # The checkpoint knows how far it was: nothing comes twice.
    command("run", defined, "--once", *folder)
    assert canonical(messages(api, f"out-{defined}")) == live


def test_what_is_there_is_listed_and_explained(command: Command, defined: str) -> None:
    assert defined in [row["name"] for row in command("list")]
    (shown,) = command("status", defined)
    assert (shown["state"], shown["lateTo"]) == ("new", f"late-{defined}")
    (explained,) = command("explain", defined)
    assert "cuts windows of 1 min" in explained["does"]
    assert any(line.startswith("computes total = sum(data.amount)") for line in explained["does"])
    (planned,) = command("explain", defined, "--plan")
    assert any("EventTimeWatermark" in line for line in planned["does"])
    command("stop", defined, words="nobody seems to run")
    command("delete", defined, "--yes")
    command("status", defined, code=3)


def test_a_function_in_a_file_is_run_by_the_same_command(
    command: Command, api: Api, queue: str, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "shout.py"
    file.write_text(_FILE.format(queue=queue, out=f"out-{name}", name=name))
    api.push({"queue": queue, "payload": {"user": "ann", "amount": 4}})
    folder = ("--checkpoint", str(tmp_path / "checkpoint"), "--once", "--from", "earliest")
    (ended,) = command("run", str(file), *folder)
    assert (ended["state"], ended["inputRows"], ended["outputRows"]) == ("stopped", 1, 1)
    assert messages(api, f"out-{name}") == [{"user": "ANN", "twice": 8}]
    (shown,) = command("status", name)
    assert (shown["kind"], shown["state"]) == ("function", "stopped")
    command("run", f"{file}:whisper", code=2, words="no pipeline 'whisper'")
    command("run", str(tmp_path / "none.py"), code=2, words="there is no file")
    file.write_text(file.read_text().replace("* 2", "* 3"))
    command("run", str(file), *folder, code=1, words="code: ")


_FAILS = """
from pyspark.sql.functions import udf
from queen.spark import pipeline
from {beside} import halving

@pipeline(reads={{"{queue}": "n bigint"}}, writes="{out}", name="{name}")
def halves(numbers):
    from {beside}.cutting import check

    check()
    return numbers.select(udf(half, "long", useArrow=False)("data.n").alias("half"))

def half(n):
    return halving.cut(n, 2)
"""
_BESIDE = """
from pathlib import Path

def check():
    pass

def cut(n, parts):
    if Path("{fails}").exists():
        Path("{fails}").unlink()
        raise RuntimeError("as it was asked to")
    return n // parts
"""


def test_a_run_that_fails_is_started_again(
    command: Command, api: Api, queue: str, name: str, tmp_path: Path
) -> None:
    file, fails, beside = tmp_path / "halves.py", tmp_path / "fails", name.replace("-", "_")
    file.write_text(_FAILS.format(queue=queue, out=f"out-{name}", name=name, beside=beside))
    # A package beside it; one of its modules is imported late.
    (tmp_path / beside).mkdir()
    for module in ("__init__", "halving", "cutting"):
        (tmp_path / beside / f"{module}.py").write_text(_BESIDE.format(fails=fails))
    api.push({"queue": queue, "payload": {"n": 8}})
    folder = ("--checkpoint", str(tmp_path / "checkpoint"), "--once", "--from", "earliest")
    fails.touch()
    command("run", str(file), *folder, "--restarts", "0", code=1, words="as it was asked to")
    fails.touch()
    (ended,) = command("run", str(file), *folder, words="it is started again in 2 s")
    assert (ended["state"], ended["outputRows"]) == ("stopped", 1)
    assert messages(api, f"out-{name}") == [{"half": 4}]


def test_the_package_holds_what_executors_import(command: Command, tmp_path: Path) -> None:
    archive = tmp_path / "queen.tar.gz"
    (told,) = command("package", "--to", str(archive), words="--package")
    assert told["holds"] == ["queen", "msgspec", "zstandard"]
    with tarfile.open(archive) as opened:
        names = opened.getnames()
    assert "queen/spark/source/datasource.py" in names
    assert {"queen/core/frame.py", "msgspec/__init__.py"} <= set(names)
    assert not [one for one in names if "__pycache__" in one]


def test_large_state_is_kept_on_disk(
    command: Command, defined: str, spark: SparkSession, api: Api, tmp_path: Path
) -> None:
    folder = ("--checkpoint", str(tmp_path), "--once", "--from", "earliest")
    try:
        command("run", defined, "--large-state", *folder)
    finally:
        # The session is that of all tests.
        for setting in _ROCKSDB:
            spark.conf.unset(setting.partition("=")[0])
    assert len(messages(api, f"out-{defined}")) == 9
    # What RocksDB writes, and the default does not.
    assert list((tmp_path / "state").rglob("*.changelog"))


class Screen:
    """A terminal that remembers what was written to it."""

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        self.text = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        # The end of a terminal is an error.
        with suppress(OSError):
            while got := os.read(self._master, 65536):
                self.text += got

    def close(self) -> None:
        os.close(self.slave)
        self._reader.join()
        os.close(self._master)


@pytest.fixture
def screen() -> Iterator[Screen]:
    made = Screen()
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sigterm_ends_a_run_after_its_batch(
    server: ServerProcess, defined: str, tmp_path: Path, screen: Screen
) -> None:
    """It shows how it is doing meanwhile, since it has a terminal."""
    arguments = ["pipeline", "run", defined, "--master", "local[1]", "--from", "earliest"]
    settings = ["--conf", "spark.ui.enabled=false", "--checkpoint", str(tmp_path)]
    process = subprocess.Popen(
        [QUEEN, *arguments, *settings, "--every", "0.1"],
        stdout=subprocess.PIPE,
        stderr=screen.slave,
        env={**environment(server.url), "TERM": "xterm", "COLUMNS": "160"},
    )
    with bound(process) as running, SyncQueen(server.url) as queen:
        # The rows of the first two minutes are there while the run goes on.
        got: list[Any] = []
        while len(got) < 6:
            assert running.poll() is None, screen.text
            popped = queen.queue(f"out-{defined}").group("test").pop(wait_s=1, batch=100)
            got += popped
            for one in popped:
                one.ack()
        running.send_signal(signal.SIGTERM)
        out, _ = running.communicate(timeout=120)
        assert running.returncode == 0, screen.text
        assert b"state rows" in screen.text
        shown = queen.request("GET", f"/api/v1/pipelines/{defined}")
    ended = json.loads(out)
    assert (ended["state"], ended["error"]) == ("stopped", None)
    assert (shown["state"], shown["progress"]["lateRows"]) == ("stopped", 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--from", "2h", "--to", "3h"), "'2h' is not before --to '3h'"),
        (("--into", ""), "'' names nothing"),
        (("--files", " "), "' ' names nothing"),
        (("--into", "a", "--files", "b"), "not both"),
    ],
)
def test_a_backfill_that_cannot_be_meant_is_wrong_usage(
    command: Command, name: str, options: tuple[str, ...], words: str
) -> None:
    command("backfill", name, *options, code=2, words=words)
