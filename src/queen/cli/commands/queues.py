"""`queen queue`: list, show, create, delete and clear."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from queen.cli import options as cli
from queen.cli.connection import with_queen
from queen.cli.exits import NOT_FOUND, confirm, fail, say
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
    answer = with_queen(
        url,
        token,
        lambda queen: queen.admin.queues(
            namespace=namespace, task=task, limit=limit, offset=offset
        ),
    )
    Output(as_json).rows(answer["queues"], _COLUMNS)


@queue.command()
def show(
    name: cli.QueueName,
    limit: cli.Limit = 100,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show one queue: its counts, its groups, its partitions."""
    state = with_queen(url, token, lambda queen: queen.admin.queue(name, limit=limit))
    output = Output(as_json)
    if not output.is_table:
        output.record(state)
        return
    parts = {"partitions", "groups", "pagination", "totals"}
    head = {key: value for key, value in state.items() if key not in parts}
    draw(
        record_table(head | state["totals"]),
        table_of(state["groups"], _GROUPS),
        table_of(state["partitions"], _PARTITIONS),
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
        new_queue = queen.queue(name).config(options)
        new_queue = new_queue if namespace is None else new_queue.namespace(namespace)
        new_queue = new_queue if task is None else new_queue.task(task)
        return await new_queue.create()

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
    confirm(yes, f"Delete {name} with all its messages?")
    if not with_queen(url, token, lambda queen: queen.queue(name).delete()):
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
    confirm(yes, f"Delete all messages of {name}?")
    answer = with_queen(url, token, lambda queen: queen.admin.clear_queue(name, partition))
    Output(as_json).record(answer)
