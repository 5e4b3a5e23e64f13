"""Groups: every group gets everything; consumers of one group share the work.

A consumer of a group leases whole partitions, so two of them never work on the same partition
at once and the order in each is kept.
"""

import asyncio
import uuid
from collections import Counter

from queen import Queen, Received

ORDERS = f"orders-{uuid.uuid4().hex[:8]}"
CUSTOMERS, EACH = 6, 5


async def main() -> None:
    async with Queen() as queen:
        orders = queen.queue(ORDERS)
        for customer in range(CUSTOMERS):
            await orders.partition(f"customer-{customer}").push([{"n": n} for n in range(EACH)])
        total = CUSTOMERS * EACH

        # Fan-out: two groups, and both see all messages.
        seen: Counter[str] = Counter()

        async def count(message: Received) -> None:
            seen[str(message.consumer_group)] += 1

        await asyncio.gather(
            *(orders.group(name).limit(total).consume(count) for name in ("billing", "search"))
        )
        print(f"fan-out: {dict(sorted(seen.items()))}")

        # Scaling: three workers in one group, and each message goes to one of them.
        by_partition: dict[str, list[int]] = {}

        async def work(batch: list[Received]) -> None:
            for message in batch:
                by_partition.setdefault(message.partition, []).append(message.data["n"])

        workers = orders.group("shipping").concurrency(3).batch(EACH).limit(total)
        consumer = await workers.consume(work)
        in_order = all(numbers == sorted(numbers) for numbers in by_partition.values())
        print(f"scaling: {consumer.handled} messages, each once, in order: {in_order}")

        await orders.push({"n": 99})
        state = (await queen.admin.group("billing", queue=ORDERS))[ORDERS]
        left = sum(partition["offsetLag"] for partition in state["partitions"])
        print(f"billing has {left} message to read")


asyncio.run(main())
