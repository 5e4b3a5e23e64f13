"""Rules that look for fraud in what one user does within a window.

Three rules over the same aggregates; a user who breaks none of them gives no result. An alert
says which rules were broken, and is in the queue once, however often the job is restarted.
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
TRANSACTIONS, ALERTS = f"transactions-{RUN}", f"fraud-alerts-{RUN}"
RULES = {"amount": "total > 10000", "places": "places > 5", "count": "n > 20"}


def push(queen: SyncQueen) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    behaviour = {
        "anna": [{"amount": 20, "place": "Rome"}] * 3,
        "bruno": [{"amount": 4000, "place": "Rome"}] * 3,
        "carla": [{"amount": 5, "place": f"city {number}"} for number in range(25)],
    }
    for user, transactions in behaviour.items():
        queen.queue(TRANSACTIONS).partition(user).push([{**one, "ts": now} for one in transactions])


def main(url: str, spark: SparkSession) -> list[Any]:
    found: list[Any] = []
    broken = ", ".join(f"if({rule}, '{name}', null)" for name, rule in RULES.items())
    with SyncQueen(url) as broker, tempfile.TemporaryDirectory() as folder:
        push(broker)
        alerts = (
            broker.stream(f"fraud-{RUN}", "fraud")
            .sources(TRANSACTIONS)
            .schema("amount double, place string, ts timestamp")
            .event_time("data.ts")
            .key(user="partition")
            .tumbling_time(1)
            .grace_period(3)
            .aggregate(total="sum(data.amount)", n="count(*)")
            .distinct(places="data.place")
            .having(" or ".join(RULES.values()))
            .select("user", "total", "windowStart", why=f"array_compact(array({broken}))")
            .to(ALERTS)
        )
        running = alerts.run(spark, checkpoint=folder, starting="earliest")
        while len(found) < 2 and running.query.isActive:
            popped = broker.queue(ALERTS).pop(wait_s=1, batch=100, auto_ack=True)
            found += [message.data for message in popped]
        running.stop()
    for alert in sorted(found, key=lambda one: str(one["user"])):
        print(f"{alert['user']}: {' and '.join(alert['why'])}")
    return found


if __name__ == "__main__":
    main(os.environ.get("QUEEN_URL", "http://localhost:6632"), queen.spark.session("fraud"))
