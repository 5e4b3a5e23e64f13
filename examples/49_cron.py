"""By the calendar: one message for each tick, however many servers there are.

A schedule is a row in the database with an expression of cron and a time zone. Times that do not
exist when clocks are put forward come due at the end of the gap, times that exist twice once.
"""

import asyncio
import uuid
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from queen import Queen
from queen.core.tasks.cron import next_ticks, parse_cron, parse_zone

RUN = uuid.uuid4().hex[:8]
QUEUE, NAME = f"reports-{RUN}", f"nightly-{RUN}"


async def main() -> None:
    async with Queen() as queen:
        made = await queen.queue(QUEUE).cron(
            NAME, "30 2 * * *", {"report": "nightly"}, zone="Europe/Berlin", catch_up="last"
        )
        due = datetime.fromisoformat(made["nextAt"]).astimezone(ZoneInfo("Europe/Berlin"))
        print(f"created, and due at {due:%H:%M} in Berlin")
        ticks = (await queen.admin.schedule_ticks(NAME, 3))["ticks"]
        print(f"and {len(ticks) - 1} more that were asked for")

        await queen.admin.pause_schedule(NAME)
        print(f"it is {(await queen.admin.schedule(NAME))['state']}")
        await queen.admin.resume_schedule(NAME)
        print(f"it is {(await queen.admin.schedule(NAME))['state']}")
        await queen.admin.delete_schedule(NAME)

        # What it would do on the nights in which clocks are changed.
        zone, cron = parse_zone("Europe/Berlin"), parse_cron("30 2 * * *")
        for day in (datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)):
            tick, after = next_ticks(cron, zone, day, 2)
            hours = (after - tick).total_seconds() / 3600
            print(f"{tick.astimezone(zone):%d %B at %H:%M %Z}, the next after {hours:g} hours")


asyncio.run(main())
