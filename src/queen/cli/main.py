"""`queen`: every command in one place."""

from __future__ import annotations

import typer

from queen.cli.bench import bench
from queen.cli.demo import demo
from queen.cli.dlq import dlq
from queen.cli.exits import EPILOG
from queen.cli.groups import group, seek
from queen.cli.pipelines import pipeline
from queen.cli.push import push
from queen.cli.queues import queue
from queen.cli.read import pop, tail
from queen.cli.replay import replay
from queen.cli.serve import serve
from queen.cli.status import status
from queen.cli.streams import stream
from queen.cli.token import token
from queen.cli.trace import trace
from queen.cli.windows import window

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
app.add_typer(trace, name="trace")
app.add_typer(token, name="token")


@app.callback(epilog=EPILOG)
def main() -> None:
    """Run a broker and talk to it.

    Commands that talk to one print tables on a terminal and NDJSON on a pipe.
    """
