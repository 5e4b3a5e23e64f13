"""Messages for later: a delay of the queue, and a time of a message's own.

`delayed_processing` holds every message of a queue back for so many seconds. `delay` and
`deliver_at` of a message are its own; until then it can be listed, and cancelled.
"""

import asyncio
import time
import uuid
from datetime import UTC, datetime, timedelta

from queen import Message, Queen, Received

RUN = uuid.uuid4().hex[:8]
SLOW, REMINDERS = f"slow-{RUN}", f"reminders-{RUN}"


async def main() -> None:
    async with Queen() as queen:
        slow = queen.queue(SLOW)
        await slow.config(delayed_processing=1).create()
        started = time.monotonic()
        await slow.push({"what": "not at once"})
        print(f"asked at once: {await slow.pop(wait_s=0)}")
        (message,) = await slow.pop()
        print(f"{message.data['what']}, but after {time.monotonic() - started:.1f} s")

        reminders = queen.queue(REMINDERS)
        soon = datetime.now(UTC) + timedelta(seconds=1)
        pushed = await reminders.push(
            [
                Message("in a second", delay=1),
                Message("at a time", deliver_at=soon),
                Message("never", delay=timedelta(days=1), transaction_id="cancelled"),
            ]
        )
        print(f"they are {pushed[0].status}")
        await queen.admin.cancel_scheduled(REMINDERS, "cancelled")

        async def remind(message: Received) -> None:
            print(f"reminded: {message.data}")

        await reminders.limit(2).consume(remind)
        left = await queen.admin.scheduled(REMINDERS)
        print(f"still scheduled: {left['scheduled']}")


asyncio.run(main())
