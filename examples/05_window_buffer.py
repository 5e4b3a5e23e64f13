"""Wait until a burst is over, then take all of it at once.

With `window_buffer` a partition gives nothing until nobody has pushed to it for so many
seconds. A consumer then sees the whole burst in one batch, which suits work that is better
done once: rebuilding an index, sending one mail about ten changes.
"""

import asyncio
import time
import uuid

from queen import Queen, Received

CHANGES = f"changes-{uuid.uuid4().hex[:8]}"
QUIET_S = 1


async def main() -> None:
    async with Queen() as queen:
        changes = queen.queue(CHANGES).partition("document-1")
        await changes.config(window_buffer=QUIET_S).create()
        last_push_at = 0.0

        async def type_text() -> None:
            nonlocal last_push_at
            for key in "queen":
                await changes.push({"key": key})
                last_push_at = time.monotonic()
                await asyncio.sleep(0.2)

        async def save(batch: list[Received]) -> None:
            quiet_s = time.monotonic() - last_push_at
            text = "".join(message.data["key"] for message in batch)
            print(f"saved {text!r} once, {quiet_s:.1f} s after the last key")

        typing = asyncio.create_task(type_text())
        consumer = await changes.group("autosave").batch(100).limit(5).consume(save)
        await typing
        print(f"{consumer.handled} changes in one batch")


asyncio.run(main())
