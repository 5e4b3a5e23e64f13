"""Four ways to cut the same messages.

Tumbling windows follow one another. Sliding windows overlap: with a size of two seconds and a
slide of one, every message is in two of them. A session lasts until nothing came for a gap. A
count window is full, whenever that is. All of them are half-open, and the first three close when
their time is over, whether or not anything arrives.
"""

import asyncio
import uuid

from queen import Queen

RUN = uuid.uuid4().hex[:8]
EVENTS = f"events-{RUN}"


async def main() -> None:
    async with Queen() as queen:
        await queen.queue(EVENTS).push([{"n": n} for n in range(6)])

        def named(kind: str) -> str:
            return f"{kind}-{RUN}"

        base = {
            kind: queen.stream(named(kind)).sources(EVENTS).grace_period(0)
            for kind in ("tumbling", "sliding", "session", "count")
        }
        cut = {
            "tumbling": base["tumbling"].tumbling_time(1),
            "sliding": base["sliding"].sliding_time(size=2, slide=1),
            "session": base["session"].session(gap=0.5),
            "count": base["count"].count(3),
        }
        for kind, stream in cut.items():
            await stream.define()
            windows = []
            # One push is one instant, so it is known how many windows hold it.
            expected = 2 if kind in ("sliding", "count") else 1
            async for window in queen.consumer(stream.name, "readers").limit(expected):
                windows.append([message.data["n"] for message in window.all_messages])
                length_s = (window.end - window.start).total_seconds()
            print(f"{kind}: {windows}, the last over {length_s:g} s")
            await stream.delete()


asyncio.run(main())
