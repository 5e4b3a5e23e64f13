"""Runs `queen` in a process of its own, with files as its streams or on a pseudo-terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.forking import Forking
from tests.conftest import ServerProcess
from tests.programs import bound

QUEEN = str(Path(sys.executable).parent / "queen")
_PATIENCE_S = 60


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[Any]:
        """Standard output, which must be NDJSON and nothing else."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def row(self) -> Any:
        (only,) = self.rows
        return only


Run = Callable[..., Ran]


def environment(url: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("QUEEN_")}
    # Contexts of whoever runs the tests are not ours.
    kept["XDG_CONFIG_HOME"] = "/nonexistent"
    return {**kept, "QUEEN_URL": url, "COLUMNS": "200", "LINES": "50", "TERM": "xterm"}


@pytest.fixture(scope="session")
def forking() -> Iterator[Forking]:
    ready = Forking()
    yield ready
    ready.close()


@pytest.fixture
def run(server: ServerProcess, forking: Forking) -> Run:
    """Run a command that is not on a terminal."""

    def started(
        *arguments: str,
        text: str | bytes | None = None,
        code: int | tuple[int, ...] = 0,
        **more: str | None,
    ) -> Ran:
        given = (text.encode() if isinstance(text, str) else text) or b""
        env = {**environment(server.url), **more}
        done = forking.run(
            arguments, {key: value for key, value in env.items() if value is not None}, given
        )
        ran = Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert ran.code in (code if isinstance(code, tuple) else (code,)), ran
        assert "Traceback" not in ran.err, ran
        return ran

    return started


@pytest.fixture
def on_terminal(server: ServerProcess) -> Run:
    """Run a command on a terminal; what it shows is `out`, without its colours."""

    def started(
        *arguments: str, code: int = 0, columns: int = 200, lines: int = 50, **more: str
    ) -> Ran:
        ours, theirs = pty.openpty()
        size = {"COLUMNS": str(columns), "LINES": str(lines)}
        process = subprocess.Popen(
            [QUEEN, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment(server.url), **size, **more},
            start_new_session=True,
        )
        with bound(process):
            os.close(theirs)
            shown = b"".join(_shown(ours))
            os.close(ours)
            ran = Ran(process.wait(timeout=_PATIENCE_S), plain(shown.decode()), "")
        assert ran.code == code, ran
        return ran

    return started


def _shown(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            # Linux says so when the other end is closed.
            return
        if not part:
            return
        yield part


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.fixture
def start(server: ServerProcess) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command that goes on until it is told to stop."""
    running: list[subprocess.Popen[str]] = []

    def started(*arguments: str, stdin: int | None = None) -> subprocess.Popen[str]:
        running.append(
            subprocess.Popen(
                [QUEEN, *arguments],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(server.url),
            )
        )
        return running[-1]

    yield started
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()
