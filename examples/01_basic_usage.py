"""Create a queue, push, pop and ack.

The payload that is pushed is the payload that is received, whatever it is. A pop leases
messages: until they are acked, or the lease ends, no other consumer gets them.
"""

import asyncio
import uuid

from queen import Message, Queen

ORDERS = f"orders-{uuid.uuid4().hex[:8]}"


async def main() -> None:
    async with Queen() as queen:  # QUEEN_URL, or http://localhost:6632
        orders = queen.queue(ORDERS).config(lease_time=30, retry_limit=3)
        await orders.create()

        await orders.partition("customer-7").push({"order": 1, "total": 12})
        await orders.partition("customer-7").push(["a text", 42, None, {"data": "no envelope"}])

        # With an id of its own a message is stored once, however often it is sent.
        order = Message({"order": 2}, transaction_id="order-2")
        first = await orders.push(order)
        again = await orders.push(order)
        print(f"order-2 is {first[0].status}, sent again it is a {again[0].status}")

        customer = orders.partition("customer-7").group("billing")
        while messages := await customer.batch(10).pop(wait_s=0):
            for message in messages:
                print(f"{message.partition} at offset {message.offset}: {message.data!r}")
            await queen.ack(messages)

        print("nothing is left" if not await customer.pop(wait_s=0) else "something is left")
        await orders.delete()


asyncio.run(main())
