"""Gather small pushes on the client and send them together.

With `.buffer(...)` a push returns at once and the message is sent with its neighbours: when
enough have gathered, or when the first has waited long enough. What could not be sent stays in
the buffer and is sent again. Until `flush` has returned, a crash of the program loses what it
had not sent.
"""

import asyncio
import uuid

from queen import Queen

CLICKS = f"clicks-{uuid.uuid4().hex[:8]}"


async def main() -> None:
    async with Queen() as queen:
        clicks = queen.queue(CLICKS).buffer(max_messages=500, max_ms=200)
        for number in range(1200):
            (pushed,) = await clicks.partition(f"user-{number % 3}").push({"click": number})
        print(f"the last one is {pushed.status}")

        await queen.flush()
        print("flushed: all of them are stored")

        counted = 0
        for user in range(3):
            partition = queen.queue(CLICKS).partition(f"user-{user}")
            batch = await partition.pop(batch=1000, auto_ack=True)
            in_order = [one.data["click"] for one in batch] == list(range(user, 1200, 3))
            print(f"user-{user} has {len(batch)} clicks, in order: {in_order}")
            counted += len(batch)
        print(f"{counted} clicks, none lost")

        # Nothing more to do: the time limit sends what is left, and so does closing.
        await clicks.push({"click": "last"})
        (last,) = await queen.queue(CLICKS).pop(wait_s=5, auto_ack=True)
        print(f"sent by the time limit: {last.data['click']}")


asyncio.run(main())
