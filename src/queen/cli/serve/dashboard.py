"""`queen dashboard`: the pages alone, for a cluster whose servers do not show them."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from queen.cli.connection import urls_of
from queen.cli.exits import CONFIG, explain_errors
from queen.errors import QueenError, StartupError
from queen.extras import require

_Url = Annotated[
    list[str] | None,
    typer.Option("--url", help="A server; repeatable. Otherwise QUEEN_URL, or this machine's."),
]
_Host = Annotated[str, typer.Option(help="Address to listen on.")]
_Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")]
_Insecure = Annotated[
    bool,
    typer.Option(help="Listen beyond loopback, though servers without --auth trust whoever asks."),
]


def dashboard(
    url: _Url = None,
    host: _Host = "127.0.0.1",
    port: _Port = 6633,
    insecure: _Insecure = False,
) -> None:
    """Show the dashboard of servers that run elsewhere.

    Tokens pass through to the servers; this process keeps none.
    """
    with explain_errors():
        require("server", "the dashboard")
    from queen.cli.serve.processes import say
    from queen.server.auth.options import is_loopback
    from queen.server.dashboard_alone import serve_dashboard

    local = is_loopback(host)
    urls = [each for part in url or [""] for each in urls_of(part)]
    try:
        if not local and not insecure:
            raise StartupError(f"refusing to listen on {host}; say --insecure if that is meant")
        asyncio.run(
            serve_dashboard(
                urls,
                host,
                port,
                local_only=local and not insecure,
                ready=lambda: say(f"dashboard ready on http://{host}:{port}"),
            )
        )
    except (QueenError, ValueError) as error:
        typer.echo(f"queen: {error}", err=True)
        raise typer.Exit(CONFIG) from None
