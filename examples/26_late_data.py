"""Sensors whose readings arrive late.

The time of a window is that of the broker, when it stored a message: by that time nothing can be
late. A window waits for its grace all the same before it is handed out, for those who want to
look later. When a message has a time of its own, say of a sensor with a bad connection, cut
sliding windows: each reports its first second, and holds what arrived in the two seconds after
it too. What is later than that is known to be late and goes to a queue of its own.
"""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
TEMPERATURES, LATE = f"temperature-sensors-{RUN}", f"late-readings-{RUN}"
PERIOD, LATENESS = timedelta(seconds=1), timedelta(seconds=2)
GRACE = timedelta(seconds=0.5)


async def main() -> None:
    async with Queen() as queen:
        stream = queen.stream(f"sensor-readings-{RUN}", "iot").sources(TEMPERATURES)
        await stream.sliding_time(size=PERIOD + LATENESS, slide=PERIOD).grace_period(GRACE).define()

        now = datetime.now(UTC)
        ages_s = {20: 0, 21: 0.3, 22: 3600}  # in time, a little late, an hour late
        readings = [
            {"value": value, "measured_at": now - timedelta(seconds=age_s)}
            for value, age_s in ages_s.items()
        ]
        await queen.queue(TEMPERATURES).push(readings)

        measured: list[int] = []
        late: list[int] = []
        consumer = queen.consumer(stream.name, "iot-processor")

        async def report(window: Window) -> None:
            assert datetime.now(UTC) >= window.end + GRACE
            for message in window.all_messages:
                at = datetime.fromisoformat(message.data["measured_at"])
                if window.start <= at < window.start + PERIOD:
                    measured.append(message.data["value"])
                elif at < window.start - LATENESS and message.created_at < window.start + PERIOD:
                    late.append(message.data["value"])
                    window.push(LATE, message.data)
            if len(measured) + len(late) == len(readings):
                consumer.stop()

        await consumer.process(report)
        print(f"measured, each in its own second: {sorted(measured)}")
        kept = await queen.queue(LATE).batch(10).pop(auto_ack=True)
        print(f"too late, and kept: {[message.data['value'] for message in kept]}")
        await stream.delete()


asyncio.run(main())
