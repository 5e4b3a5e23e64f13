"""Consume all queues of a namespace, or of a task, with one consumer.

A queue may belong to a namespace (a team, a system) and to a task (a kind of work). A pop
without a queue's name takes from all queues that match, those with the higher priority first.
"""

import asyncio
import uuid
from collections.abc import Callable

from queen import Queen, Received

RUN = uuid.uuid4().hex[:8]
SHOP, BANK = f"shop-{RUN}", f"bank-{RUN}"


async def main() -> None:
    async with Queen() as queen:
        for namespace, task, priority in (
            (SHOP, "mail", 1),
            (SHOP, "report", 9),
            (BANK, "mail", 1),
        ):
            queue = queen.queue(f"{namespace}-{task}").namespace(namespace).task(task)
            await queue.config(priority=priority).create()
            await queue.push({"for": namespace.split("-")[0], "do": task})

        def consumer_of(label: str) -> Callable[[Received], None]:
            def handle(message: Received) -> None:
                print(f"{label}: {message.data['do']} for the {message.data['for']}")

            return handle

        shop = queen.queue().namespace(SHOP).group("shop-workers")
        await shop.limit(2).consume(consumer_of("everything of the shop"))

        mail = queen.queue().namespace(BANK).task("mail").group("mailers")
        await mail.limit(1).consume(consumer_of("mail of the bank"))

        names = {one["namespace"] for one in (await queen.admin.namespaces())["namespaces"]}
        print(f"both namespaces are listed: { ({SHOP, BANK} <= names) }")


asyncio.run(main())
