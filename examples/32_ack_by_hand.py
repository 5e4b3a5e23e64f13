"""Take windows by hand: ack, nack, renew, and what happens to whoever is too late.

`process` does all of this by itself. `poll_window` leases one window and leaves the rest to you:
say what became of it before the lease ends, or prolong the lease. An ack after its end is
refused, because by then somebody else may be at work on the window.
"""

import asyncio
import uuid

from queen import Queen, Window
from queen.errors import LeaseLost

RUN = uuid.uuid4().hex[:8]
JOBS = f"jobs-{RUN}"


async def main() -> None:
    async with Queen() as queen:
        stream = queen.stream(f"jobs-stream-{RUN}").sources(JOBS).tumbling_time(0.5)
        await stream.grace_period(0).lease_timeout(1).retry_delay(0.1).define()
        await queen.queue(JOBS).push([{"job": n} for n in range(3)])
        consumer = queen.consumer(stream.name, "workers")

        async def next_window() -> Window:
            window = await consumer.poll_window(10)
            assert window is not None
            return window

        window = await next_window()
        await window.nack("the printer is out of paper")
        window = await next_window()
        print(f"after a nack: attempt {window.attempt} of the same {window.count} messages")

        late = window
        await asyncio.sleep(1.1)  # longer than the lease
        window = await next_window()
        try:
            await late.ack()
        except LeaseLost:
            print(f"too late to ack: it is attempt {window.attempt} of somebody else")

        await window.renew(60_000)
        await asyncio.sleep(1.1)
        await window.ack()
        print(f"renewed, so in time: settled {window.is_settled}")

        # For longer work than one renewal: the lease is kept for as long as the block lasts.
        await queen.queue(JOBS).push({"job": "long"})
        window = await next_window()
        async with window.kept_alive():
            await asyncio.sleep(1.5)
        await window.ack()
        print(f"kept alive for longer than its lease: lost {window.is_lost}")
        await stream.delete()


asyncio.run(main())
