"""`queen bench`: what this client and that server do together, in a queue of its own."""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any

import typer

from queen.cli import options as cli
from queen.cli.connection import with_queen
from queen.cli.exits import say
from queen.cli.output import Output, progress
from queen.client import Queen
from queen.client.queues.queue import Queue

_BUFFER = 5000
_AT_ONCE = 1000
_IDLE_S = 2.0

Seconds = Annotated[float, typer.Option(min=0.1, max=3600, help="How long to push.")]
Bytes = Annotated[int, typer.Option("--bytes", min=2, max=1_000_000, help="Payload size.")]
Partitions = Annotated[int, typer.Option(min=1, max=100_000, help="Partitions to spread over.")]
Batch = Annotated[int, typer.Option(min=1, max=10_000, help="Messages a consumer takes at once.")]
Consumers = Annotated[int, typer.Option(min=1, max=256, help="Consumers at the same time.")]


def bench(
    seconds: Seconds = 5,
    payload_bytes: Bytes = 100,
    partitions: Partitions = 100,
    batch: Batch = 100,
    consumers: Consumers = 4,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Push for some seconds, consume it all, print the rates, and leave nothing behind."""

    # A JSON text is two quotes longer.
    payload = "x" * (payload_bytes - 2)

    async def work(queen: Queen) -> dict[str, Any]:
        queue = queen.queue(f"bench-{uuid.uuid4().hex[:12]}")
        await queue.create()
        try:
            say(f"pushing into {queue.name} for {seconds:g} s")
            pushed, push_s = await _push(queen, queue, seconds, payload, partitions)
            taking = queue.batch(batch).partitions(10).concurrency(consumers).idle(_IDLE_S)
            say(f"consuming {pushed:,} messages")
            consumed, consume_s = await _consume(taking.limit(pushed))
        finally:
            await queue.delete()
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

    Output(as_json).record(with_queen(url, token, work))


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
