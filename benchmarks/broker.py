"""The broker under test: a `queen serve` of its own, and what it uses while it is under load."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil  # type: ignore[import-untyped,unused-ignore]

from benchmarks.jobs import BenchError
from benchmarks.postgres import PostgresAddress

_START_LIMIT_S = 120.0
_STOP_LIMIT_S = 120.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Broker:
    """Starts the server on a fresh data folder, and removes both on leaving."""

    def __init__(self, folder: Path, *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._options = options
        self.port = _free_port()
        self.log = folder / "server.log"
        self._postmaster: psutil.Process | None = None
        self._data = Path(tempfile.mkdtemp(prefix="data-", dir=folder))

    def __enter__(self) -> Self:
        command = [str(Path(sys.executable).parent / "queen"), "serve"]
        command += ["--port", str(self.port), "--data-dir", str(self._data), *self._options]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            self._await_ready()
            self.postgres = PostgresAddress.read(self._data / "postgres")
            self._postmaster = psutil.Process(self.postgres.pid)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        while f"queen ready on http://127.0.0.1:{self.port}" not in self.log.read_text():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"the server did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def _stop(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stop_postgres()
        shutil.rmtree(self._data, ignore_errors=True)

    def _stop_postgres(self) -> None:
        """Stop a PostgreSQL that has outlived its server, as after a crash of the latter."""
        if self._postmaster is not None and self._postmaster.is_running():
            with suppress(psutil.Error):
                self._postmaster.send_signal(signal.SIGINT)
                self._postmaster.wait(_STOP_LIMIT_S)

    def configure(self, queue: str, dedup: str) -> None:
        options = {"dedup": dedup, "leaseTime": 60}
        self._call("POST", "/api/v1/configure", json.dumps({"queue": queue, "options": options}))

    def check_fetch(self, queue: str, messages: int) -> None:
        """Read a queue as frames and see that all of it is there."""
        from benchmarks.frames import count_messages

        found = count_messages(self._call("GET", f"/api/v1/fetch/queue/{queue}"))
        if found != messages:
            raise BenchError(f"{queue} holds {messages} messages, the fetch brought {found}")

    def _call(self, method: str, path: str, body: str | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise BenchError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        if answer.status not in (200, 201):
            raise BenchError(f"{method} {path} answered {answer.status}: {content[:500]!r}")
        return content

    @property
    def pids(self) -> tuple[int, int]:
        """Of the server and of PostgreSQL; the second may be a child of the first."""
        return self._process.pid, self.postgres.pid

    def usage(self) -> "Usage":
        return Usage(self._process.pid, self.postgres.pid)


class Usage:
    """Processor time and memory of the server and of PostgreSQL over one measured interval."""

    def __init__(self, server_pid: int, postmaster_pid: int) -> None:
        self._server = psutil.Process(server_pid)
        self._postmaster = psutil.Process(postmaster_pid)
        self._before = (0.0, 0.0)
        self._tree: list[psutil.Process] = []
        self.server_cpu_s = 0.0
        self.postgres_cpu_s = 0.0
        self.rss_bytes = 0

    def begin(self) -> None:
        # Found once: looking for children reads all of /proc, too dear for every sample.
        self._tree = self._server_tree()
        self._before = self._cpu_seconds()
        self.sample()

    def sample(self) -> None:
        rss = 0
        for process in self._tree:
            with suppress(psutil.NoSuchProcess):
                rss += process.memory_info().rss
        self.rss_bytes = max(self.rss_bytes, rss)

    def end(self) -> None:
        self.sample()
        server, postgres = self._cpu_seconds()
        self.server_cpu_s = server - self._before[0]
        self.postgres_cpu_s = postgres - self._before[1]

    def _server_tree(self) -> list[psutil.Process]:
        """The server and its workers. PostgreSQL may or may not be among its children."""
        postgres = {self._postmaster, *self._postmaster.children(recursive=True)}
        everyone = [self._server, *self._server.children(recursive=True)]
        return [process for process in everyone if process not in postgres]

    def _cpu_seconds(self) -> tuple[float, float]:
        backends = self._postmaster.children(recursive=True)
        # Backends that have ended are in the postmaster's account of its children.
        ended = self._postmaster.cpu_times()
        postgres = _busy(backends) + _busy([self._postmaster])
        return _busy(self._tree), postgres + ended.children_user + ended.children_system


def _busy(processes: list[psutil.Process]) -> float:
    seconds = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds
