"""`queen trace`: what consumers recorded about messages."""

from __future__ import annotations

from typing import Annotated

import typer

from queen.cli import options as cli
from queen.cli.connection import with_queen
from queen.cli.exits import NOT_FOUND, fail, say
from queen.cli.output import Output
from queen.cli.tables import Column

trace = typer.Typer(help="Show what was recorded about messages.", no_args_is_help=True)

_EVENTS = (
    Column("at", "created_at", "age"),
    Column("event", "event_type"),
    Column("group", "consumer_group"),
    Column("names", "trace_names"),
    Column("data", "data"),
)
_NAMED = (
    Column("at", "created_at", "age"),
    Column("event", "event_type"),
    Column("queue", "queue_name"),
    Column("data", "data"),
    Column("partition", "partition_name"),
    Column("transaction id", "transaction_id"),
)
_NAMES = (
    Column("name", "trace_name"),
    Column("traces", "trace_count", "number"),
    Column("messages", "message_count", "number"),
    Column("last seen", "last_seen", "age"),
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
    _say_rest(offset + len(events), answer["total"])


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
    _say_rest(offset + len(answer["trace_names"]), answer["total"])


def _say_rest(seen: int, total: int) -> None:
    if seen < total:
        say(f"{total - seen:,} more: --limit and --offset show them")
