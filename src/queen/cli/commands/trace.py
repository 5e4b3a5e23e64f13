"""`queen trace`: what consumers recorded about messages."""

from __future__ import annotations

from typing import Annotated

import typer

from queen.cli import options as cli
from queen.cli.connection import with_queen
from queen.cli.exits import NOT_FOUND, fail
from queen.cli.output import Output

trace = typer.Typer(help="Show what was recorded about messages.", no_args_is_help=True)

_EVENTS = (
    ("at", "created_at"),
    ("event", "event_type"),
    ("group", "consumer_group"),
    ("names", "trace_names"),
    ("data", "data"),
)
_NAMED = (
    ("at", "created_at"),
    ("event", "event_type"),
    ("queue", "queue_name"),
    ("partition", "partition_name"),
    ("transaction id", "transaction_id"),
    ("data", "data"),
)
_NAMES = (
    ("name", "trace_name"),
    ("traces", "trace_count"),
    ("messages", "message_count"),
    ("last seen", "last_seen"),
)

PartitionId = Annotated[str, typer.Argument(help="The message's partitionId, as pop shows it.")]
TransactionId = Annotated[str, typer.Argument(help="The message's transaction id.")]
TraceName = Annotated[str, typer.Argument(help="A name that traces were recorded under.")]


@trace.command()
def show(
    partition_id: PartitionId,
    transaction_id: TransactionId,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show the events of one message."""
    answer = with_queen(url, token, lambda queen: queen.admin.traces(partition_id, transaction_id))
    events = answer["traces"]
    if not events:
        fail(NOT_FOUND, "nothing was recorded about this message")
    Output(as_json).rows(events, _EVENTS)


@trace.command()
def name(
    trace_name: TraceName,
    limit: cli.Limit = 100,
    offset: cli.Skip = 0,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Follow a name through all queues."""
    answer = with_queen(
        url, token, lambda queen: queen.admin.traces_by_name(trace_name, limit=limit, offset=offset)
    )
    events = answer["traces"]
    if not events:
        fail(NOT_FOUND, f"no trace is named {trace_name}: `queen trace names` shows them")
    Output(as_json).rows(events, _NAMED)


@trace.command()
def names(
    limit: cli.Limit = 100,
    offset: cli.Skip = 0,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show the names there are."""
    answer = with_queen(
        url, token, lambda queen: queen.admin.trace_names(limit=limit, offset=offset)
    )
    Output(as_json).rows(answer["trace_names"], _NAMES)
