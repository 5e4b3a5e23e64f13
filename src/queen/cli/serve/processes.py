"""One server process, or several that share a port.

Several are started by a parent that serves nothing itself. It looks after them: one that has
ended is replaced, after a pause that grows when it ends again and again. And each of them
ends with the parent, however the parent ended: it holds the reading end of a pipe that only
the parent could write to, and the kernel closes that with the parent.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

from queen.errors import QueenError

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext, SpawnProcess
    from multiprocessing.synchronize import Event

    from queen.server.resp.serving import RespOptions
    from queen.server.run import ServeOptions

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
# One that has lived so long was well: its next end counts as the first.
_WELL_AFTER_S = 60.0
_LOOK_S = 0.5
_LONGEST_FOLDER = 70
# Longer than an orderly end takes.
_ORPHAN_S = 60.0


def run(options: ServeOptions | None, workers: int) -> None:
    """Serve until told to stop. None: we were told so before there was a database."""
    if options is None:
        return
    shown = f"[{options.host}]" if ":" in options.host else options.host
    scheme = "https" if options.security.tls_cert else "http"

    def ready() -> None:
        if options.resp is not None:
            _say_where_redis_clients_go(options.resp, is_tls=bool(options.security.tls_cert))
        for line in _about(options, f"{scheme}://{shown}:{options.port}"):
            say(line)

    if workers == 1:
        _serve_here(options, ready)
    else:
        _Workers(options, workers).run(ready)


def _about(options: ServeOptions, url: str) -> list[str]:
    """Say what somebody wants to know who has just started it. Programs wait for the first line."""
    from queen.server.auth.options import is_loopback

    auth = options.security.auth
    ways = [name for name, is_on in (("tokens", auth.tokens), ("jwt", auth.jwt)) if is_on]
    reach = "this machine only" if is_loopback(options.host) else "WHOEVER REACHES IT"
    said = " and ".join(ways) if ways else f"none, for {reach}"
    data = options.data_dir or "a PostgreSQL of yours"
    lines = [
        f"queen ready on {url}",
        f"  data: {data}",
        f"  authentication: {said}",
        f"  API documentation: {url}/docs",
    ]
    return [*lines, f"  dashboard: {url}/"] if options.dashboard else lines


def _say_where_redis_clients_go(resp: RespOptions, *, is_tls: bool) -> None:
    shown = f"[{resp.host}]" if ":" in resp.host else resp.host
    say(f"streams for Redis clients on redis{'s' if is_tls else ''}://{shown}:{resp.port}")


def say(text: str) -> None:
    """Print for whoever started us, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _serve_here(options: ServeOptions, ready: Callable[[], None]) -> None:
    import uvloop

    from queen.server.run import serve

    uvloop.run(serve(options, ready))


def _serve_and_tell(options: ServeOptions, ready: Event, parent: Connection) -> None:
    """The whole life of a worker process."""
    from queen.server.api.logs import configure_logs

    configure_logs(options.log_level, options.log_format)
    threading.Thread(target=_end_with, args=(parent, options.home), daemon=True).start()
    _serve_here(options, ready.set)


def _end_with(parent: Connection, home: str | None) -> None:
    """Wait until the parent is gone, then end in order; after a while, end anyway."""
    # Nobody writes: it becomes readable when the other end is closed.
    wait([parent])
    if home is not None:
        # It would have removed it.
        shutil.rmtree(home, ignore_errors=True)
    _log.warning("the process that started this one is gone: ending")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_ORPHAN_S)
    os._exit(1)


class _Worker:
    """One of several server processes and those that take its number after it."""

    def __init__(self, context: SpawnContext, options: ServeOptions, parent: Connection) -> None:
        self._context = context
        self._options = options
        self._parent = parent
        self._ends_in_a_row = 0
        self.due_at: float | None = None
        self.start()

    def start(self) -> None:
        self.due_at = None
        self._began_at = time.monotonic()
        self.ready = self._context.Event()
        self.process: SpawnProcess = self._context.Process(
            target=_serve_and_tell, args=(self._options, self.ready, self._parent)
        )
        self.process.start()

    def is_ready(self, is_stopping: Callable[[], bool]) -> bool:
        """Wait until it serves; false when it ended instead, or is to end."""
        while not self.ready.wait(timeout=0.1):
            if is_stopping() or not self.process.is_alive():
                return False
        return True

    def note_end(self) -> None:
        """Log that it has ended, and note when the next one takes its number."""
        now = time.monotonic()
        if now - self._began_at >= _WELL_AFTER_S:
            self._ends_in_a_row = 0
        pause_s = min(_FIRST_PAUSE_S * 2 ** min(self._ends_in_a_row, 20), _LONGEST_PAUSE_S)
        self._ends_in_a_row += 1
        self.due_at = now + pause_s
        _log.error(
            "server process %d (worker %d) has ended %s; another takes over in %.0f s",
            self.process.pid,
            self._options.worker,
            _how_it_ended(self.process.exitcode),
            pause_s,
        )


def _meeting_place() -> str:
    """Return a new folder for the workers' socket. The path of a socket may not be long."""
    is_long = len(tempfile.gettempdir()) > _LONGEST_FOLDER
    return tempfile.mkdtemp(prefix="queen-", dir="/tmp" if is_long else None)  # noqa: S108


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by signal {-code}"
    return f"with exit code {code}"


class _Workers:
    """All server processes; each is a server of its own to the others."""

    def __init__(self, options: ServeOptions, count: int) -> None:
        import msgspec

        context = multiprocessing.get_context("spawn")
        # Held to the end, and by nobody else: its end is what the workers look at.
        reading, self._held = context.Pipe(duplex=False)
        # Where they find each other; only this user can enter it.
        self._home = _meeting_place()
        self._stopping = False
        # Before any is started: whoever is told to stop then has nobody to stop yet.
        for stop_signal in (signal.SIGTERM, signal.SIGINT):
            signal.signal(stop_signal, self._stop)
        self._all: list[_Worker] = []
        for number in range(count):
            own_options = msgspec.structs.replace(
                options, worker=number, shared=True, home=self._home
            )
            self._all.append(_Worker(context, own_options, reading))

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until told to stop, or until one does not even start."""
        if all(worker.is_ready(lambda: self._stopping) for worker in self._all):
            ready()
            while not self._stopping:
                self._look()
        self._end()
        if not self._stopping:
            raise QueenError("a server process ended with an error")

    def _look(self) -> None:
        """Wait a moment for one to end, and replace those whose time has come."""
        living = [worker.process.sentinel for worker in self._all if worker.due_at is None]
        wait(living, timeout=_LOOK_S)
        for worker in self._all:
            if self._stopping:
                return
            if worker.due_at is None and not worker.process.is_alive():
                worker.note_end()
            elif worker.due_at is not None and time.monotonic() >= worker.due_at:
                worker.start()

    def _end(self) -> None:
        for worker in self._all:
            worker.process.terminate()
        for worker in self._all:
            worker.process.join()
        shutil.rmtree(self._home, ignore_errors=True)
        clean = (0, -signal.SIGTERM)
        failed = [w for w in self._all if w.due_at is None and w.process.exitcode not in clean]
        if self._stopping and failed:
            raise QueenError("a server process ended with an error")
