"""`queen group` and `queen seek`: where consumer groups stand, and where they should."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from queen.cli import options as cli
from queen.cli.cells import as_age
from queen.cli.connection import with_queen
from queen.cli.exits import NOT_FOUND, confirm, fail, say
from queen.cli.output import Output, draw
from queen.cli.paging import read_pages, say_more
from queen.cli.tables import Column, table_lines
from queen.cli.times import parse_time
from queen.client import Queen

group = typer.Typer(
    help="List, show, pause, resume, share and delete groups.", no_args_is_help=True
)

_COLUMNS = (
    Column("group", "name"),
    Column("queue", "queueName"),
    Column("unread", "totalLag", "number"),
    Column("oldest", "maxTimeLag", "duration"),
    Column("state", "state"),
    Column("paused", "paused"),
    Column("shared", "shared"),
    Column("last used", "lastUsedAt", "age"),
    Column("consumers", "members", "number"),
    Column("partitions behind", "partitionsWithLag", "number"),
    Column("leases", "activeLeases", "number"),
)
_PARTITIONS = (
    Column("partition", "partition"),
    Column("unread", "offsetLag", "number"),
    Column("oldest", "timeLagSeconds", "duration"),
    Column("position", "position", "number"),
    Column("head", "head", "number"),
    Column("leased until", "leaseExpiresAt", "age"),
    Column("held by", "workerId"),
    Column("attempts", "attempts", "number"),
    Column("queue", "queue"),
)

_BREAKER = "its breaker has paused the group, because nearly everything failed,"

To = Annotated[str, typer.Option(help="beginning, end, or a time: ISO-8601, or 15m, 2h, 7d ago.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, change nothing.")]


@group.command("list")
def list_groups(
    limit: cli.AllOr = None,
    offset: cli.Skip = 0,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show the groups, one row for each queue they read."""

    async def work(queen: Queen) -> list[dict[str, Any]]:
        async def read(size: int, start: int) -> Any:
            return await queen.admin.groups(limit=size, offset=start)

        return await read_pages(read, limit, offset)

    rows = with_queen(url, token, work)
    Output(as_json).rows(rows, _COLUMNS)


@group.command()
def show(
    name: cli.GroupName,
    queue: cli.OfQueue = None,
    limit: cli.Limit = 1000,
    offset: cli.Skip = 0,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show where a group stands, partition by partition."""
    queues = with_queen(
        url, token, lambda queen: queen.admin.group(name, queue=queue, limit=limit, offset=offset)
    )
    output = Output(as_json)
    rows = [
        {"queue": queue_name, **partition}
        for queue_name, state in queues.items()
        for partition in state["partitions"]
    ]
    if output.is_table:
        # Of which queue they are matters when there are several.
        *others, queue_column = _PARTITIONS
        columns = (queue_column, *others) if len(queues) > 1 else _PARTITIONS
        draw(table_lines(rows, columns))
        for queue_name, state in queues.items():
            if state["breakerOpenSince"]:
                say(f"{queue_name}: {_BREAKER} for {as_age(state['breakerOpenSince'])}")
    else:
        output.lines({"queue": queue_name, **state} for queue_name, state in queues.items())
    if any(state["hasMore"] for state in queues.values()):
        say_more(limit)
    shared = [queue_name for queue_name, state in queues.items() if state.get("shared")]
    if shared:
        say(f"shared in {', '.join(shared)}: consumers hold messages of one partition at once")


@group.command()
def pause(
    name: cli.GroupName,
    queue: cli.OfQueue = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Give a group nothing until it is resumed."""
    _switch("pause", name, queue, url, token, as_json)


@group.command()
def resume(
    name: cli.GroupName,
    queue: cli.OfQueue = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Serve a paused group again."""
    _switch("resume", name, queue, url, token, as_json)


@group.command()
def share(
    name: cli.GroupName,
    queue: cli.OfQueue = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Let many consumers of a group work on one partition at once, in no order."""
    _switch("share", name, queue, url, token, as_json)


@group.command()
def order(
    name: cli.GroupName,
    queue: cli.OfQueue = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Let a group read each partition in order again."""
    _switch("order", name, queue, url, token, as_json)


def _switch(
    verb: str, name: str, queue: str | None, url: str | None, token: str | None, as_json: bool
) -> None:
    answer = with_queen(url, token, lambda queen: getattr(queen.admin, verb)(name, queue))
    Output(as_json).record(answer)


@group.command()
def delete(
    name: cli.GroupName,
    queue: cli.OfQueue = None,
    yes: cli.Yes = False,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Forget what a group has read; who comes by its name afterwards is a new group."""
    confirm(yes, f"Forget where the group {name} stands?")
    answer = with_queen(url, token, lambda queen: queen.admin.delete_group(name, queue))
    if not answer["existed"]:
        fail(NOT_FOUND, f"there is no group {name}: `queen group list` shows what there is")
    Output(as_json).record(answer)


def seek(
    queue: cli.QueueName,
    group: cli.GroupName,
    to: To,
    partition: cli.OfPartition = None,
    dry_run: DryRun = False,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Move a group in a queue; see with --dry-run first how many are read again."""
    target = to if to in ("beginning", "end") else parse_time("--to", to)
    answer = with_queen(
        url,
        token,
        lambda queen: queen.admin.seek(
            group, queue, to=target, partition=partition, dry_run=dry_run
        ),
    )
    Output(as_json).record(answer)
    again, skipped = answer["messagesAgain"], answer["messagesSkipped"]
    would = "would be" if dry_run else "are"
    say(f"{again:,} messages {would} read again, {skipped:,} {would} skipped")
