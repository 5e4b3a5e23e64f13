"""What gathering is worth: one by one, as lists, and buffered.

The numbers depend on the machine; the order of the three does not.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable

from queen import Queen

RUN = uuid.uuid4().hex[:8]


async def rate(count: int, work: Callable[[], Awaitable[None]]) -> float:
    started = time.monotonic()
    await work()
    return count / (time.monotonic() - started)


async def main() -> None:
    async with Queen() as queen:
        single, lists, buffered = (queen.queue(f"{kind}-{RUN}") for kind in ("single", "list", "b"))

        async def push_singly() -> None:
            for number in range(300):
                await single.push({"number": number})

        async def push_lists() -> None:
            for at in range(0, 10_000, 100):
                await lists.push([{"number": at + number} for number in range(100)])

        async def push_buffered() -> None:
            gathered = buffered.buffer(max_messages=1000)
            for number in range(20_000):
                await gathered.push({"number": number})
            await queen.flush()

        rates = {
            "one by one": await rate(300, push_singly),
            "lists of 100": await rate(10_000, push_lists),
            "buffered": await rate(20_000, push_buffered),
        }
        for how, per_second in rates.items():
            print(f"{how:<14}{per_second:>10,.0f} messages a second")
        print(f"buffered is quicker than one by one: {rates['buffered'] > rates['one by one']}")


asyncio.run(main())
