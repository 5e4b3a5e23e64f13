"""Real parts for every test: the embedded PostgreSQL and the server as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import asyncpg
import psycopg
import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

from queen.storage.database import Database, session_settings
from queen.storage.embedded import EmbeddedPostgres
from queen.storage.migrate import migrate
from queen.storage.tuning import settings_for
from tests.api import Api
from tests.distribution import Distribution, turn
from tests.forking import Forked, nursery
from tests.ports import free_port

_READY = "queen ready on "
_MEMORY_BYTES = 2 * 1024**3
# Servers of the tests keep nothing in the folders of a user.
_SPOOLS = tempfile.TemporaryDirectory(prefix="queen-spools-")
# Of the servers of the tests, and of nobody else.
ENCRYPTION_KEY = "0123456789abcdef" * 4

# A shell that starts its jobs in the background lets them ignore Ctrl-C, and whatever they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.cpu"]

# Tests are over before the second compiler of a JVM has paid for itself. The cache is as large as
# it is with both: when it is full, nothing is compiled any more.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m",
)

# No test is about how long an example takes on a machine that others use too.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Several workers (`pytest -n 2`) share the tests as `tests/distribution.py` says."""
    return Distribution(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the workers begin with what takes long, so that none is left with it at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: turn(item.nodeid, item.get_closest_marker("slow") is not None))


class ServerProcess:
    """`queen serve` in a process of its own.

    It is forked from one that has imported it, unless it shall be `installed`: the command as a
    user runs it.
    """

    def __init__(
        self,
        *arguments: str,
        port: int | None = None,
        env: dict[str, str] | None = None,
        log: Path | None = None,
        installed: bool = False,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        environment = {key: value for key, value in os.environ.items() if key != "PORT"}
        environment |= {"QUEEN_ENCRYPTION_KEY": ENCRYPTION_KEY, "QUEEN_SPOOL_DIR": _SPOOLS.name}
        environment |= env or {}
        # What it said before it was ready.
        self.said: list[str] = []
        words = ("serve", "--port", str(self.port), *arguments)
        start = _start_installed if installed else nursery().start
        self.process: subprocess.Popen[str] | Forked
        with log.open("w") if log is not None else nullcontext() as errors:
            self.process = start(words, environment, errors.fileno() if errors else 2)
        self._apis: list[Api] = []
        self._wait_until_ready()

    def api(self) -> Api:
        """A connection that ends with the server."""
        self._apis.append(Api(self.url))
        return self._apis[-1]

    def _wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(_READY):
                return
            self.said.append(line)
        self.process.stdout.close()
        raise AssertionError(f"the server ended with {self.process.wait()} before it was ready")

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> int:
        """Ask it to stop and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._close_apis()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def _close_apis(self) -> None:
        for api in self._apis:
            api.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)
        self._close_apis()
        if self.process.stdout is not None:
            self.process.stdout.close()


def _start_installed(
    words: Sequence[str], env: dict[str, str], errors: int
) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).parent / "queen"), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One PostgreSQL for all tests that do not break it."""
    server = EmbeddedPostgres(tmp_path_factory.mktemp("pg"), settings_for(_MEMORY_BYTES, 2))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
async def dsn(postgres: EmbeddedPostgres) -> str:
    """A migrated database."""
    connection = await asyncpg.connect(postgres.dsn)
    await migrate(connection)
    await connection.close()
    return postgres.dsn


@pytest.fixture(scope="session")
def sweeping(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened


@pytest.fixture(autouse=True)
def streams_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """Streams end with their test: servers would close windows for them until the last one."""
    broom = request.getfixturevalue("sweeping") if "dsn" in request.fixturenames else None
    yield
    if broom is not None:
        broom.execute("delete from queen.streams")


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    opened = await Database.connect(dsn, size=4)
    yield opened
    await opened.close()


@pytest.fixture
async def connection(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(dsn, server_settings=session_settings())
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
def server(dsn: str) -> Iterator[ServerProcess]:
    """One server on the shared PostgreSQL."""
    running = ServerProcess("--database-url", dsn)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def second_server(dsn: str) -> Iterator[ServerProcess]:
    """Another server on the same database."""
    running = ServerProcess("--database-url", dsn)
    yield running
    assert running.stop() == 0


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Start servers that end with the test, and before the folder of the test is removed."""
    assert tmp_path.exists()
    started: list[ServerProcess] = []

    def start(
        *arguments: str,
        port: int | None = None,
        env: dict[str, str] | None = None,
        log: Path | None = None,
        installed: bool = False,
    ) -> ServerProcess:
        running = ServerProcess(*arguments, port=port, env=env, log=log, installed=installed)
        started.append(running)
        return running

    yield start
    for running in started:
        if running.process.poll() is None:
            running.stop()


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    opened = Api(server.url)
    yield opened
    opened.close()


@pytest.fixture
def other_api(second_server: ServerProcess) -> Iterator[Api]:
    """The same database through the other server."""
    opened = Api(second_server.url)
    yield opened
    opened.close()


@pytest.fixture
def queue() -> str:
    """A queue name of the test's own."""
    return f"q-{uuid.uuid4().hex[:12]}"
