"""Follow an order through three queues, and act on what is missing.

Each queue has a partition for each order, so a window holds everything that happened to one
order in its time. What the window does not hold did not happen in it: that is certain, because a
window is handed out only when nothing can be added to it.
"""

import asyncio
import uuid

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
CREATED, PAID, SHIPPED = (f"{name}-{RUN}" for name in ("orders", "payments", "shipments"))
REMINDERS = f"reminders-{RUN}"


async def main() -> None:
    async with Queen() as queen:
        stream = queen.stream(f"order-lifecycle-{RUN}", "orders").sources([CREATED, PAID, SHIPPED])
        await stream.partitioned().tumbling_time(1).grace_period(0).define()

        pushes = queen.transaction()
        for order, steps in (("order-1", 3), ("order-2", 2), ("order-3", 1)):
            for queue in (CREATED, PAID, SHIPPED)[:steps]:
                pushes.push(queue, {"order": order}, partition=order)
        await pushes.commit()

        async def follow(window: Window) -> None:
            happened = set(window.group_by("queue"))
            if {CREATED, PAID, SHIPPED} <= happened:
                print(f"{window.key} is complete")
            elif PAID in happened:
                print(f"{window.key} waits for its shipment")
            else:
                print(f"{window.key} is not paid")
                # Stored together with the ack of the window: no order is reminded twice.
                window.push(REMINDERS, {"order": window.key})

        await queen.consumer(stream.name, "order-processor").limit(3).process(follow)
        reminders = await queen.queue(REMINDERS).batch(10).pop(auto_ack=True)
        print(f"reminded: {[message.data['order'] for message in reminders]}")
        await stream.delete()


asyncio.run(main())
