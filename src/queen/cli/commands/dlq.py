"""`queen dlq`: what groups have given up on, and why."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from queen.cli import options as cli
from queen.cli.connection import check_is_there, with_queen
from queen.cli.exits import NOT_FOUND, confirm, fail, say
from queen.cli.output import Output
from queen.cli.tables import Column
from queen.cli.times import parse_time
from queen.client import Queen
from queen.client.queues.dead_letters import DeadLetterQuery

dlq = typer.Typer(help="Look at dead letters, retry or purge them.", no_args_is_help=True)

_COLUMNS = (
    Column("failed", "failedAt", "age"),
    Column("id", "id"),
    Column("queue", "queue"),
    Column("error", "errorMessage"),
    Column("group", "consumerGroup"),
    Column("attempts", "retryCount", "number"),
    Column("partition", "partition"),
    Column("transaction id", "transactionId"),
    Column("data", "data"),
)
_ERRORS = (
    Column("count", "count", "number"),
    Column("queue", "queue"),
    Column("error", "error"),
    Column("group", "consumerGroup"),
    Column("first", "firstFailedAt", "age"),
    Column("last", "lastFailedAt", "age"),
)

Ids = Annotated[
    list[str] | None,
    typer.Option("--id", help="The letter of this id, as `dlq list` shows it; repeatable."),
]
Error = Annotated[str | None, typer.Option(help="Only those that died of exactly this.")]


def _letters_of(
    queen: Queen,
    queue: str | None,
    group: str | None,
    partition: str | None,
    error: str | None,
    since: str | None,
) -> DeadLetterQuery:
    if queue is None and partition is not None:
        raise typer.BadParameter("a partition is one of a queue: name that", param_hint="QUEUE")
    letters = DeadLetterQuery(queen, queue, partition, group)
    letters = letters if error is None else letters.error(error)
    return letters if since is None else letters.since(parse_time("--since", since))


async def _check_queue(queen: Queen, queue: str | None, count: int) -> None:
    """Raise `NotFound` when nothing was found because there is no such queue: letters go with it,
    so whoever named it has mistyped it."""
    if queue is not None and not count:
        await check_is_there(queen, queue)


@dlq.command("list")
def list_letters(
    queue: cli.AnyQueue = None,
    group: cli.OfGroup = None,
    partition: cli.OfPartition = None,
    error: Error = None,
    since: cli.Since = None,
    limit: cli.Limit = 100,
    offset: cli.Skip = 0,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show the latest dead letters, of one queue or of all."""

    async def work(queen: Queen) -> tuple[list[dict[str, Any]], int]:
        letters = _letters_of(queen, queue, group, partition, error, since)
        page = await letters.limit(limit).offset(offset).get()
        await _check_queue(queen, queue, page.total)
        return [msgspec.to_builtins(letter) for letter in page.messages], page.total

    rows, total = with_queen(url, token, work)
    Output(as_json).rows(rows, _COLUMNS)
    if len(rows) < total:
        say(f"{len(rows):,} of {total:,}; --limit and --offset show others")


@dlq.command()
def errors(
    queue: cli.AnyQueue = None,
    group: cli.OfGroup = None,
    partition: cli.OfPartition = None,
    since: cli.Since = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show how many died of what, in one queue or in all."""

    async def work(queen: Queen) -> list[dict[str, Any]]:
        rows = await _letters_of(queen, queue, group, partition, None, since).errors()
        await _check_queue(queen, queue, len(rows))
        return rows

    Output(as_json).rows(with_queen(url, token, work), _ERRORS)


@dlq.command()
def retry(
    queue: cli.AnyQueue = None,
    ids: Ids = None,
    group: cli.OfGroup = None,
    partition: cli.OfPartition = None,
    error: Error = None,
    since: cli.Since = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Deliver dead letters again, to the group that gave them up: those of a queue, or some by
    their ids."""
    if queue is None and not ids:
        raise typer.BadParameter("name a queue, or letters with --id")
    if ids and any(given is not None for given in (group, partition, error, since)):
        raise typer.BadParameter("an id names one letter: no other filter goes with it")

    async def work(queen: Queen) -> int:
        letters = _letters_of(queen, queue, group, partition, error, since)
        if ids:
            return await letters.retry_ids(ids)
        count = await letters.retry()
        await _check_queue(queen, queue, count)
        return count

    retried = with_queen(url, token, work)
    Output(as_json).record({"queue": queue, "ids": ids, "retried": retried})
    if ids and retried < len(set(ids)):
        fail(NOT_FOUND, f"{len(set(ids)) - retried} of them are no dead letters (any more)")


@dlq.command()
def purge(
    queue: cli.QueueName,
    group: cli.OfGroup = None,
    partition: cli.OfPartition = None,
    error: Error = None,
    since: cli.Since = None,
    yes: cli.Yes = False,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Remove dead letters for good."""
    confirm(yes, f"Remove dead letters of {queue} for good?")

    async def work(queen: Queen) -> int:
        count = await _letters_of(queen, queue, group, partition, error, since).purge()
        await _check_queue(queen, queue, count)
        return count

    Output(as_json).record({"queue": queue, "purged": with_queen(url, token, work)})
