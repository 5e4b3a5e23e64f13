"""What a push costs: durable, QoS 0, and in lists.

The numbers depend on the machine. What counts is how many transactions the messages share: each
durable push of one producer that waits for its answer is a commit.
"""

import asyncio
import statistics
import time
import uuid
from typing import Any

from queen import Queen

RUN = uuid.uuid4().hex[:8]
COUNT = 200
LIST = 100


async def measure(queen: Queen, queue: str, size: int, **how: Any) -> list[float]:
    """Push COUNT times so many messages, one request after the other; return how long each took."""
    took: list[float] = []
    for number in range(COUNT):
        items = [{"queue": queue, "payload": {"number": number}}] * size
        started = time.perf_counter()
        await queen.request("POST", "/api/v1/push", {"items": items, **how})
        took.append(time.perf_counter() - started)
    return took


async def wait_until_stored(queen: Queen, queue: str, count: int) -> None:
    while count > 0:
        count -= len(await queen.queue(queue).pop(batch=1000, wait_s=5, auto_ack=True))


async def main() -> None:
    async with Queen() as queen:
        print(f"{'':<24}{'p50, ms':>10}{'p99, ms':>10}{'messages a second':>20}")
        for name, size, how in (
            ("durable", 1, {}),
            ("QoS 0", 1, {"qos0": True}),
            (f"durable, lists of {LIST}", LIST, {}),
            (f"QoS 0, lists of {LIST}", LIST, {"qos0": True}),
        ):
            queue = f"cost-{RUN}-{size}-{len(how)}"
            took = await measure(queen, queue, size, **how)
            cuts = statistics.quantiles(took, n=100)
            rate = size * COUNT / sum(took)
            print(f"{name:<24}{cuts[49] * 1000:>10.2f}{cuts[98] * 1000:>10.2f}{rate:>20,.0f}")
            await wait_until_stored(queen, queue, size * COUNT)
        print("all of them are stored")


asyncio.run(main())
