"""`queen`: every command in one place."""

from __future__ import annotations

import typer

from queen.cli.demo import demo
from queen.cli.serve import serve
from queen.cli.token import token

app = typer.Typer(
    name="queen",
    help="A message broker and stream engine on PostgreSQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(demo)
app.add_typer(token, name="token")


@app.callback()
def main() -> None:
    """Run a broker and talk to it."""
