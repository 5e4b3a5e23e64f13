"""`queen queue`: list, show, create, delete and clear."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from queen.cli import options as cli
from queen.cli.connection import with_queen
from queen.cli.exits import FAILED, NOT_FOUND, fail, say
from queen.cli.output import Output, draw, record_table, table_of
from queen.client import Queen

queue = typer.Typer(help="List, show, create, delete and clear queues.", no_args_is_help=True)

_COLUMNS = (
    ("queue", "name"),
    ("partitions", "partitions"),
    ("groups", "groups"),
    ("pending", "messages.pending"),
    ("processing", "messages.processing"),
    ("dead letters", "messages.deadLetter"),
    ("oldest, s", "lagSeconds"),
)
_PARTITIONS = (
    ("partition", "name"),
    ("messages", "messages.total"),
    ("pending", "messages.pending"),
    ("processing", "messages.processing"),
    ("dead letters", "messages.deadLetter"),
    ("newest", "newestMessage"),
)
_GROUPS = (
    ("group", "name"),
    ("pending", "pending"),
    ("processing", "processing"),
    ("partitions behind", "partitionsBehind"),
    ("dead letters", "deadLetter"),
    ("oldest, s", "lagSeconds"),
)

Namespace = Annotated[str | None, typer.Option(help="Its namespace.")]
Task = Annotated[str | None, typer.Option(help="Its task.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="name=value, as leaseTime=60; repeatable."),
]


@queue.command("list")
def list_queues(
    namespace: Namespace = None,
    task: Task = None,
    limit: cli.Limit = 1000,
    offset: cli.Skip = 0,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show the queues with their counts, newest first."""

    async def work(queen: Queen) -> Any:
        return await queen.admin.queues(namespace=namespace, task=task, limit=limit, offset=offset)

    Output(as_json).rows(with_queen(url, token, work)["queues"], _COLUMNS)


@queue.command()
def show(
    name: cli.QueueName,
    limit: cli.Limit = 100,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show one queue: its counts, its groups, its partitions."""

    async def work(queen: Queen) -> Any:
        return await queen.admin.queue(name, limit=limit)

    found, output = with_queen(url, token, work), Output(as_json)
    if not output.is_table:
        output.record(found)
        return
    parts = {"partitions", "groups", "pagination", "totals"}
    head = {key: value for key, value in found.items() if key not in parts}
    draw(
        record_table(head | found["totals"]),
        table_of(found["groups"], _GROUPS),
        table_of(found["partitions"], _PARTITIONS),
    )


@queue.command()
def create(
    name: cli.QueueName,
    namespace: Namespace = None,
    task: Task = None,
    option: Options = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Create a queue, or overwrite its options; those not given have their default."""
    options = dict(_option(text) for text in option or ())

    async def work(queen: Queen) -> dict[str, Any]:
        made = queen.queue(name).config(options)
        made = made if namespace is None else made.namespace(namespace)
        made = made if task is None else made.task(task)
        return await made.create()

    Output(as_json).record(with_queen(url, token, work))


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not name=value", param_hint="--option")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


@queue.command()
def delete(
    name: cli.QueueName,
    yes: cli.Yes = False,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Delete a queue with everything in it."""
    ask(yes, f"Delete {name} with all its messages?")

    async def work(queen: Queen) -> bool:
        return await queen.queue(name).delete()

    if not with_queen(url, token, work):
        fail(NOT_FOUND, f"there is no queue {name}: `queen queue list` shows what there is")
    if as_json:
        Output(True).record({"deleted": True, "queue": name})
    say(f"deleted {name}")


@queue.command()
def clear(
    name: cli.QueueName,
    partition: cli.OfPartition = None,
    yes: cli.Yes = False,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Delete the messages of a queue and keep the queue."""
    ask(yes, f"Delete all messages of {name}?")

    async def work(queen: Queen) -> Any:
        return await queen.admin.clear_queue(name, partition)

    Output(as_json).record(with_queen(url, token, work))


def ask(yes: bool, question: str) -> None:
    """Let a person think again; a script says --yes."""
    if yes:
        return
    typer.echo(f"{question} [y/N] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        fail(FAILED, "nothing was done: answer y, or give --yes")
