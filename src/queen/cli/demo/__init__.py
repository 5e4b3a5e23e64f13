"""`queen demo`: a broker from nothing, messages through it, and counts that must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from queen.cli.demo.queues import show_queues
from queen.cli.demo.server import own_server
from queen.cli.demo.windows import show_windows

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

# What is shown, one after the other, on one server. Each says whether its counts agree.
_ACTS: tuple[Callable[[int, Console], bool], ...] = (show_queues, show_windows)


def demo() -> None:
    """Serve, push 10,000 messages, consume them with two groups, cut two queues into windows."""
    from rich.console import Console

    console = Console()
    console.print("Starting a broker with its own PostgreSQL in a temporary folder ...")
    with own_server() as port:
        console.print(f"queen ready on http://127.0.0.1:{port}")
        agreed = all(act(port, console) for act in _ACTS)
    if not agreed:
        raise typer.Exit(code=1)
