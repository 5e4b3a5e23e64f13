"""Telemetry of each device from several queues; without asyncio."""

import uuid

from queen import SyncQueen, SyncWindow

RUN = uuid.uuid4().hex[:8]
TEMPERATURE, PRESSURE = f"device-temperature-{RUN}", f"device-pressure-{RUN}"
ALERTS = f"device-alerts-{RUN}"


def snapshot(window: SyncWindow) -> None:
    parts = []
    by_queue = window.group_by("queue")
    for name, queue in (("temperature", TEMPERATURE), ("pressure", PRESSURE)):
        window.messages = by_queue[queue]
        found = window.aggregate(count=True, avg="data.value", min="data.value", max="data.value")
        low, high, mean = (found[of]["data.value"] for of in ("min", "max", "avg"))
        parts.append(f"{name} {low} to {high}, {mean:g} on average of {found['count']}")
        if name == "temperature" and high > 90:
            window.push(ALERTS, {"device": window.key, "temperature": high})
    print(f"{window.key}: {'; '.join(parts)}")


with SyncQueen() as queen:
    stream = queen.stream(f"device-telemetry-{RUN}", "iot").sources([TEMPERATURE, PRESSURE])
    stream.partitioned().tumbling_time(1).grace_period(0).define()

    pushes = queen.transaction()
    for device, warmth in (("device-001", 72), ("device-002", 91)):
        values = [{"value": warmth + n, "unit": "F"} for n in range(4)]
        pushes.push(TEMPERATURE, values, partition=device)
        pushes.push(PRESSURE, [{"value": 14.5}, {"value": 15.0}], partition=device)
    pushes.commit()

    queen.consumer(stream.name, "aggregator").limit(2).process(snapshot)
    for alert in queen.queue(ALERTS).batch(10).pop(auto_ack=True):
        print(f"critical: {alert.data}")
    stream.delete()
