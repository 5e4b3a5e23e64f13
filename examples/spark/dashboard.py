"""Numbers for a dashboard: for each second the most viewed pages, visitors, errors, slowness.

A minute would be usual; a second is for those who wait. Windows follow the time in the events,
so it does not matter when they were sent.
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
VIEWS, METRICS = f"page-views-{RUN}", f"page-metrics-{RUN}"
SCHEMA = "page string, user string, status int, ms int, ts timestamp"


def push(queen: SyncQueen) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    for page, views in {"/tea": 100, "/cup": 50, "/tray": 30, "/spoon": 10}.items():
        queen.queue(VIEWS).push(
            [
                {
                    "page": page,
                    "user": f"user-{number % 7}",
                    "status": 500 if number % 10 == 0 else 200,
                    "ms": number,
                    "ts": now,
                }
                for number in range(1, views + 1)
            ]
        )


def main(url: str, spark: SparkSession) -> list[Any]:
    found: list[Any] = []
    with SyncQueen(url) as broker, tempfile.TemporaryDirectory() as folder:
        push(broker)
        metrics = (
            broker.stream(f"page-metrics-{RUN}", "analytics")
            .sources(VIEWS)
            .schema(SCHEMA)
            .event_time("data.ts")
            .key("data.page")
            .tumbling_time(1)
            .grace_period(3)
            .aggregate(
                views="count(*)",
                p95="percentile_approx(data.ms, 0.95)",
                errors="count_if(data.status >= 500)",
            )
            .distinct(visitors="data.user")
            .top(3, by="views")
            .to(METRICS)
        )
        running = metrics.run(spark, checkpoint=folder, starting="earliest")
        while len(found) < 3 and running.query.isActive:
            popped = broker.queue(METRICS).pop(wait_s=1, batch=100, auto_ack=True)
            found += [message.data for message in popped]
        running.stop()
    for row in sorted(found, key=lambda one: one["rank"]):
        print(
            f"{row['rank']}. {row['page']}: {row['views']} views by {row['visitors']} visitors,"
            f" {row['errors']} errors, 95 % within {row['p95']} ms"
        )
    return found


if __name__ == "__main__":
    main(os.environ.get("QUEEN_URL", "http://localhost:6632"), queen.spark.session("dashboard"))
