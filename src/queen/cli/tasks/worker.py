"""`queen worker`: runs the tasks of an application."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from queen.cli.exits import FAILED, INTERRUPTED, USAGE, explain_errors, fail, say
from queen.cli.options import LogLevel
from queen.cli.tasks.reloading import (
    changes,
    files_here,
    start_again,
    wait_for_any_change,
    wait_for_change,
)
from queen.cli.terminal.printable import configure_terminal_log
from queen.client import Queen
from queen.client.tasks.worker import (
    DEFAULT_CONCURRENCY,
    DEFAULT_GRACE_S,
    Worker,
    WorkerOptions,
)

_log = logging.getLogger("queen.worker")

App = Annotated[
    str,
    typer.Argument(
        metavar="MODULE[:APP]",
        help="Where the tasks are: a module that can be imported from here, and the name of the "
        "Queen or SyncQueen in it, which may be left out if there is one.",
    ),
]
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", "-q", help="Only this queue; may be repeated. All that have tasks."),
]
Concurrency = Annotated[
    int,
    typer.Option("--concurrency", "-c", min=1, max=10_000, help="Jobs of a queue at once."),
]
Grace = Annotated[
    float,
    typer.Option(min=0, help="Seconds that jobs may still take after SIGTERM or Ctrl-C."),
]
Shared = Annotated[
    bool | None,
    typer.Option(
        "--shared/--ordered",
        help="Run jobs of one partition side by side, or one after the other; as the group is.",
    ),
]
Reload = Annotated[bool, typer.Option("--reload", help="Start again when a source file changes.")]
Level = Annotated[LogLevel, typer.Option("--log-level", help="How much it says.")]


def worker(
    app: App,
    queue: Queues = None,
    concurrency: Concurrency = DEFAULT_CONCURRENCY,
    grace: Grace = DEFAULT_GRACE_S,
    shared: Shared = None,
    reload: Reload = False,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Run the tasks of an application until SIGTERM or Ctrl-C.

    It then takes no more jobs, lets those that run go on for `--grace` seconds, and gives back what
    is not done by then; a second signal ends it at once. Exits with 1 if jobs were given back.
    """
    configure_terminal_log("%(asctime)s %(levelname)s %(message)s", log_level.value)
    logging.getLogger("asyncio").setLevel(logging.INFO)
    sys.path.insert(0, str(Path.cwd()))
    client = _load_again(app) if reload else _load(app)
    options = WorkerOptions(concurrency, grace, shared=shared)
    with explain_errors():
        is_changed = _run(client, queue or [], options, reload=reload)
    if is_changed:
        start_again()


# ---- the application ----


def _load(app: str) -> Any:
    """Return the client of an application, or end."""
    module_name, _, name = app.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            traceback.print_exc()
        fail(USAGE, f"{module_name!r} cannot be imported from {Path.cwd()}: {error}")
    except Exception as error:
        traceback.print_exc()
        fail(USAGE, f"{module_name!r} cannot be imported: {type(error).__name__}: {error}")
    client = getattr(module, name, None) if name else _only_client(module)
    if not _is_client(client):
        said = f"{name!r} in {module_name!r} is" if name else f"{module_name!r} has"
        fail(USAGE, f"{said} no Queen or SyncQueen: name one, as in {module_name}:queen")
    return client


def _is_client(value: Any) -> bool:
    return isinstance(value, Queen) or isinstance(getattr(value, "asynchronous", None), Queen)


def _only_client(module: Any) -> Any:
    clients = {id(value): value for value in vars(module).values() if _is_client(value)}
    return next(iter(clients.values())) if len(clients) == 1 else None


def _load_again(app: str) -> Any:
    """The same while somebody edits: what cannot be loaded is loaded when a file has changed."""
    before = changes(files_here())
    try:
        return _load(app)
    except typer.Exit:
        say("waiting for a change")
    wait_for_any_change(before)
    start_again()


# ---- running it ----


def _run(client: Any, queues: list[str], options: WorkerOptions, *, reload: bool) -> bool:
    """Run until stopped; return whether that was because a file has changed."""
    queen: Queen = client if isinstance(client, Queen) else client.asynchronous
    try:
        running = Worker(queen, queues, options)
    except ValueError as error:
        fail(USAGE, str(error))
    _log.info(
        "worker of %s: %d tasks, %d jobs at once",
        ", ".join(running.queues),
        sum(len(queen.tasks[name]) for name in running.queues),
        options.concurrency,
    )
    with _stopped_by_signals(running):
        work = _work(queen, running, reload=reload)
        # A client without asyncio has a loop in a thread; signals come to this one.
        is_changed: bool = asyncio.run(work) if client is queen else client.wait_for(work)
    if client is not queen:
        client.close()
    _log.info("worker has stopped")
    return is_changed


async def _work(queen: Queen, running: Worker, *, reload: bool) -> bool:
    watching = asyncio.ensure_future(_stop_on_change(running)) if reload else None
    try:
        given_back = await running.run()
    finally:
        is_changed = watching is not None and watching.done()
        if watching is not None:
            watching.cancel()
    if given_back:
        _end(FAILED)
    await queen.close()
    return is_changed


async def _stop_on_change(running: Worker) -> None:
    await wait_for_change()
    _log.info("a source file has changed: starting again")
    running.stop()


@contextmanager
def _stopped_by_signals(running: Worker) -> Iterator[None]:
    """Let the first signal stop a worker, and the second one end it."""
    signals: list[int] = []

    def stop(number: int, _frame: object) -> None:
        signals.append(number)
        if len(signals) > 1:
            _end(INTERRUPTED if number == signal.SIGINT else FAILED)
        _log.info("stopping: %d jobs are running", running.running)
        running.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(code: int) -> NoReturn:
    """End now: threads that are at work cannot be waited for."""
    # A signal may have come while something was being written.
    with suppress(Exception):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
