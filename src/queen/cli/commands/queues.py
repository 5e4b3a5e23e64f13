"""`queen queue`: list, show, create, alter, delete and clear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from queen.cli import options as cli
from queen.cli.cells import cell
from queen.cli.complete import option_names, unset_names
from queen.cli.connection import with_queen
from queen.cli.exits import NOT_FOUND, confirm, fail, say
from queen.cli.output import Output, draw
from queen.cli.paging import read_pages
from queen.cli.tables import Column, record_lines, table_lines
from queen.client import Queen

queue = typer.Typer(
    help="List, show, create, alter, delete and clear queues.", no_args_is_help=True
)

_COLUMNS = (
    Column("queue", "name"),
    Column("pending", "messages.pending", "number"),
    Column("processing", "messages.processing", "number"),
    Column("oldest", "lagSeconds", "duration"),
    Column("dead letters", "messages.deadLetter", "number"),
    Column("partitions", "partitions", "number"),
    Column("groups", "groups", "number"),
    Column("stored", "storedBytes", "bytes"),
    Column("namespace", "namespace"),
    Column("task", "task"),
)
_OPTIONS = (
    Column("option", "name"),
    Column("value", "value"),
    Column("default", "default"),
    Column("origin", "origin"),
    Column("meaning", "meaning"),
)
_PARTITIONS = (
    Column("partition", "name"),
    Column("messages", "messages.total", "number"),
    Column("pending", "messages.pending", "number"),
    Column("processing", "messages.processing", "number"),
    Column("dead letters", "messages.deadLetter", "number"),
    Column("newest", "newestMessage", "age"),
)
_GROUPS = (
    Column("group", "name"),
    Column("pending", "pending", "number"),
    Column("processing", "processing", "number"),
    Column("partitions behind", "partitionsBehind", "number"),
    Column("dead letters", "deadLetter", "number"),
    Column("oldest", "lagSeconds", "duration"),
)

Namespace = Annotated[str | None, typer.Option(help="Its namespace.")]
Task = Annotated[str | None, typer.Option(help="Its task.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        autocompletion=option_names,
        help="name=value, as leaseTime=60; repeatable.",
    ),
]


AlteredNamespace = Annotated[
    str | None, typer.Option("--namespace", help="Its namespace from now on; '' takes it off.")
]
AlteredTask = Annotated[
    str | None, typer.Option("--task", help="Its task from now on; '' takes it off.")
]
Unset = Annotated[
    list[str] | None,
    typer.Option(
        "--unset",
        "-u",
        autocompletion=unset_names,
        help="An option that goes back to its default; repeatable.",
    ),
]
Encryption = Annotated[
    bool | None,
    typer.Option("--encryption/--no-encryption", help="Store what is pushed encrypted, or not."),
]


@queue.command("list")
def list_queues(
    namespace: Namespace = None,
    task: Task = None,
    limit: cli.AllOr = None,
    offset: cli.Skip = 0,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show the queues with their counts, newest first."""

    async def work(queen: Queen) -> list[dict[str, Any]]:
        async def read(size: int, start: int) -> list[dict[str, Any]]:
            answer = await queen.admin.queues(
                namespace=namespace, task=task, limit=size, offset=start
            )
            return [_row(each) for each in answer["queues"]]

        return await read_pages(read, limit, offset)

    Output(as_json).rows(with_queen(url, token, work), _COLUMNS)


def _row(queue: dict[str, Any]) -> dict[str, Any]:
    """Return a queue as it is listed. How long a message has waited is counted for groups only:
    where nobody reads, that is not known."""
    is_known = queue["groups"] or not queue["messages"]["pending"]
    return queue if is_known else {**queue, "lagSeconds": None}


@queue.command()
def show(
    name: cli.QueueName,
    limit: cli.Limit = 100,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show one queue: its counts, all its options, its groups, its partitions."""
    state = with_queen(url, token, lambda queen: queen.admin.queue(name, limit=limit))
    output = Output(as_json)
    if not output.is_table:
        output.record(state)
        return
    parts = {"partitions", "groups", "options", "pagination", "totals"}
    head = {key: value for key, value in state.items() if key not in parts}
    draw(
        record_lines(head | state["totals"]),
        table_lines(state["options"], _OPTIONS),
        table_lines(state["groups"], _GROUPS),
        table_lines(state["partitions"], _PARTITIONS),
    )
    total = state["pagination"]["total"]
    if len(state["partitions"]) < total:
        say(f"{len(state['partitions']):,} of {total:,} partitions; --limit shows more")


@queue.command()
def create(
    name: cli.QueueName,
    namespace: Namespace = None,
    task: Task = None,
    option: Options = None,
    encryption: Encryption = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Create a queue. One that exists is changed in what is named here, and in nothing else."""
    change = _change_of(namespace, task, option, (), encryption, create=True)
    _print_change(
        name, with_queen(url, token, lambda queen: queen.admin.alter_queue(name, **change)), as_json
    )


@queue.command()
def alter(
    name: cli.QueueName,
    namespace: AlteredNamespace = None,
    task: AlteredTask = None,
    option: Options = None,
    unset: Unset = None,
    encryption: Encryption = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Change some options of a queue; whatever is not named stays as it is."""
    change = _change_of(namespace, task, option, unset or (), encryption, create=False)
    if not change["options"] and namespace is None and task is None:
        raise typer.BadParameter("name what to change: --option, --unset, --namespace, …")
    _print_change(
        name, with_queen(url, token, lambda queen: queen.admin.alter_queue(name, **change)), as_json
    )


def _change_of(
    namespace: str | None,
    task: str | None,
    option: Sequence[str] | None,
    unset: Sequence[str],
    encryption: bool | None,
    *,
    create: bool,
) -> dict[str, Any]:
    if "encryptionEnabled" in unset:
        raise typer.BadParameter("say --no-encryption to take encryption off", param_hint="--unset")
    given = [_option(text) for text in option or ()]
    given += [(name, None) for name in dict.fromkeys(unset)]
    if encryption is not None:
        given.append(("encryptionEnabled", encryption))
    options: dict[str, Any] = {}
    for name, value in given:
        if name in options:
            raise typer.BadParameter(f"{name} is named twice: which one is meant?")
        options[name] = value
    return {"namespace": namespace, "task": task, "options": options, "create": create}


def _print_change(name: str, answer: dict[str, Any], as_json: bool) -> None:
    output = Output(as_json)
    if not output.is_table:
        output.record(answer)
    if answer["created"]:
        say(f"created {name}")
    elif not answer["changed"]:
        say(f"{name} is so already; nothing was changed")
    for changed in answer["changed"]:
        say(f"{name}: {changed['name']} was {cell(changed['before'])}, is {cell(changed['now'])}")


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
