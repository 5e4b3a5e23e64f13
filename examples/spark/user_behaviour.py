"""What users looked at, and what they bought of it: two queues, joined.

Each click waits for a purchase of the same product by the same user. Those that find none are
kept, with nothing on the other side; then the clicks of each user are counted, and the money.
"""

import os
import tempfile
import uuid
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

import queen.spark
from queen import SyncQueen

RUN = uuid.uuid4().hex[:8]
CLICKS, PURCHASES = f"user-clicks-{RUN}", f"user-purchases-{RUN}"
BEHAVIOUR = f"user-behaviour-{RUN}"


def push(queen: SyncQueen) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    clicks = {"anna": ["tea", "pot", "cup", "tray"], "bruno": ["tea", "cup"]}
    for user, products in clicks.items():
        queen.queue(CLICKS).partition(user).push(
            [{"user": user, "product": product, "ts": now} for product in products]
        )
    purchases = [("tea", 4.5), ("pot", 30.0)]
    queen.queue(PURCHASES).partition("anna").push(
        [
            {"user": "anna", "product": product, "amount": amount, "ts": now}
            for product, amount in purchases
        ]
    )


def main(url: str, spark: SparkSession) -> list[Any]:
    found: list[Any] = []
    with SyncQueen(url) as broker, tempfile.TemporaryDirectory() as folder:
        push(broker)
        purchases = (
            broker.stream(f"purchases-{RUN}")
            .sources(PURCHASES)
            .schema("user string, product string, amount double, ts timestamp")
            .event_time("data.ts")
            .named("purchase")
        )
        behaviour = (
            broker.stream(f"user-behaviour-{RUN}", "analytics")
            .sources(CLICKS)
            .schema("user string, product string, ts timestamp")
            .event_time("data.ts")
            .named("click")
            .join(purchases, on=["data.user", "data.product"], within=1, how="left")
            .key("click.data.user")
            .tumbling_time(1)
            .grace_period(3)
            .aggregate(
                clicks="count(*)",
                bought="count(purchase.data.product)",
                revenue="coalesce(sum(purchase.data.amount), 0)",
            )
            .select("user", "clicks", "revenue", conversion="bought / clicks")
            .to(BEHAVIOUR)
        )
        running = behaviour.run(spark, checkpoint=folder, starting="earliest")
        while len(found) < 2 and running.query.isActive:
            popped = broker.queue(BEHAVIOUR).pop(wait_s=1, batch=100, auto_ack=True)
            found += [message.data for message in popped]
        running.stop()
    for row in sorted(found, key=lambda one: str(one["user"])):
        print(f"{row['user']}: {row['clicks']} clicks, {row['conversion']:.0%} bought,", end=" ")
        print(f"{row['revenue']:.2f} in all")
    return found


if __name__ == "__main__":
    main(os.environ.get("QUEEN_URL", "http://localhost:6632"), queen.spark.session("behaviour"))
