"""`queen pop` and `queen tail`: messages as a consumer gets them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

import typer

from queen.cli import options as cli
from queen.cli.connection import check_is_there, queue_of, with_queen
from queen.cli.exits import say, until_interrupted
from queen.cli.following import FORGET_S, Ack, From, parse_start
from queen.cli.message_rows import row_of, show
from queen.cli.output import Output
from queen.cli.tables import Column
from queen.client import Queen
from queen.client.queues.queue import Queue
from queen.errors import LeaseLost, QueenError

_COLUMNS = (
    Column("partition", "partition"),
    Column("offset", "offset", "number"),
    Column("data", "data"),
    Column("created", "createdAt", "age"),
    Column("transaction id", "transactionId"),
)
_HEADERS = Column("headers", "headers")
# How much `tail` takes at once, and from how many partitions.
_TAIL_BATCH = 100
_TAIL_PARTITIONS = 10
_TAIL_WAIT_S = 30.0

Batch = Annotated[int, typer.Option("--batch", "-n", min=1, max=10_000, help="At most so many.")]
Wait = Annotated[float, typer.Option(min=0, help="Wait so many seconds for the first one.")]
Shared = Annotated[
    bool | None,
    typer.Option(
        "--shared/--ordered",
        help="Let the group be shared, or read in order; otherwise it stays as it is.",
    ),
]
TailLimit = Annotated[int | None, typer.Option(min=1, help="End after so many messages.")]


def pop(
    queue: cli.QueueName,
    group: cli.OfGroup = None,
    partition: cli.OfPartition = None,
    batch: Batch = 1,
    wait: Wait = 0,
    ack: Ack = True,
    shared: Shared = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Take the next messages. With --no-ack they come again when their lease ends."""
    output = Output(as_json)

    async def work(queen: Queen) -> None:
        consumer = queue_of(queen, queue, group, partition)
        if shared is not None:
            consumer = consumer.shared(shared)
        if not wait:
            await check_is_there(queen, queue)
        messages = await consumer.pop(wait_s=wait, batch=batch)
        if not messages:
            # One that somebody makes while we wait is worth waiting for; none at all is a mistake.
            await check_is_there(queen, queue)
        rows = [row_of(message, with_lease=not ack) for message in messages]
        has_headers = any("headers" in row for row in rows)
        output.rows(rows, (*_COLUMNS, _HEADERS) if has_headers else _COLUMNS)
        # Acked only now: what could not be printed comes again.
        if ack and messages:
            await queen.ack(messages)

    with_queen(url, token, work)


def tail(
    queue: cli.QueueName,
    group: cli.OfGroup = None,
    start: From = None,
    limit: TailLimit = None,
    partition: cli.OfPartition = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Follow a queue until Ctrl-C.

    With --group the messages are that group's, and done once printed. Without, a group is made
    for this and deleted at the end: nobody else misses anything.
    """
    begin, output = parse_start(group, start, "queen seek"), Output(as_json)

    async def work(queen: Queen) -> None:
        await check_is_there(queen, queue)
        consumer = queue_of(queen, queue, begin.group, partition).partitions(_TAIL_PARTITIONS)
        try:
            await _follow(queen, begin.apply_to(consumer), limit, output)
        finally:
            if begin.is_own_group:
                await _forget(queen, queue, begin.group)

    with until_interrupted():
        with_queen(url, token, work)


async def _forget(queen: Queen, queue: str, group: str) -> None:
    """Delete the group that was made for this, unless the server is away: whoever has pressed
    Ctrl-C does not wait for it."""
    try:
        async with asyncio.timeout(FORGET_S):
            await queen.admin.delete_group(group, queue)
    except (QueenError, TimeoutError) as error:
        reason = error.message if isinstance(error, QueenError) else "no server answers"
        say(f"queen: the group {group} stays until the server forgets it: {reason}")


async def _follow(queen: Queen, queue: Queue, limit: int | None, output: Output) -> None:
    """Print what comes, and ack it then: what could not be printed comes again."""
    wait_s, left = 0.0, limit
    while left != 0:
        size = _TAIL_BATCH if left is None else min(left, _TAIL_BATCH)
        messages = await queue.pop(wait_s=wait_s, batch=size)
        if not wait_s:
            # The group exists from here on: whatever is pushed now is seen.
            say(f"following {queue.name}; Ctrl-C ends it")
            wait_s = _TAIL_WAIT_S
        for message in messages:
            show(output, row_of(message))
        # Somebody has read so slowly that the lease is over: they come again.
        with contextlib.suppress(LeaseLost):
            await queen.ack(messages)
        left = None if left is None else left - len(messages)
