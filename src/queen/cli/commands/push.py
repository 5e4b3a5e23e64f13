"""`queen push`: messages from arguments, standard input or a file, at the speed of the client.

While a block is stored, the next one is read and checked. Blocks are sent one after the other,
so the order within a partition is that of the lines.
"""

from __future__ import annotations

import asyncio
import math
import sys
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated

import typer

from queen.cli import options as cli
from queen.cli.connection import with_queen
from queen.cli.exits import FAILED, USAGE, fail, say
from queen.cli.output import Advance, Output, progress
from queen.cli.pushing.sending import Sender
from queen.cli.pushing.sources import Arguments, Shape, Source, kind_of, source_of
from queen.client import Queen
from queen.core.columns.headers import reason_against_headers


class Format(StrEnum):
    NDJSON = "ndjson"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


Payloads = Annotated[list[str] | None, typer.Argument(metavar="[PAYLOAD]...", help="JSON values.")]
Partition = Annotated[str | None, typer.Option("--partition", "-p", help="The partition of all.")]
PartitionBy = Annotated[str | None, typer.Option(help="The field that names the partition.")]
IdBy = Annotated[
    str | None,
    typer.Option(help="The field that is the transaction id; pushed again, it is stored once."),
]
File = Annotated[Path | None, typer.Option("--file", "-f", help="Read this file.")]
Kind = Annotated[
    Format | None,
    typer.Option("--format", help="What the input is; by the file's ending unless given."),
]
Delay = Annotated[float | None, typer.Option(min=0, help="Deliver after so many seconds.")]
Header = Annotated[
    list[str] | None,
    typer.Option(
        "--header", "-H", metavar="NAME=VALUE", help="A header of all; as often as wanted."
    ),
]
Qos0 = Annotated[
    bool,
    typer.Option("--qos0", help="Let the server buffer them in its spool and answer at once."),
]
SpoolPath = Annotated[
    Path | None,
    typer.Option(
        help="Keep in this folder what no server can take now; the next push with it sends that."
    ),
]


def push(
    queue: cli.QueueName,
    payload: Payloads = None,
    partition: Partition = None,
    partition_by: PartitionBy = None,
    id_by: IdBy = None,
    file: File = None,
    kind: Kind = None,
    delay: Delay = None,
    header: Header = None,
    qos0: Qos0 = False,
    spool: SpoolPath = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Push messages: arguments, a file, or NDJSON from standard input.

    A line that cannot be stored is reported with its number; the others are stored.
    """
    if partition is not None and partition_by is not None:
        raise typer.BadParameter(
            "give one partition or a field that names it, not both", param_hint="--partition-by"
        )
    if delay is not None and not math.isfinite(delay):
        raise typer.BadParameter("it must be a finite number of seconds", param_hint="--delay")
    shape = Shape(partition, partition_by, id_by, delay, _headers_of(header or []))
    if payload:
        if file is not None:
            raise typer.BadParameter("give payloads or a file, not both", param_hint="--file")
        source: Source = Arguments(payload, shape)
    else:
        input_file, input_kind = _open_input(file, kind)
        source = source_of(input_file, input_kind, shape)

    async def work(queen: Queen) -> Sender:
        noun = "argument" if payload else "line"
        sender = Sender(queen, queue, noun, {"qos0": True} if qos0 else None)
        try:
            with progress(queue, source.total) as advance:
                await _push_all(source, sender, advance)
        finally:
            source.stop()
            say(sender.summary())
        return sender

    sender = with_queen(url, token, work, spool)
    if sender.buffered and spool is not None:
        say(f"queen: what no server has taken waits in {spool}; the next push with it sends that")
    if as_json:
        Output(True).record(sender.counts())
    if sender.failed:
        raise typer.Exit(FAILED)


def _headers_of(given: list[str]) -> dict[str, str]:
    """Return headers as they were given, each as `name=value`."""
    headers: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
        headers[name] = value
    reason = reason_against_headers(headers)
    if reason is not None:
        raise typer.BadParameter(reason, param_hint="--header")
    return headers


def _open_input(file: Path | None, kind: Format | None) -> tuple[IO[bytes], str]:
    """Return the input and what it is."""
    if file is None:
        if sys.stdin.isatty():
            fail(USAGE, "nothing to push: give payloads, --file, or NDJSON on standard input")
        if kind is Format.PARQUET:
            fail(USAGE, "Parquet cannot be read from a pipe: give it with --file")
        return sys.stdin.buffer, kind or "ndjson"
    try:
        return file.open("rb"), kind or kind_of(file)
    except OSError as error:
        fail(USAGE, f"cannot read {file}: {error.strerror}")


async def _push_all(source: Source, sender: Sender, advance: Advance) -> None:
    sending: asyncio.Task[None] | None = None
    blocks = source.blocks()
    while (block := await asyncio.to_thread(next, blocks, None)) is not None:
        if sending is not None:
            await sending
        for number, reason in block.bad:
            sender.reject(number, reason)
        sending = asyncio.create_task(sender.send(block.lines))
        advance(block.position, sender.stored)
    if sending is not None:
        await sending
