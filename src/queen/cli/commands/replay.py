"""`queen replay`: what is stored, printed, exported, or pushed into another queue."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from queen.cli import options as cli
from queen.cli.connection import queue_of, with_queen
from queen.cli.exits import FAILED, USAGE, fail, say
from queen.cli.message_rows import row_of_stored, show
from queen.cli.output import Output, ndjson_writer, progress
from queen.cli.pushing.sending import Sender
from queen.cli.pushing.sources import Line
from queen.cli.times import parse_optional
from queen.client import Queen
from queen.client.queues.replay import Stored

_BLOCK_MESSAGES = 5000
_SHOW_EVERY = 1000

To = Annotated[
    str | None,
    typer.Option(
        autocompletion=cli.queue_names, help="Push them into this queue, with the same ids."
    ),
]
OutputFile = Annotated[Path | None, typer.Option("--output", "-o", help="Write NDJSON here.")]

ReplayLimit = Annotated[int | None, typer.Option(min=1, help="End after so many messages.")]

Count = Callable[[Stored], None]


def replay(
    queue: cli.QueueName,
    since: cli.Since = None,
    until: cli.Until = None,
    partition: cli.OfPartition = None,
    to: To = None,
    output: OutputFile = None,
    limit: ReplayLimit = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Read stored messages again, without a group: nobody's place changes."""
    first, last = parse_optional("--since", since), parse_optional("--until", until)
    if first is not None and last is not None and first >= last:
        raise typer.BadParameter(
            "it is not after --since: nothing lies between", param_hint="--until"
        )
    if to is not None and (output is not None or to == queue):
        raise typer.BadParameter("name another queue, and no --output with it", param_hint="--to")
    file = None if output is None else _open_output(output)

    async def work(queen: Queen) -> int:
        source = queue_of(queen, queue, None, partition)
        reading: Any = source.replay(since=first, until=last)
        async with aclosing(reading) as stored:
            messages = stored if limit is None else _first(stored, limit)
            if to is not None:
                return await _push(messages, Sender(queen, to, "message"))
            if file is not None:
                return await _export(messages, file, str(output))
            return await _print(messages, Output(as_json))

    if with_queen(url, token, work):
        raise typer.Exit(FAILED)


def _open_output(path: Path) -> IO[bytes]:
    try:
        return path.open("wb")
    except OSError as error:
        fail(USAGE, f"cannot write {path}: {error.strerror}")


async def _first(messages: AsyncIterator[Stored], limit: int) -> AsyncIterator[Stored]:
    async for message in messages:
        yield message
        limit -= 1
        if not limit:
            return


async def _print(messages: AsyncIterator[Stored], output: Output) -> int:
    if not output.is_table:
        return await _write(messages, sys.stdout.buffer, lambda message: None)
    async for message in messages:
        show(output, row_of_stored(message, message.data))
    return 0


async def _write(messages: AsyncIterator[Stored], file: IO[bytes], count_message: Count) -> int:
    """Write NDJSON; none of it can fail."""
    write = ndjson_writer(file)
    async for message in messages:
        write(row_of_stored(message, message.data))
        count_message(message)
    file.flush()
    return 0


async def _export(messages: AsyncIterator[Stored], file: IO[bytes], name: str) -> int:
    count = 0
    with file, progress(name) as advance:

        def count_message(_: Stored) -> None:
            nonlocal count
            count += 1
            if count % _SHOW_EVERY == 0:
                advance(0, count)

        await _write(messages, file, count_message)
    say(f"{name}: {count:,} messages")
    return 0


async def _push(messages: AsyncIterator[Stored], sender: Sender) -> int:
    """Push into another queue; return how many could not be."""
    block: list[Line] = []
    number = 0
    try:
        with progress("replay") as advance:
            async for message in messages:
                number += 1
                block.append(Line(number, message))
                if len(block) >= _BLOCK_MESSAGES:
                    await sender.send(block)
                    block = []
                    advance(0, sender.stored)
            await sender.send(block)
    finally:
        say(sender.summary())
    return sender.failed
