"""`queen bench`: what this client and that server do together, in a queue of its own."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from queen.cli import options as cli
from queen.cli.commands.latency import follow, show_latency
from queen.cli.connection import with_queen
from queen.cli.exits import say
from queen.cli.output import Output, progress
from queen.client import Queen
from queen.client.queues.queue import Queue
from queen.errors import QueenError

_BUFFER = 5000
_AT_ONCE = 1000
_IDLE_S = 2.0
# After Ctrl-C, the queue is looked for until it was not there so many times in a row.
_LOOKS = 3
_LOOK_AGAIN_S = 0.1
_TIDY_S = 30.0

Seconds = Annotated[float, typer.Option(min=0.1, max=3600, help="How long to push.")]
Bytes = Annotated[int, typer.Option("--bytes", min=2, max=1_000_000, help="Payload size.")]
Partitions = Annotated[int, typer.Option(min=1, max=100_000, help="Partitions to spread over.")]
Batch = Annotated[int, typer.Option(min=1, max=10_000, help="Messages a consumer takes at once.")]
Consumers = Annotated[int, typer.Option(min=1, max=256, help="Consumers at the same time.")]
Latency = Annotated[
    bool, typer.Option("--latency", help="Push one by one, and say what each step of it takes.")
]
Messages = Annotated[int, typer.Option(min=1, max=100_000, help="With --latency: how many.")]


def bench(
    seconds: Seconds = 5,
    payload_bytes: Bytes = 100,
    partitions: Partitions = 100,
    batch: Batch = 100,
    consumers: Consumers = 4,
    latency: Latency = False,
    messages: Messages = 300,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Push for some seconds, consume it all, print the rates, and leave nothing behind."""

    # A JSON text is two quotes longer.
    payload = "x" * (payload_bytes - 2)

    async def work_one_by_one(queen: Queen) -> list[dict[str, Any]]:
        async with _own_queue(queen) as queue:
            return await follow(queen, queue, messages, payload)

    async def work(queen: Queen) -> dict[str, Any]:
        async with _own_queue(queen) as queue:
            say(f"pushing into {queue.name} for {seconds:g} s")
            pushed, push_s = await _push(queen, queue, seconds, payload, partitions)
            taking = queue.batch(batch).partitions(10).concurrency(consumers).idle(_IDLE_S)
            say(f"consuming {pushed:,} messages")
            consumed, consume_s = await _consume(taking.limit(pushed))
        return {
            "pushed": pushed,
            "pushPerSecond": round(pushed / push_s),
            "consumed": consumed,
            "consumePerSecond": round(consumed / consume_s),
            "payloadBytes": payload_bytes,
            "partitions": partitions,
            "consumers": consumers,
            "batch": batch,
        }

    if latency:
        show_latency(Output(as_json), with_queen(url, token, work_one_by_one))
        return
    Output(as_json).record(with_queen(url, token, work))


@asynccontextmanager
async def _own_queue(queen: Queen) -> AsyncIterator[Queue]:
    """A queue that is gone afterwards, also when Ctrl-C is pressed."""
    queue = queen.queue(f"bench-{uuid.uuid4().hex[:12]}")
    try:
        await queue.create()
        yield queue
    except BaseException:
        await _delete_while_pushes_end(queen, queue)
        raise
    await queue.delete()


async def _delete_while_pushes_end(queen: Queen, queue: Queue) -> None:
    """Delete a queue into which there are pushes on their way, each of which makes it again."""
    looks = 0
    try:
        async with asyncio.timeout(_TIDY_S):
            await queen.flush()
            while looks < _LOOKS:
                looks = 0 if await queue.delete() else looks + 1
                await asyncio.sleep(_LOOK_AGAIN_S)
    except (QueenError, TimeoutError) as error:
        reason = error.message if isinstance(error, QueenError) else "the server is too slow"
        say(f"queen: the queue {queue.name} may stay: {reason}")


async def _push(
    queen: Queen, queue: Queue, seconds: float, payload: str, partitions: int
) -> tuple[int, float]:
    """Push until the time is over; return how many, and how long it took to store them."""
    buffers = [queue.partition(f"p{number}").buffer(_BUFFER) for number in range(partitions)]
    per_partition = max(1, _AT_ONCE // partitions)
    pushed, started = 0, time.monotonic()
    with progress("push", seconds) as advance:
        while (now := time.monotonic()) < started + seconds:
            for buffer in buffers:
                await buffer.push([payload] * per_partition)
            pushed += per_partition * partitions
            advance(now - started, pushed)
        await queen.flush()
    return pushed, time.monotonic() - started


async def _consume(queue: Queue) -> tuple[int, float]:
    """Consume all there is; return how many, and how long it took until the last."""
    started = last = time.monotonic()
    count = 0
    with progress("consume") as advance:

        async def count_messages(messages: Any) -> None:
            nonlocal count, last
            count += len(messages) if isinstance(messages, list) else 1
            last = time.monotonic()
            advance(0, count)

        await queue.consume(count_messages)
    return count, max(last - started, 0.001)
