"""Look for fraud in what one user does within a window.

A partition for each user gives a window for each user. An alert is pushed with the ack of the
window that it comes from: a suspicion is raised once, even if the detector is restarted midway.
"""

import asyncio
import uuid

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
TRANSACTIONS, ALERTS = f"transactions-{RUN}", f"fraud-alerts-{RUN}"


async def detect(window: Window) -> None:
    found = window.aggregate(count=True, sum="data.amount", distinct="data.location")
    amount, places = found["sum"]["data.amount"], found["distinct"]["data.location"]
    rules = {"amount": amount > 10_000, "places": places > 5, "count": found["count"] > 20}
    broken = [name for name, is_broken in rules.items() if is_broken]
    if broken:
        alert = {"user": window.key, "why": broken, "amount": amount, "since": window.start}
        window.push(ALERTS, alert, partition=window.key)


async def main() -> None:
    async with Queen() as queen:
        stream = queen.stream(f"transaction-stream-{RUN}", "fraud").sources(TRANSACTIONS)
        await stream.partitioned().tumbling_time(1).grace_period(0).define()

        behaviour = {
            "anna": [{"amount": 20, "location": "Rome"}] * 3,
            "bruno": [{"amount": 4000, "location": "Rome"}] * 3,
            "carla": [{"amount": 5, "location": f"city {n}"} for n in range(25)],
        }
        for user, transactions in behaviour.items():
            await queen.queue(TRANSACTIONS).partition(user).push(transactions)

        done = await queen.consumer(stream.name, "fraud-detector").limit(3).process(detect)
        print(f"looked at {done.handled} users")
        alerts = queen.queue(ALERTS).limit(2).consume()
        found = [message.data async for message in alerts]
        for alert in sorted(found, key=lambda one: one["user"]):
            print(f"{alert['user']}: {' and '.join(alert['why'])}")
        await stream.delete()


asyncio.run(main())
