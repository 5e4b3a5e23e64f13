"""`queen`: every command in one place."""

from __future__ import annotations

import typer

from queen.cli.commands.bench import bench
from queen.cli.commands.dlq import dlq
from queen.cli.commands.groups import group, seek
from queen.cli.commands.pipelines import pipeline
from queen.cli.commands.push import push
from queen.cli.commands.queues import queue
from queen.cli.commands.read import pop, tail
from queen.cli.commands.replay import replay
from queen.cli.commands.spool import spool
from queen.cli.commands.status import status
from queen.cli.commands.streams import stream
from queen.cli.commands.token import token
from queen.cli.commands.trace import trace
from queen.cli.commands.windows import window
from queen.cli.demo import demo
from queen.cli.exits import EPILOG
from queen.cli.serve.serve import serve

app = typer.Typer(
    name="queen",
    help="A message broker and stream engine on PostgreSQL.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (serve, push, pop, tail, replay, seek, status, bench, demo):
    app.command()(command)
app.add_typer(queue, name="queue")
app.add_typer(group, name="group")
app.add_typer(pipeline, name="pipeline")
app.add_typer(dlq, name="dlq")
app.add_typer(stream, name="stream")
app.add_typer(window, name="window")
app.add_typer(spool, name="spool")
app.add_typer(trace, name="trace")
app.add_typer(token, name="token")


@app.callback(epilog=EPILOG)
def main() -> None:
    """Run a broker and talk to it.

    Commands that talk to one print tables on a terminal and NDJSON on a pipe.
    """
