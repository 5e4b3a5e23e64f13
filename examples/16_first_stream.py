"""Cut two queues into windows of a second and handle each window as a whole.

A stream is windows over queues. When the time of a window is over it is complete for good, and
each consumer group gets it: one message after the other becomes "everything of this second".
A window is acked when the handler returns and comes again when it raises.
"""

import asyncio
import uuid
from collections import Counter

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
EVENTS, VIEWS, ACTIVITY = f"user-events-{RUN}", f"page-views-{RUN}", f"user-activity-{RUN}"


async def main() -> None:
    async with Queen() as queen:
        activity = queen.stream(ACTIVITY, "analytics").sources(EVENTS, VIEWS)
        await activity.tumbling_time(1).grace_period(0.2).define()

        for number in range(5):
            await queen.queue(EVENTS).push({"user": number, "did": "log in"})
            await queen.queue(VIEWS).push([{"page": "/"}, {"page": "/cart"}])

        reports = queen.consumer(ACTIVITY, "reports")
        seen: Counter[str] = Counter()

        async def report(window: Window) -> None:
            print(f"{window.start:%H:%M:%S} to {window.end:%H:%M:%S}: {window.count} messages")
            for message in window.all_messages:
                seen["logins" if message.queue == EVENTS else "views"] += 1
            if seen.total() == 15:
                reports.stop()

        done = await reports.process(report)
        print(f"{seen['logins']} logins and {seen['views']} views, none missing, none twice")
        print(f"windows handled: {done.handled}, failed: {done.failed}")
        await activity.delete()


asyncio.run(main())
