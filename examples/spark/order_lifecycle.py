"""Orders, their payments and their shipments: three queues, and what is missing of an order.

A left join keeps orders without a payment, and payments without a shipment. An order is told
when the time for the rest to come is over, and not before.
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
NAMES = ("orders", "payments", "shipments")
STATES = f"order-states-{RUN}"


def push(queen: SyncQueen) -> None:
    now = datetime.now(UTC)
    orders = {"orders": [1, 2, 3], "payments": [1, 2], "shipments": [1]}
    for name, numbers in orders.items():
        queen.queue(f"{name}-{RUN}").push([{"order": number, "ts": now} for number in numbers])


def main(url: str, spark: SparkSession) -> list[Any]:
    found: list[Any] = []
    with SyncQueen(url) as broker, tempfile.TemporaryDirectory() as folder:
        push(broker)
        orders, payments, shipments = (
            broker.stream(f"{name}-{RUN}")
            .sources(f"{name}-{RUN}")
            .schema("order bigint, ts timestamp")
            .event_time("data.ts")
            .named(name)
            for name in NAMES
        )
        states = (
            orders.join(payments, on="data.order", within=1, how="left")
            .join(shipments, on={"orders.data.order": "data.order"}, within=1, how="left")
            .grace_period(3)
            .select(
                order="orders.data.order",
                state="""case when payments is null then 'is not paid'
                              when shipments is null then 'waits for its shipment'
                              else 'is complete' end""",
            )
            .to(STATES)
        )
        running = states.run(spark, checkpoint=folder, starting="earliest")
        while len(found) < 3 and running.query.isActive:
            popped = broker.queue(STATES).pop(wait_s=1, batch=100, auto_ack=True)
            found += [message.data for message in popped]
        running.stop()
    for row in sorted(found, key=lambda one: int(one["order"])):
        print(f"order {row['order']} {row['state']}")
    return found


if __name__ == "__main__":
    main(os.environ.get("QUEEN_URL", "http://localhost:6632"), queen.spark.session("orders"))
