"""The options of a queue, and what some of them do.

`create` makes a queue or overwrites its options; those that are not given have their default.
The reference of `POST /api/v1/configure` lists all of them.
"""

import asyncio
import uuid

from queen import Message, Queen
from queen.errors import BadRequest, QueueFull

RUN = uuid.uuid4().hex[:8]


async def main() -> None:
    async with Queen(retry_s=0) as queen:  # this example wants to see refusals at once
        small = queen.queue(f"small-{RUN}").namespace("examples").task("sizes")
        created = await small.config(max_size=2, lease_time=60, retry_limit=5).create()
        options = created["options"]
        print(f"lease {options['leaseTime']} s, {options['retryLimit']} retries")

        await small.push(["one", "two"])
        try:
            await small.push("three")
        except QueueFull as error:
            print(f"refused: {error.code}, room for {error.left}")

        once = queen.queue(f"once-{RUN}")
        await once.config(dedup="forever").create()
        order = Message({"order": 1}, transaction_id="order-1")
        statuses = [(await once.push(order))[0].status for _ in range(2)]
        print(f"dedup forever: {' then '.join(statuses)}")

        fleeting = queen.queue(f"fleeting-{RUN}")
        await fleeting.config(ttl=1).create()
        await fleeting.push("read me quickly")
        await asyncio.sleep(1.2)
        print(f"after its ttl: {await fleeting.pop(wait_s=0)}")

        try:
            await small.config(lease_time=-1).create()
        except BadRequest as error:
            print(f"refused: {error}")


asyncio.run(main())
