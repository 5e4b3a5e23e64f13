"""The embedded PostgreSQL: started once, shared, brought back, and stopped by its last user."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psutil  # type: ignore[import-untyped]
import pytest

from queen.errors import EmbeddedFailed
from queen.storage import files, programs
from queen.storage.embedded import EmbeddedPostgres
from queen.storage.tuning import describe, detect, settings_for
from tests.programs import bound
from tests.waiting import until

SMALL = settings_for(256 * 1024 * 1024, 1)

# Starts a server, says so, and stays until it is told to stop through its standard input.
USER = """
import select, sys
from pathlib import Path
from queen.storage.embedded import EmbeddedPostgres
from queen.storage.tuning import settings_for

def stay():
    # A signal that comes just before a read without end would be noticed at its end only.
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        pass

postgres = EmbeddedPostgres(Path(sys.argv[1]), settings_for(256 * 1024 * 1024, 1))
postgres.start()
try:
    print(postgres.postmaster_pid(), flush=True)
    stay()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    stay()
postgres.stop()
"""

# Keeps a backend too busy to notice that its server has died.
BUSY = """do $$
declare finish timestamptz := clock_timestamp() + interval '1.5 s';
begin while clock_timestamp() < finish loop end loop; end $$"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

Make = Callable[..., EmbeddedPostgres]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the clusters are. Removed at once: pytest keeps three runs, a cluster is 40 MB."""
    folder = tmp_path_factory.mktemp("embedded")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def fresh(folders: Path) -> Path:
    """A folder that no server has used."""
    return Path(tempfile.mkdtemp(dir=folders))


@pytest.fixture
def reused(folders: Path) -> Path:
    """A folder whose cluster is made once; no server runs in it between tests."""
    return folders / "reused"


@pytest.fixture
def make(reused: Path) -> Iterator[Make]:
    """Make holds on a server; whatever they start ends with the test."""
    made: list[EmbeddedPostgres] = []

    def make_one(data_dir: Path = reused, settings: dict[str, str] = SMALL) -> EmbeddedPostgres:
        made.append(EmbeddedPostgres(data_dir, settings))
        return made[-1]

    yield make_one
    for postgres in made:
        postgres.stop()


@pytest.fixture
def postgres(make: Make) -> EmbeddedPostgres:
    started = make()
    started.start()
    return started


@pytest.fixture(scope="module")
def shared(folders: Path) -> Iterator[EmbeddedPostgres]:
    """A server for the tests that only look at it."""
    started = EmbeddedPostgres(folders / "shared", SMALL)
    started.start()
    yield started
    started.stop()


async def fetchval(postgres: EmbeddedPostgres, statement: str) -> Any:
    connection = await asyncpg.connect(postgres.dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


def running(postgres: EmbeddedPostgres) -> int:
    pid = postgres.postmaster_pid()
    assert pid is not None
    return pid


def server_lock_is_free(postgres: EmbeddedPostgres) -> bool:
    descriptor = files.open_lock(postgres._data_dir / "server.lock")
    try:
        return files.try_lock(descriptor)
    finally:
        os.close(descriptor)


def kill_server(postgres: EmbeddedPostgres) -> int:
    pid = running(postgres)
    os.kill(pid, signal.SIGKILL)
    until(lambda: postgres.postmaster_pid() is None)
    return pid


@contextmanager
def another_user(data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", USER, str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with bound(process):
        yield process
        process.communicate(timeout=60)


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# -- starting ------------------------------------------------------------------------------


async def test_a_fresh_folder_becomes_a_server_that_accepts_connections(
    shared: EmbeddedPostgres,
) -> None:
    assert await fetchval(shared, "select current_database()") == "queen"
    assert (await fetchval(shared, "show server_version")).startswith("18.")
    assert await fetchval(shared, "show data_checksums") == "on"
    assert await fetchval(shared, "show server_encoding") == "UTF8"


def test_the_data_folder_is_private(shared: EmbeddedPostgres) -> None:
    cluster = shared.log_path.parent
    for folder in (cluster, cluster.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


async def test_every_setting_is_applied(shared: EmbeddedPostgres) -> None:
    connection = await asyncpg.connect(shared.dsn)
    rows = await connection.fetch(
        "select name, applied, error from pg_file_settings where sourcefile like '%queen.conf'"
    )
    await connection.close()
    assert set(SMALL) <= {row["name"] for row in rows}
    assert [row["name"] for row in rows if row["error"] or not row["applied"]] == []


async def test_the_server_is_durable_and_has_no_tcp_port(shared: EmbeddedPostgres) -> None:
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        assert await fetchval(shared, f"show {name}") == "on"
    assert await fetchval(shared, "show listen_addresses") == ""
    assert psutil.Process(running(shared)).net_connections("tcp") == []


async def test_settings_cannot_open_the_server_to_the_network(make: Make) -> None:
    postgres = make(settings={**SMALL, "listen_addresses": "*", "port": "1"})
    postgres.start()
    assert await fetchval(postgres, "show listen_addresses") == ""


async def test_data_outlives_an_orderly_stop(postgres: EmbeddedPostgres) -> None:
    await fetchval(postgres, "create table stopped as select 1 as n")
    postgres.stop()
    assert postgres.postmaster_pid() is None
    postgres.start()
    assert await fetchval(postgres, "select n from stopped") == 1


async def test_a_dropped_database_is_made_again(postgres: EmbeddedPostgres, make: Make) -> None:
    connection = await asyncpg.connect(postgres.dsn, database="postgres")
    await connection.execute("drop database queen")
    await connection.close()
    make().start()
    assert await fetchval(postgres, "select current_database()") == "queen"


async def test_an_interrupted_first_start_is_begun_anew(make: Make, fresh: Path) -> None:
    half = fresh / "data" / "postgres.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    postgres = make(fresh / "data")
    postgres.start()
    assert await fetchval(postgres, "select 1") == 1
    assert not half.exists()


async def test_a_path_of_odd_characters(make: Make, fresh: Path) -> None:
    postgres = make(fresh / 'it\'s $HOME, "`q`" & 50%')
    postgres.start()
    assert await fetchval(postgres, "select 1") == 1


async def test_a_path_too_long_for_a_socket(make: Make, fresh: Path) -> None:
    postgres = make(fresh / ("long-" * 30))
    postgres.start()
    sockets = postgres._socket_dir()
    assert sockets.stat().st_mode & 0o777 == 0o700
    assert await fetchval(postgres, "select 1") == 1
    postgres.stop()
    assert not sockets.exists()


def test_a_foreign_socket_folder_is_refused(make: Make, fresh: Path) -> None:
    postgres = make(fresh / ("long-" * 30))
    sockets = postgres._socket_dir()
    sockets.mkdir()
    sockets.chmod(0o755)
    try:
        with pytest.raises(EmbeddedFailed, match="not a private folder"):
            postgres.start()
    finally:
        sockets.rmdir()


# -- refusals ------------------------------------------------------------------------------


def test_a_file_is_not_a_data_folder(make: Make, fresh: Path) -> None:
    path = fresh / "file"
    path.write_text("mine")
    with pytest.raises(EmbeddedFailed, match=r"file is a file; .* needs a folder"):
        make(path).start()
    assert path.read_text() == "mine"


def test_a_failure_carries_the_end_of_the_log(make: Make) -> None:
    postgres = make(settings={"shared_buffers": "plenty"})
    with pytest.raises(EmbeddedFailed) as caught:
        postgres.start()
    assert str(postgres.log_path) in caught.value.message
    assert 'invalid value for parameter "shared_buffers": "plenty"' in caught.value.message


async def test_a_failed_start_leaves_nothing_behind(make: Make) -> None:
    with pytest.raises(EmbeddedFailed):
        make(settings={"shared_buffers": "plenty"}).start()
    postgres = make()
    postgres.start()
    assert await fetchval(postgres, "select 1") == 1
    postgres.stop()
    assert postgres.postmaster_pid() is None


async def test_no_payload_reaches_the_log(shared: EmbeddedPostgres) -> None:
    connection = await asyncpg.connect(shared.dsn)
    await connection.execute("create table letters (body text primary key)")
    insert = "insert into letters values ($1)"
    await connection.execute(insert, "classified")
    with pytest.raises(asyncpg.UniqueViolationError, match="duplicate key") as caught:
        await connection.execute(insert, "classified")
    await connection.close()
    assert "classified" in (caught.value.detail or "")
    log = shared.log_path.read_text()
    assert "duplicate key" in log
    assert "classified" not in log
    assert "letters values" not in log


# -- sharing -------------------------------------------------------------------------------


async def test_the_last_user_stops_the_server(postgres: EmbeddedPostgres, make: Make) -> None:
    second = make()
    second.start()
    pid = running(second)
    assert pid == running(postgres)
    postgres.stop()
    assert running(second) == pid
    assert await fetchval(second, "select 1") == 1
    second.stop()
    assert second.postmaster_pid() is None
    assert server_lock_is_free(second)


def test_stopping_twice_counts_once(postgres: EmbeddedPostgres, make: Make) -> None:
    second = make()
    second.start()
    postgres.stop()
    postgres.stop()
    assert second.postmaster_pid() is not None


def test_processes_that_start_together_share_one_server(make: Make, fresh: Path) -> None:
    data_dir = fresh / "data"
    with another_user(data_dir) as one, another_user(data_dir) as two:
        assert answer(one) == answer(two) == str(running(make(data_dir)))
    assert make(data_dir).postmaster_pid() is None


def test_a_killed_user_no_longer_counts(postgres: EmbeddedPostgres, reused: Path) -> None:
    with another_user(reused) as user:
        assert answer(user) == str(running(postgres))
        user.kill()
    postgres.stop()
    assert postgres.postmaster_pid() is None


def test_the_server_outlives_an_interrupt_of_its_users(make: Make, reused: Path) -> None:
    with another_user(reused) as user:
        pid = answer(user)
        os.killpg(user.pid, signal.SIGINT)
        assert answer(user) == "interrupted"
        assert str(running(make())) == pid


@on_linux
def test_the_server_inherits_its_own_lock_and_no_other(shared: EmbeddedPostgres) -> None:
    descriptors = Path(f"/proc/{running(shared)}/fd").iterdir()
    names = {descriptor.readlink().name for descriptor in descriptors}
    assert {name for name in names if name.endswith(".lock")} == {"server.lock"}


# -- coming back ---------------------------------------------------------------------------


@contextmanager
def supervised(postgres: EmbeddedPostgres) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=postgres.supervise, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=30)
        assert not thread.is_alive()


async def test_a_killed_server_comes_back_with_its_data(
    postgres: EmbeddedPostgres, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    second = make()
    second.start()
    await fetchval(postgres, "create table killed as select 1 as n")
    with supervised(postgres), supervised(second):
        killed = kill_server(postgres)
        until(lambda: "PostgreSQL had died" in caplog.text)
        assert running(postgres) != killed
        assert await fetchval(second, "select n from killed") == 1
    assert caplog.text.count("PostgreSQL had died") == 1


def test_supervision_does_not_bring_back_a_stopped_server(postgres: EmbeddedPostgres) -> None:
    with supervised(postgres):
        postgres.stop()
        postgres._revive()
        assert postgres.postmaster_pid() is None


def test_a_server_that_cannot_come_back_is_reported(
    postgres: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    postgres._settings = {"shared_buffers": "plenty"}
    with supervised(postgres):
        kill_server(postgres)
        until(lambda: "does not start again" in caplog.text)
        postgres._settings = SMALL
        until(lambda: postgres.postmaster_pid() is not None)


async def test_a_start_waits_for_the_backends_of_a_killed_server(
    postgres: EmbeddedPostgres, make: Make
) -> None:
    busy = asyncio.create_task(fetchval(postgres, BUSY))
    active = "select count(*) from pg_stat_activity where query like 'do %' and state = 'active'"
    while await fetchval(postgres, active) == 0:
        pass
    kill_server(postgres)
    assert not server_lock_is_free(postgres)
    await asyncio.to_thread(make().start)
    assert await fetchval(postgres, "select 1") == 1
    await asyncio.gather(busy, return_exceptions=True)


async def test_a_start_waits_for_a_server_that_recovers(
    postgres: EmbeddedPostgres, make: Make
) -> None:
    connection = await asyncpg.connect(postgres.dsn)
    os.kill(connection.get_server_pid(), signal.SIGKILL)
    await asyncio.to_thread(make().start)
    assert await fetchval(postgres, "select 1") == 1
    connection.terminate()


@pytest.mark.parametrize("pid", [os.getpid(), 2**22 - 1], ids=["another process", "no process"])
async def test_a_stale_process_id_is_no_obstacle(postgres: EmbeddedPostgres, pid: int) -> None:
    cluster = postgres.log_path.parent
    kept = (cluster / "postmaster.pid").read_text().splitlines()
    postgres.stop()
    for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
        (cluster / name).write_text("\n".join([str(pid), *kept[1:]]) + "\n")
    assert postgres.postmaster_pid() is None
    postgres.start()
    assert await fetchval(postgres, "select 1") == 1


# -- root ----------------------------------------------------------------------------------


@as_root
def test_root_runs_the_server_as_another_user(shared: EmbeddedPostgres) -> None:
    user = psutil.Process(running(shared)).uids().effective
    assert user != 0
    assert user == shared.log_path.parent.stat().st_uid


@as_root
async def test_root_opens_no_folder_to_others(make: Make, fresh: Path) -> None:
    closed = fresh / "closed"
    closed.mkdir(mode=0o700)
    before = [folder.stat().st_mode for folder in (closed, *closed.parents)]
    postgres = make(closed / "data")
    postgres.start()
    assert await fetchval(postgres, "select 1") == 1
    assert [folder.stat().st_mode for folder in (closed, *closed.parents)] == before


@as_root
def test_root_copies_programs_that_others_cannot_reach(fresh: Path) -> None:
    account = programs.system_account()
    private = programs.public_copy(programs.bundled_programs(), fresh / "private")
    assert not programs.can_run(private, account)  # pytest's own folders are closed.
    copy = programs.public_copy(private, fresh / "cache")
    subprocess.run([copy / "initdb", "--version"], check=True, capture_output=True)
    modes = {path.stat().st_mode & 0o777 for path in (fresh / "cache").rglob("*")}
    assert modes == {0o755, 0o644}


@as_root
def test_those_who_make_the_account_at_once_agree_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"queen-test-{os.getpid()}"
    monkeypatch.setattr(programs, "_SYSTEM_USER", name)
    # Root has the programs of root; its path need not name their folder.
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
    context = multiprocessing.get_context("fork")
    with context.Pool(6) as pool:
        accounts = [pool.apply_async(programs.system_account) for _ in range(6)]
        told = {account.get() for account in accounts}
    try:
        entry = pwd.getpwnam(name)
        assert told == {(entry.pw_uid, entry.pw_gid)}
    finally:
        userdel = shutil.which("userdel", path="/usr/sbin:/sbin:/usr/bin:/bin")
        assert userdel is not None
        subprocess.run([userdel, name], check=True, capture_output=True)


# -- tuning --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory_mb", "shared_buffers"), [(64, "32MB"), (1024, "256MB"), (1024 * 1024, "1024MB")]
)
def test_memory_follows_the_machine_within_limits(memory_mb: int, shared_buffers: str) -> None:
    assert settings_for(memory_mb * 1024 * 1024, 2)["shared_buffers"] == shared_buffers


def test_the_machine_is_detected_within_its_bounds() -> None:
    memory_bytes, cores = detect()
    assert 0 < memory_bytes <= psutil.virtual_memory().total
    assert 0 < cores <= (os.cpu_count() or 1)


def test_settings_are_described_as_postgresql_reads_them() -> None:
    assert describe({"jit": "off", "log_line_prefix": "it's"}) == (
        "jit             = 'off'\nlog_line_prefix = 'it''s'"
    )
