"""A broker for the time of a test: `queen serve` in a process and a folder of its own.

    with queen.testing.server() as url:
        ...

It starts in a second or two, so one for all tests is enough: give each test a queue of its own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from queen.errors import StartupError
from queen.extras import require

_READY = "queen ready"
_STOP_LIMIT_S = 60
_LAST_BYTES = 2000


class RunningServer:
    """A broker of the tests' own; it ends, and its folder goes, when it is left."""

    def __init__(self, *arguments: str) -> None:
        require("server", "a test server")
        self._folder = tempfile.TemporaryDirectory(prefix="queen-testing-")
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = Path(self._folder.name) / "server.log"
        self._process = self._start(arguments)

    def _start(self, arguments: tuple[str, ...]) -> subprocess.Popen[str]:
        code = "from queen.cli.main import app; app()"
        command = [sys.executable, "-c", code, "serve", "--test-clock", "--port", str(self.port)]
        command += ["--data-dir", str(Path(self._folder.name) / "data"), *arguments]
        environment = {key: value for key, value in os.environ.items() if not _misleads(key)}
        with self._log.open("w") as log:
            return subprocess.Popen(  # noqa: S603 (our own program)
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )

    def wait_until_ready(self) -> None:
        """Return when it serves; raise what it said when it ended instead."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_READY):
                return
        logged = self._log.read_text(errors="replace")[-_LAST_BYTES:]
        code = self._process.wait(_STOP_LIMIT_S)
        raise StartupError(f"the test server ended with {code} before it was ready:\n{logged}")

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_LIMIT_S)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._folder.cleanup()

    def __enter__(self) -> RunningServer:
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.stop()


@contextmanager
def server(*arguments: str) -> Iterator[str]:
    """Run a broker for a while; gives its URL. Arguments are those of `queen serve`."""
    with RunningServer(*arguments) as running:
        yield running.url


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _misleads(variable: str) -> bool:
    """Whether a variable would send the server to a database or a port that is not its own."""
    return variable in ("HOST", "PORT") or variable.startswith(("QUEEN_", "PG_", "JWT_"))
