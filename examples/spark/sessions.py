"""Visits: what a user does until nothing more comes for a while.

Half an hour would be usual as the gap; here it is half a second. A session gives one result,
when its gap and the grace are over, whether or not the user ever comes back.
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
EVENTS, VISITS = f"user-events-{RUN}", f"visits-{RUN}"


def push(queen: SyncQueen) -> None:
    now = datetime.now(UTC)
    visits = {
        "anna": [(0.0, "/"), (0.2, "/tea"), (0.4, "/cart"), (1.5, "/"), (1.6, "/orders")],
        "bruno": [(0.1, "/")],
    }
    for user, pages in visits.items():
        queen.queue(EVENTS).partition(user).push(
            [{"page": page, "ts": now + timedelta(seconds=after)} for after, page in pages]
        )


def main(url: str, spark: SparkSession) -> list[Any]:
    found: list[Any] = []
    with SyncQueen(url) as broker, tempfile.TemporaryDirectory() as folder:
        push(broker)
        visits = (
            broker.stream(f"visits-{RUN}", "analytics")
            .sources(EVENTS)
            .schema("page string, ts timestamp")
            .event_time("data.ts")
            .key(user="partition")
            .session(0.5)
            .grace_period(3)
            .aggregate(seen="array_sort(collect_list(struct(data.ts, data.page)))")
            .select("user", "windowStart", pages="seen.page")
            .to(VISITS)
        )
        running = visits.run(spark, checkpoint=folder, starting="earliest")
        while len(found) < 3 and running.query.isActive:
            popped = broker.queue(VISITS).pop(wait_s=1, batch=100, auto_ack=True)
            found += [message.data for message in popped]
        running.stop()
    for visit in sorted(found, key=lambda one: (str(one["user"]), str(one["windowStart"]))):
        print(f"{visit['user']} saw {' '.join(visit['pages'])}")
    return found


if __name__ == "__main__":
    main(os.environ.get("QUEEN_URL", "http://localhost:6632"), queen.spark.session("visits"))
