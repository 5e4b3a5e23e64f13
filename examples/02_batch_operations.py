"""Many messages at once: push a list, consume in batches.

A list is one request. Large ones are sent as whole segments, which is smaller on the wire and
quicker on the server; nothing else changes.
"""

import asyncio
import time
import uuid

from queen import Queen, Received

READINGS = f"readings-{uuid.uuid4().hex[:8]}"
COUNT = 2000


async def main() -> None:
    async with Queen() as queen:
        readings = queen.queue(READINGS)
        started = time.monotonic()
        pushed = await readings.push([{"reading": number} for number in range(COUNT)])
        print(f"pushed {len(pushed)} messages with one call in {_ms(started)} ms")

        sizes: list[int] = []

        def handle(batch: list[Received]) -> None:
            # With a batch of more than one, the handler gets a list. All of it is acked when
            # the handler returns and none of it when it raises.
            sizes.append(len(batch))

        started = time.monotonic()
        consumer = await readings.group("statistics").batch(500).limit(COUNT).consume(handle)
        print(f"handled {consumer.handled} messages in {len(sizes)} batches in {_ms(started)} ms")

        total = 0

        async def add(message: Received) -> None:
            # With each() it gets one at a time, and each has its own outcome.
            nonlocal total
            total += message.data["reading"]

        await readings.group("sums").batch(500).each().limit(COUNT).consume(add)
        print(f"one by one they add up to {total}")


def _ms(started: float) -> int:
    return round((time.monotonic() - started) * 1000)


asyncio.run(main())
