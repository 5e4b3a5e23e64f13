"""One server process, or several that share a port."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from queen.errors import QueenError

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from multiprocessing.synchronize import Event

    from queen.server.run import ServeOptions


def run(options: ServeOptions, workers: int) -> None:
    """Serve until told to stop."""
    shown = f"[{options.host}]" if ":" in options.host else options.host
    scheme = "https" if options.security.tls_cert else "http"

    def ready() -> None:
        say(f"queen ready on {scheme}://{shown}:{options.port}")

    if workers == 1:
        _serve_here(options, ready)
    else:
        _serve_in_processes(options, workers, ready)


def say(text: str) -> None:
    """Print for whoever started us, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _serve_here(options: ServeOptions, ready: Callable[[], None]) -> None:
    import uvloop

    from queen.server.run import serve

    uvloop.run(serve(options, ready))


def _serve_and_tell(options: ServeOptions, ready: Event) -> None:
    from queen.server.logs import configure_logs

    configure_logs()
    _serve_here(options, ready.set)


def _serve_in_processes(options: ServeOptions, workers: int, ready: Callable[[], None]) -> None:
    """Run several processes that share the port; each is a server of its own to the others."""
    import msgspec

    context = multiprocessing.get_context("spawn")
    events = [context.Event() for _ in range(workers)]
    processes = [
        context.Process(
            target=_serve_and_tell,
            args=(msgspec.structs.replace(options, worker=number, shared=True), event),
        )
        for number, event in enumerate(events)
    ]
    for process in processes:
        process.start()

    def stop(*_: object) -> None:
        for process in processes:
            process.terminate()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if all(_is_ready(process, event) for process, event in zip(processes, events, strict=True)):
        ready()
    else:
        stop()
    for process in processes:
        process.join()
    if any(process.exitcode not in (0, -signal.SIGTERM) for process in processes):
        raise QueenError("a server process ended with an error")


def _is_ready(process: BaseProcess, event: Event) -> bool:
    """Wait for a worker; false when it ended instead."""
    while not event.wait(timeout=0.1):
        if not process.is_alive():
            return False
    return True
