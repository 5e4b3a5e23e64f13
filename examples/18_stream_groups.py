"""Several groups, each with every window, and several workers that share them.

Groups know nothing of each other: analytics and the archive both get all windows, each at its
own pace. Within a group a window goes to one worker, and the windows of one key go out one after
the other, so that the order of a key holds however many workers there are.
"""

import asyncio
import uuid
from collections import Counter

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
EVENTS = f"events-{RUN}"
KEYS = [f"customer-{number}" for number in range(8)]


async def main() -> None:
    async with Queen() as queen:
        stream = queen.stream(f"events-stream-{RUN}").sources(EVENTS).partitioned()
        await stream.tumbling_time(0.5).grace_period(0).define()
        for key in KEYS:
            await queen.queue(EVENTS).partition(key).push([{"event": n} for n in range(5)])

        # Two groups: both get the messages of all eight customers.
        read: Counter[str] = Counter()

        async def count(window: Window) -> None:
            read[window.consumer_group] += window.count

        await asyncio.gather(
            queen.consumer(stream.name, "analytics").limit(8).process(count),
            queen.consumer(stream.name, "archive").limit(8).process(count),
        )
        print(f"groups: {dict(sorted(read.items()))}")

        # Two workers of one group: together they get each window once.
        keys: list[str] = []

        async def work(window: Window) -> None:
            keys.append(window.key)
            await asyncio.sleep(0.05)

        workers = queen.consumer(stream.name, "workers").limit(4)
        first, second = await asyncio.gather(
            workers.named("worker-1").process(work),
            workers.named("worker-2").process(work),
        )
        print(f"workers: {first.handled} and {second.handled} windows")
        print(f"each customer once: {sorted(keys) == KEYS}")
        await stream.delete()


asyncio.run(main())
