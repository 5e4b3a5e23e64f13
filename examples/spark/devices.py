"""Readings of devices from two queues, for each device; what comes too late is set aside.

Partitions with the same name in both queues are one device. A reading that arrives an hour
after it was measured changes no result that was given already: it goes to a queue of its own,
with the window that it missed.
"""

import os
import tempfile
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

import queen.spark
from queen import SyncQueen

RUN = uuid.uuid4().hex[:8]
TEMPERATURE, PRESSURE = f"device-temperature-{RUN}", f"device-pressure-{RUN}"
SNAPSHOTS, LATE = f"device-snapshots-{RUN}", f"device-late-{RUN}"


def push(queen: SyncQueen) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    readings: list[tuple[str, str, list[float], datetime]] = [
        (TEMPERATURE, "device-1", [72, 73, 74, 75], now),
        (PRESSURE, "device-1", [14.5, 15.0], now),
        (TEMPERATURE, "device-2", [90, 94], now),
        (TEMPERATURE, "device-2", [20], now - timedelta(hours=1)),
    ]
    for queue, device, values, ts in readings:
        queen.queue(queue).partition(device).push([{"value": one, "ts": ts} for one in values])


def main(url: str, spark: SparkSession) -> tuple[list[Any], list[Any]]:
    found: list[Any] = []
    late: list[Any] = []
    of_temperature = f"filter (where queue = '{TEMPERATURE}')"
    with SyncQueen(url) as broker, tempfile.TemporaryDirectory() as folder:
        push(broker)
        snapshots = (
            broker.stream(f"devices-{RUN}", "iot")
            .sources(TEMPERATURE, PRESSURE)
            .schema("value double, ts timestamp")
            .event_time("data.ts")
            .partitioned()
            .tumbling_time(1)
            .grace_period(3)
            .aggregate(
                low=f"min(data.value) {of_temperature}",
                high=f"max(data.value) {of_temperature}",
                mean=f"avg(data.value) {of_temperature}",
                pressure=f"avg(data.value) filter (where queue = '{PRESSURE}')",
            )
            .select("low", "high", "mean", "pressure", device="partition", is_critical="high > 90")
            .late_to(LATE)
            .to(SNAPSHOTS)
        )
        running = snapshots.run(spark, checkpoint=folder, starting="earliest")
        while len(found) + len(late) < 3 and running.query.isActive:
            for queue, rows in ((SNAPSHOTS, found), (LATE, late)):
                popped = broker.queue(queue).pop(wait_s=1, batch=100, auto_ack=True)
                rows += [message.data for message in popped]
        running.stop()
    for row in sorted(found, key=lambda one: str(one["device"])):
        alarm = ", critical" if row["is_critical"] else ""
        span = f"{row['low']:g} to {row['high']:g}, {row['mean']:g} on average"
        print(f"{row['device']}: {span}{alarm}")
    for row in late:
        print(f"too late: {row['data']['value']:g} of {row['partition']}")
    return found, late


if __name__ == "__main__":
    main(os.environ.get("QUEEN_URL", "http://localhost:6632"), queen.spark.session("devices"))
