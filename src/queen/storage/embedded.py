"""The embedded PostgreSQL: started on first use, shared, and stopped by its last user.

    data_dir/
      postgres/      the cluster, with queen.conf, server.log and the socket in it
      postgres.new/  a cluster while it is being made; renamed when it is complete
      start.lock     held by whoever is starting or stopping the server at this moment
      queen.lock     held, shared, by every user; whoever gets it alone was the last
      server.lock    held by PostgreSQL's own processes, all of which inherit it

Locks are `flock`s, which the kernel drops with their owner, so `kill -9` leaves nothing to
clean up. They are taken in the order start, queen, server.

`server.lock` is what keeps a second server off the data. PostgreSQL guards itself with a
process id and a shared memory segment, but a process id may have passed to another process
since, and containers that share a volume see neither. The lock lasts until the last
backend of a dead server is gone, so waiting for it is all that a restart has to do.

The server listens on a Unix socket only and trusts whoever can open it. Only the owner of
the folder can: it has mode 0700.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import stat
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psutil  # type: ignore[import-untyped]

from queen.errors import EmbeddedFailed
from queen.storage.files import (
    append_text,
    end_of,
    first_number,
    hold_lock,
    open_lock,
    reap,
    release,
    sync_folder,
    try_lock,
)
from queen.storage.programs import Tools, tools_for
from queen.storage.tuning import describe

_log = logging.getLogger(__name__)

_USER = "postgres"
_DATABASE = "queen"
_PORT = 5432
_SOCKET = f".s.PGSQL.{_PORT}"
_PID_FILE = "postmaster.pid"

# The kernel takes 103 bytes on macOS and 107 on Linux. One number, so that the place of the
# socket does not depend on the system.
_SOCKET_PATH_MAX_BYTES = 103

# Replaying a full max_wal_size on a slow disk takes minutes, and stopping writes out every
# dirty buffer. A server that dies ends the wait at once, so a long limit costs nothing.
_SERVER_TIMEOUT_S = 600
# Long enough for the last checkpoint of a large cache.
_FAST_STOP_S = 60
_ORPHANS_TIMEOUT_S = 20.0
# A backend that was killed takes the others with it, and the server recovers for a while.
_CONNECTING_S = 60.0
_PSQL_NO_CONNECTION = 2
_POLL_S = 0.05
_SUPERVISE_S = 0.2
_REVIVE_AGAIN_S = 2.0
_LOG_MAX_BYTES = 10 * 1024 * 1024


class _NotConnected(Exception):
    """No connection was had, or it was lost."""


class EmbeddedPostgres:
    """One user's hold on the PostgreSQL server of a data folder.

    Any number of processes may hold the same folder. The first starts the server, the others
    join it, and the last to stop stops it. Settings are those of whoever starts the server.
    """

    def __init__(self, data_dir: Path, settings: Mapping[str, str]) -> None:
        self._data_dir = data_dir.expanduser().resolve()
        self._cluster = self._data_dir / "postgres"
        self._settings = dict(settings)
        self._tools: Tools | None = None
        self._usage: int | None = None

    @property
    def dsn(self) -> str:
        """Where to connect, once `start` has returned. It never changes."""
        host = quote(str(self._socket_dir()), safe="")
        return f"postgresql://{_USER}@/{_DATABASE}?host={host}&port={_PORT}"

    @property
    def log_path(self) -> Path:
        """PostgreSQL's own log, which holds neither statements nor parameters."""
        return self._cluster / "server.log"

    def start(self) -> None:
        """Return when the server accepts connections, whoever has started it.

        Raises `EmbeddedFailed`, with the end of PostgreSQL's log, when it does not.
        """
        try:
            self._prepare_data_dir()
            with hold_lock(self._data_dir / "start.lock"):
                self._register()
                self._ensure_running()
                self._ensure_database()
        except OSError as error:
            self._give_up()
            raise EmbeddedFailed(f"PostgreSQL cannot start in {self._data_dir}: {error}") from error
        except BaseException:
            self._give_up()
            raise

    def stop(self) -> None:
        """Leave the server, and stop it if nobody else uses it. Stopping twice is allowed."""
        if self._usage is None:
            return
        with hold_lock(self._data_dir / "start.lock"):
            self._leave()

    def postmaster_pid(self) -> int | None:
        """Return the process id of the running server, or None if there is none."""
        pid = first_number(self._cluster / _PID_FILE)
        return pid if pid is not None and self._is_our_server(pid) else None

    def supervise(self, stop: threading.Event) -> None:
        """Start the server again whenever it has died, until `stop` is set.

        Blocks; meant for a daemon thread. Every user of a folder may supervise it: the start
        lock lets one of them act, and the others find the server running again.
        """
        while not stop.wait(_SUPERVISE_S):
            try:
                if self._usage is not None and self.postmaster_pid() is None:
                    self._revive()
            except (EmbeddedFailed, OSError) as error:
                _log.error("PostgreSQL has died and does not start again: %s", error)
                stop.wait(_REVIVE_AGAIN_S)

    # -- one user --------------------------------------------------------------------------

    def _prepare_data_dir(self) -> None:
        if self._data_dir.exists() and not self._data_dir.is_dir():
            raise EmbeddedFailed(
                f"{self._data_dir} is a file; the embedded PostgreSQL needs a folder"
            )
        self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _register(self) -> None:
        if self._usage is None:
            usage = open_lock(self._data_dir / "queen.lock")
            # Never waits: it is held exclusively only under the start lock, which is ours.
            fcntl.flock(usage, fcntl.LOCK_SH)
            self._usage = usage

    def _leave(self) -> None:
        usage, self._usage = self._usage, None
        if usage is None:  # Another thread was faster.
            return
        try:
            if try_lock(usage):
                self._stop_server()
        finally:
            release(usage)

    def _give_up(self) -> None:
        # The failure that led here is the one to report.
        with suppress(EmbeddedFailed, OSError):
            self.stop()

    def _revive(self) -> None:
        began = time.monotonic()
        with hold_lock(self._data_dir / "start.lock"):
            # Looked at again under the lock: another user may have been faster, and a user
            # that has left must not bring back the server it has just stopped.
            if self._usage is None or self.postmaster_pid() is not None:
                return
            self._ensure_running()
        _log.warning("PostgreSQL had died; it runs again after %.1f s", time.monotonic() - began)

    # -- one server, under the start lock --------------------------------------------------

    def _ensure_running(self) -> None:
        self._tools = self._tools or tools_for(self._cluster)
        if self._join():
            return
        claim = self._claim()
        try:
            if not (self._cluster / "PG_VERSION").exists():
                self._initialise(claim)
            self._launch(claim)
        finally:
            # Closed but not unlocked: from here on the lock is PostgreSQL's.
            os.close(claim)

    def _join(self) -> bool:
        """Wait for a running server to be ready; false if there is none or it goes away."""
        deadline = time.monotonic() + _SERVER_TIMEOUT_S
        while self.postmaster_pid() is not None:
            if self._is_ready():
                return True
            if time.monotonic() > deadline:
                raise self._failure("PostgreSQL runs but does not become ready")
            time.sleep(_POLL_S)
        return False

    def _claim(self) -> int:
        """Take the server lock, as soon as the backends of a dead server have ended."""
        deadline = time.monotonic() + _ORPHANS_TIMEOUT_S
        claim = open_lock(self._data_dir / "server.lock")
        while not try_lock(claim):
            if time.monotonic() > deadline:
                os.close(claim)
                raise self._failure(
                    f"processes of a former PostgreSQL still use {self._cluster}; "
                    "end them, or wait until they end"
                )
            time.sleep(_POLL_S)
        return claim

    def _initialise(self, claim: int) -> None:
        """Make the cluster under another name, so that an interrupted one is never used."""
        new = self._data_dir / "postgres.new"
        if new.exists():
            shutil.rmtree(new)
        new.mkdir(mode=0o700)
        tools = self._require_tools()
        tools.own(new)
        # initdb syncs what it has written. Skipping that would save a tenth of a second.
        options = ("--auth-local=trust", "--auth-host=reject", "--encoding=UTF8", "--locale=C")
        done = tools.run("initdb", *options, f"--username={_USER}", folder=new, keep=claim)
        if done.returncode != 0:
            raise EmbeddedFailed(f"initdb failed in {new}:\n{done.stdout.strip()}")
        append_text(new / "postgresql.conf", "include 'queen.conf'\n")
        new.rename(self._cluster)
        sync_folder(self._data_dir)

    def _launch(self, claim: int) -> None:
        self._prepare_socket_dir()
        self._write_settings()
        self._remove_stale_pid_files()
        self._limit_log()
        options = ("start", "--wait", f"--timeout={_SERVER_TIMEOUT_S}", "--log", self.log_path.name)
        done = self._require_tools().run("pg_ctl", *options, folder=self._cluster, keep=claim)
        if done.returncode != 0:
            raise self._failure(f"PostgreSQL does not start in {self._cluster}")

    def _stop_server(self) -> None:
        pid = self.postmaster_pid()
        if pid is None:
            return
        # A fast stop asked for during crash recovery can wait for ever. The immediate one loses
        # nothing that was confirmed: the next start recovers.
        for mode, timeout_s in (("fast", _FAST_STOP_S), ("immediate", _SERVER_TIMEOUT_S)):
            options = ("stop", f"--mode={mode}", "--wait", f"--timeout={timeout_s}")
            done = self._require_tools().run("pg_ctl", *options, folder=self._cluster)
            if done.returncode == 0:
                break
        else:
            raise self._failure(f"PostgreSQL (process {pid}) does not stop")
        # pg_ctl looks at the process id file, which goes before the last processes do.
        os.close(self._claim())
        reap(pid)
        if self._socket_dir() != self._cluster:
            with suppress(OSError):
                self._socket_dir().rmdir()

    def _ensure_database(self) -> None:
        """Make the database; wait for a server that was ready and has begun to recover since."""
        deadline = time.monotonic() + _CONNECTING_S
        while True:
            try:
                return self._make_database()
            except _NotConnected as error:
                if time.monotonic() > deadline:
                    raise self._failure(f"PostgreSQL refuses connections: {error}") from error
            time.sleep(_POLL_S)
            self._ensure_running()

    def _make_database(self) -> None:
        # At each start, not only at the first: dropping the database is how one empties it.
        if _DATABASE not in self._sql("select datname from pg_database").splitlines():
            self._sql(f"create database {_DATABASE}")

    def _sql(self, statement: str) -> str:
        done = self._require_tools().run_as_self(
            "psql",
            *("--no-psqlrc", "--no-password", "--quiet", "--tuples-only", "--no-align"),
            *("--host", str(self._socket_dir()), "--port", str(_PORT), "--username", _USER),
            *("--dbname", "postgres", "--command", statement),
        )
        said = done.stdout.strip()
        if done.returncode == _PSQL_NO_CONNECTION:
            raise _NotConnected(said)
        if done.returncode != 0:
            raise self._failure(f"PostgreSQL refuses a statement: {said}")
        return said

    def _require_tools(self) -> Tools:
        if self._tools is None:
            raise EmbeddedFailed("the embedded PostgreSQL was not started")
        return self._tools

    # -- files of the cluster --------------------------------------------------------------

    def _socket_dir(self) -> Path:
        """Return the folder of the socket: the cluster's, unless clients cannot name it.

        The other place depends on nothing but the data folder. A runtime or temporary folder
        from the environment would differ between a service and a shell, which must meet.
        """
        path = os.fsencode(self._cluster / _SOCKET)
        if len(path) <= _SOCKET_PATH_MAX_BYTES and b"," not in path:  # A comma separates hosts.
            return self._cluster
        digest = hashlib.sha256(os.fsencode(self._cluster)).hexdigest()[:16]
        return Path("/tmp", f"queen-{digest}")  # noqa: S108

    def _prepare_socket_dir(self) -> None:
        folder = self._socket_dir()
        if folder == self._cluster:
            return
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            self._require_tools().own(folder)
        # Anyone can make a folder of this name first, and would then own our socket.
        status, owner = folder.lstat(), self._cluster.stat().st_uid
        private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
        if not private or status.st_uid != owner:
            raise EmbeddedFailed(f"{folder} is not a private folder of user {owner}; remove it")

    def _write_settings(self) -> None:
        inside = self._socket_dir() == self._cluster
        settings = {
            **self._settings,
            "listen_addresses": "",
            "port": str(_PORT),
            # Relative to the cluster, so that its path needs neither quoting nor permission.
            "unix_socket_directories": "." if inside else str(self._socket_dir()),
            "unix_socket_permissions": "0700",
            "cluster_name": "queen",
        }
        # Written outside the cluster and moved in. A link that the server's account might
        # have put there is replaced, not followed.
        draft = self._data_dir / "queen.conf.new"
        draft.write_text(f"# Written by Queen at each start.\n{describe(settings)}\n")
        self._require_tools().own(draft)
        draft.rename(self._cluster / "queen.conf")

    def _remove_stale_pid_files(self) -> None:
        """Remove process id files that name a living process which is not the server.

        PostgreSQL does this for dead processes. It gives up when the number has passed to
        another process of the same user, as it does in every restarted container, or to a
        process that nobody has reaped.
        """
        for path in (self._cluster / _PID_FILE, self._socket_dir() / f"{_SOCKET}.lock"):
            pid = first_number(path)
            if pid is not None and psutil.pid_exists(pid) and not self._is_our_server(pid):
                path.unlink(missing_ok=True)

    def _is_our_server(self, pid: int) -> bool:
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                reap(pid)
                return False
            return process.name() == "postgres" and self._cluster.samefile(process.cwd())
        except (psutil.NoSuchProcess, FileNotFoundError):
            return False
        except psutil.AccessDenied:
            # Root in a container may not be allowed to look into another user's process. The
            # name fits, and the server lock stands guard should this be wrong.
            return True

    def _is_ready(self) -> bool:
        try:
            lines = (self._cluster / _PID_FILE).read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[7].strip() == "ready"

    def _limit_log(self) -> None:
        with suppress(FileNotFoundError):
            if self.log_path.stat().st_size > _LOG_MAX_BYTES:
                self.log_path.rename(self.log_path.with_suffix(".log.1"))

    def _failure(self, what: str) -> EmbeddedFailed:
        tail = end_of(self.log_path)
        if not tail:
            return EmbeddedFailed(f"{what}; its log {self.log_path} is empty")
        return EmbeddedFailed(f"{what}; the end of its log {self.log_path}:\n{tail}")
