"""Join two queues: what a user looked at, and what came of it.

Both queues are partitioned by user, so a window of the stream holds the clicks and the purchases
of one user. `join` pairs the messages of two queues that have the same value in a field; with
`how="left"` a click without a purchase stays.
"""

import asyncio
import uuid

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
CLICKS, PURCHASES = f"user-clicks-{RUN}", f"user-purchases-{RUN}"


async def main() -> None:
    async with Queen() as queen:
        stream = queen.stream(f"user-behaviour-{RUN}", "analytics").sources(CLICKS, PURCHASES)
        await stream.partitioned().tumbling_time(1).grace_period(0).define()

        seen = [{"product": "tea"}, {"product": "cup"}, {"product": "pot"}, {"product": "tray"}]
        pushes = queen.transaction()
        pushes.push(CLICKS, seen, partition="anna").push(CLICKS, seen[:2], partition="bruno")
        pushes.push(PURCHASES, {"product": "tea", "amount": 4.5}, partition="anna")
        pushes.push(PURCHASES, {"product": "pot", "amount": 30}, partition="anna")
        await pushes.commit()

        async def analyze(window: Window) -> None:
            pairs = window.join(CLICKS, PURCHASES, on="data.product", how="left")
            bought = [right for _, _, right in pairs if right is not None]
            revenue = sum(message.data["amount"] for message in bought)
            print(f"{window.key}: {len(pairs)} clicks, {len(bought)} purchases, {revenue:.2f}")
            print(f"  conversion {len(bought) / len(pairs):.0%}")
            print(
                f"  not bought: {[left.data['product'] for _, left, right in pairs if not right]}"
            )

        await queen.consumer(stream.name, "behaviour-analyzer").limit(2).process(analyze)
        await stream.delete()


asyncio.run(main())
