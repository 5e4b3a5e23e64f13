"""`queen demo`: a broker from nothing, messages through all of it, and counts that must agree."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from queen.cli.demo.chats import show_chats
from queen.cli.demo.counts import Count, table_of_counts
from queen.cli.demo.outage import show_outage
from queen.cli.demo.queues import show_queues
from queen.cli.demo.server import DemoServer, own_server
from queen.cli.demo.shop import show_shop
from queen.cli.exits import explain_errors
from queen.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

# What is shown, one after the other, on one server.
_ACTS: tuple[Callable[[DemoServer, Console], list[Count]], ...] = (
    lambda server, console: show_queues(server.port, console),
    show_outage,
    lambda server, console: show_chats(server.port, console),
    lambda server, console: show_shop(server.port, console),
)
_NEXT = """Where to look next:
  queen demo --keep             the same, to look at in a browser
  queen serve                   a broker that stays; pages at /, API at /docs
  docs/tutorial/first-queue.md  then first-stream.md, first-pipeline.md
  examples/README.md            programs for queues, streams and Spark"""


_Keep = Annotated[
    bool, typer.Option("--keep", help="Leave the broker running, to look at in the dashboard.")
]


def demo(keep: _Keep = False) -> None:
    """Serve, push and consume, cut chats into windows, compute and join on Spark; count it all."""
    with explain_errors():
        require("server", "the demo")
    from rich.console import Console

    # As Ctrl-C does: what was started is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    started = time.monotonic()
    console.print("Starting a broker with its own PostgreSQL in a temporary folder ...")
    with own_server() as server:
        console.print(f"queen ready on http://127.0.0.1:{server.port}")
        counts = [count for act in _ACTS for count in act(server, console)]
        _tell(counts, time.monotonic() - started, console)
        if keep:
            _stay(server, console)


def _tell(counts: list[Count], took_s: float, console: Console) -> None:
    console.print(table_of_counts(counts))
    wrong = [count for count in counts if not count.agrees]
    if wrong:
        console.print(f"[red]{len(wrong)} of the counts do not agree.")
        raise typer.Exit(code=1)
    console.print(f"All counts agree, after {took_s:.0f} s.\n{_NEXT}")


def _stay(server: DemoServer, console: Console) -> None:
    """Let the broker run until somebody ends it."""
    # Whoever has read that it stays may end it at once.
    with contextlib.suppress(KeyboardInterrupt):
        console.print(f"\nThe broker stays: look at http://127.0.0.1:{server.port}/")
        console.print("Windows are at /streams, the Spark pipelines at /pipelines. Ctrl-C ends it.")
        signal.pause()
