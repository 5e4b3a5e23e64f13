"""See what a consumer does, how far groups are, and why a window is not there.

A consumer counts by itself and tells what you ask it to. The broker knows the rest: which
windows wait for a group, who holds them, how far behind it is; `explain` says in words why
nothing comes.
"""

import asyncio
import time
import uuid
from collections import Counter

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
EVENTS = f"events-{RUN}"


async def main() -> None:
    async with Queen() as queen:
        stream = queen.stream(f"watched-{RUN}").sources(EVENTS).partitioned().tumbling_time(0.5)
        await stream.grace_period(0).retry_delay(0.1).define()
        print(f"before anything was pushed: {(await stream.explain())['why']}")
        for key in ("a", "b", "c"):
            await queen.queue(EVENTS).partition(key).push([{"n": n} for n in range(10)])

        stats: Counter[str] = Counter()

        async def work(window: Window) -> None:
            began = time.monotonic()
            if window.key == "b" and window.attempt == 1:
                raise RuntimeError("once")
            stats["messages"] += window.count
            stats["ms"] += round((time.monotonic() - began) * 1000)

        def note(window: Window, error: Exception) -> None:
            print(f"window of {window.key} failed: {error}")

        consumer = queen.consumer(stream.name, "workers").on_error(note)
        done = await consumer.limit(4).process(work)
        print(f"{done.handled} windows, {stats['messages']} messages, {done.failed} errors")

        await queen.queue(EVENTS).partition("d").push({"n": 1})
        window = await consumer.named("slow-worker").poll_window(10)
        assert window is not None
        (held,) = (await stream.explain("workers"))["keys"]
        print(f"key {held['key']} is {held['state']}, {held['why']}")
        await window.ack()

        (group,) = await stream.consumers()
        print(f"{group['consumerGroup']}: {group['totalWindowsConsumed']} windows consumed")
        print(f"waiting {group['waiting']}, dead {group['dead']}, paused {group['paused']}")
        listed = await stream.windows("workers", state="done")
        print(f"done: {sorted((one['key'], one['messages']) for one in listed)}")
        await stream.delete()


asyncio.run(main())
