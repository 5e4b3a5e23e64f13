"""`queen`: every command in one place."""

from __future__ import annotations

from typing import Annotated

import typer

from queen import __version__
from queen.cli.commands.bench import bench
from queen.cli.commands.dlq import dlq
from queen.cli.commands.groups import group, seek
from queen.cli.commands.pipelines import pipeline
from queen.cli.commands.push import push
from queen.cli.commands.queues import queue
from queen.cli.commands.read import pop, tail
from queen.cli.commands.replay import replay
from queen.cli.commands.schedule import schedule
from queen.cli.commands.spool import spool
from queen.cli.commands.streams import stream
from queen.cli.commands.trace import trace
from queen.cli.commands.windows import window
from queen.cli.demo import demo
from queen.cli.exits import EPILOG
from queen.cli.operate.context import context
from queen.cli.operate.doctor import doctor
from queen.cli.operate.maintenance import maintenance
from queen.cli.operate.status import status
from queen.cli.operate.token import token
from queen.cli.serve.command import ServeCommand
from queen.cli.serve.dashboard import dashboard
from queen.cli.serve.serve import serve
from queen.cli.server_options import use_everywhere
from queen.cli.tasks.worker import worker

app = typer.Typer(
    name="queen",
    help="A message broker and stream engine on PostgreSQL.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help: the other one cuts the names of options where the terminal is narrow.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=ServeCommand)(serve)
for command in (dashboard, worker, push, pop, tail, replay, seek, status, doctor, bench, demo):
    app.command()(command)
for name, nouns in {
    "queue": queue,
    "group": group,
    "pipeline": pipeline,
    "dlq": dlq,
    "stream": stream,
    "window": window,
    "schedule": schedule,
    "spool": spool,
    "trace": trace,
    "token": token,
    "maintenance": maintenance,
    "context": context,
}.items():
    app.add_typer(nouns, name=name)
use_everywhere(app)


def _print_version(is_asked_for: bool) -> None:
    if is_asked_for:
        typer.echo(f"queen {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version."),
]


@app.callback(epilog=EPILOG)
def main(version: Version = False) -> None:
    """Run a broker and talk to it.

    Commands that talk to one print tables on a terminal and NDJSON on a pipe.
    """
