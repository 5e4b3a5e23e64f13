"""`queen dlq`: what groups have given up on, and why."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from queen.cli import options as cli
from queen.cli.connection import queue_of, with_queen
from queen.cli.exits import confirm, say
from queen.cli.output import Output
from queen.cli.times import parse_time
from queen.client import Queen
from queen.client.queues.dead_letters import DeadLetterQuery

dlq = typer.Typer(help="Look at dead letters, retry or purge them.", no_args_is_help=True)

_COLUMNS = (
    ("failed", "failedAt"),
    ("group", "consumerGroup"),
    ("partition", "partition"),
    ("transaction id", "transactionId"),
    ("attempts", "retryCount"),
    ("error", "errorMessage"),
    ("data", "data"),
)
_ERRORS = (
    ("count", "count"),
    ("group", "consumerGroup"),
    ("error", "error"),
    ("first", "firstFailedAt"),
    ("last", "lastFailedAt"),
)

Error = Annotated[str | None, typer.Option(help="Only those that died of exactly this.")]


def _letters_of(
    queen: Queen,
    queue: str,
    group: str | None,
    partition: str | None,
    error: str | None,
    since: str | None,
) -> DeadLetterQuery:
    letters = queue_of(queen, queue, group, partition).dlq()
    letters = letters if error is None else letters.error(error)
    return letters if since is None else letters.since(parse_time("--since", since))


@dlq.command("list")
def list_letters(
    queue: cli.QueueName,
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
    """Show the latest dead letters."""

    async def work(queen: Queen) -> tuple[list[dict[str, Any]], int]:
        letters = _letters_of(queen, queue, group, partition, error, since)
        page = await letters.limit(limit).offset(offset).get()
        return [msgspec.to_builtins(letter) for letter in page.messages], page.total

    rows, total = with_queen(url, token, work)
    Output(as_json).rows(rows, _COLUMNS)
    if len(rows) < total:
        say(f"{len(rows):,} of {total:,}; --limit and --offset show others")


@dlq.command()
def errors(
    queue: cli.QueueName,
    group: cli.OfGroup = None,
    partition: cli.OfPartition = None,
    since: cli.Since = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show how many died of what."""
    rows = with_queen(
        url, token, lambda queen: _letters_of(queen, queue, group, partition, None, since).errors()
    )
    Output(as_json).rows(rows, _ERRORS)


@dlq.command()
def retry(
    queue: cli.QueueName,
    group: cli.OfGroup = None,
    partition: cli.OfPartition = None,
    error: Error = None,
    since: cli.Since = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Deliver dead letters again, to the group that gave them up."""
    retried = with_queen(
        url, token, lambda queen: _letters_of(queen, queue, group, partition, error, since).retry()
    )
    Output(as_json).record({"queue": queue, "retried": retried})


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
    purged = with_queen(
        url, token, lambda queen: _letters_of(queen, queue, group, partition, error, since).purge()
    )
    Output(as_json).record({"queue": queue, "purged": purged})
