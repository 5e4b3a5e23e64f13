"""Servers and the PostgreSQL inside them, as processes that can be killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import asyncpg
import psutil  # type: ignore[import-untyped]

from queen.storage.embedded import EmbeddedPostgres
from tests.acceptance.client import HttpClient, NoAnswer
from tests.conftest import ServerProcess
from tests.ports import free_port
from tests.waiting import until_async

_UNREAD = """
select count(*)
from queen.partitions p
join queen.queues q on q.id = p.queue_id and q.name = $1
left join queen.groups g on g.queue_id = q.id and g.name = $2
left join queen.cursors c on c.partition_id = p.id and c.group_id = g.id
where p.head > coalesce(c.committed, 0)
"""


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
    """Ask again and again: other processes tell us nothing by themselves."""
    await until_async(condition, timeout_s, look_s=0.02)


class Deployment:
    """Servers on one data folder. A server keeps its port when it is started again."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        # Only asked where PostgreSQL is; the servers start it, and start it again.
        self._postgres = EmbeddedPostgres(data_dir, {})
        self._servers: dict[int, ServerProcess] = {}
        # Processes of PostgreSQL that a crash has doomed; some live on for a moment.
        self._doomed: set[int] = set()
        self._starts = ThreadPoolExecutor(max_workers=1)
        self.ports: list[int] = []
        self._env: dict[int, dict[str, str]] = {}

    async def add_server(self, **env: str) -> int:
        """Start a server on a port of its own; return the port."""
        port = free_port()
        self.ports.append(port)
        self._env[port] = env
        await self.start_server(port)
        return port

    async def start_server(self, port: int) -> None:
        """Start a server on this port; return when it is ready."""
        await asyncio.get_running_loop().run_in_executor(self._starts, self._start, port)

    def _start(self, port: int) -> None:
        self._servers[port] = ServerProcess(
            "--data-dir", str(self._data_dir), port=port, env=self._env[port]
        )

    # ---- faults: each returns whether there was something to hit ----

    def kill_server(self, port: int) -> bool:
        server = self._servers[port]
        if server.process.poll() is not None:
            return False
        server.kill()
        return True

    def pause_server(self, port: int) -> None:
        """Stop the clock of a server, as a suspended machine or a long collection would."""
        os.kill(self._servers[port].pid, signal.SIGSTOP)

    def resume_server(self, port: int) -> None:
        os.kill(self._servers[port].pid, signal.SIGCONT)

    async def kill_postmaster(self) -> bool:
        """Kill the parent only: its children find out by themselves, some in mid-statement."""
        pid = self._postgres.postmaster_pid()
        if pid is None:
            return False
        self._doomed.update(_children(pid))
        return _kill(pid)

    async def kill_postgres(self) -> bool:
        """Kill all of PostgreSQL in one instant, as a power cut would, but for the disk."""
        return self._end_postgres()

    def _end_postgres(self) -> bool:
        pid = self._postgres.postmaster_pid()
        if pid is None:
            return False
        family = _children(pid)
        self._doomed.update(family)
        _kill(pid)
        for child in family:
            _kill(child)
        return True

    def hold_wal_writer(self) -> None:
        """Let nothing reach the disk that no commit takes there, until all of it is killed."""
        pid = self._postgres.postmaster_pid()
        for child in _children(pid) if pid is not None else []:
            with suppress(psutil.NoSuchProcess):
                if "walwriter" in " ".join(psutil.Process(child).cmdline()):
                    os.kill(child, signal.SIGSTOP)

    async def kill_backend(self) -> bool:
        """Kill the youngest child, a connection under load. PostgreSQL recovers by itself."""
        pid = self._postgres.postmaster_pid()
        children = _children(pid) if pid is not None else []
        self._doomed.update(children)
        return bool(children) and _kill(max(children))

    async def is_recovered(self) -> bool:
        """Return whether PostgreSQL runs and nothing of one that crashed is left.

        A new one does not start before the last backend of the old one is gone.
        """
        self._doomed = {pid for pid in self._doomed if _is_alive(pid)}
        return not self._doomed and self._postgres.postmaster_pid() is not None

    # ---- the truth ----

    @property
    def dsn(self) -> str:
        """Where PostgreSQL is, for who goes behind the servers' back."""
        return self._postgres.dsn

    async def is_drained(self, queue: str, group: str) -> bool:
        """Return whether a group has finished everything in a queue, false if nobody can say."""
        # What was answered 202 comes into the queue when its spool is drained.
        if not all([await self._has_empty_spool(port) for port in self.ports]):
            return False
        try:
            connection = await asyncpg.connect(self._postgres.dsn)
        except (OSError, asyncpg.PostgresError):
            return False
        try:
            unread: int = await connection.fetchval(_UNREAD, queue, group)
            return unread == 0
        finally:
            await connection.close()

    async def _has_empty_spool(self, port: int) -> bool:
        http = HttpClient(port)
        try:
            spool = (await http.call("GET", "/api/v1/spool")).body
        except NoAnswer:
            return False
        finally:
            await http.close()
        return bool(spool["counted"] and not spool["records"])

    # ---- the end ----

    def stop(self) -> None:
        """End every process, in order if they obey, by force if not."""
        # A test that was interrupted may have left a start under way.
        self._starts.shutdown()
        try:
            for port, server in self._servers.items():
                if server.process.poll() is None:
                    self.resume_server(port)
                    server.stop()
        finally:
            for server in self._servers.values():
                if server.process.poll() is None:
                    server.kill()
            self._end_postgres()


def _children(pid: int) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def _is_alive(pid: int) -> bool:
    # Nobody may have reaped it yet, and that makes no difference.
    with suppress(psutil.NoSuchProcess):
        status: str = psutil.Process(pid).status()
        return bool(status != psutil.STATUS_ZOMBIE)
    return False


def _kill(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False
