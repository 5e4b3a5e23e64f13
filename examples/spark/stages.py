"""Two pipelines in a row: clicks are enriched, enriched clicks are counted.

The first is a Python function over DataFrames, which joins a table that does not change. The
second is a definition. Between them is a queue, so each can be stopped, changed and run again
on its own, and others can read what the first one gives.
"""

import os
import tempfile
import uuid
from collections import Counter

from pyspark.sql import DataFrame, SparkSession

import queen.spark
from queen import SyncQueen

RUN = uuid.uuid4().hex[:8]
CLICKS, ENRICHED, TOTALS = f"clicks-{RUN}", f"enriched-{RUN}", f"totals-{RUN}"
COUNTRIES = [("anna", "IT"), ("bruno", "FR"), ("carla", "IT")]


@queen.spark.pipeline(
    reads={CLICKS: "user string, page string"}, writes=ENRICHED, name=f"enrich-{RUN}"
)
def enrich(clicks: DataFrame) -> DataFrame:
    users = clicks.sparkSession.createDataFrame(COUNTRIES, "user string, country string")
    return clicks.select("data.*").join(users, "user", "left")


def push(queen: SyncQueen) -> None:
    for user, _ in COUNTRIES:
        queen.queue(CLICKS).partition(user).push([{"user": user, "page": "/tea"}] * 10)


def main(url: str, spark: SparkSession) -> Counter[str]:
    clicks: Counter[str] = Counter()
    with SyncQueen(url) as broker, tempfile.TemporaryDirectory() as folder:
        push(broker)
        broker.queue(ENRICHED).create()  # The second stage may be there before the first writes.
        first = enrich.run(spark, url=url, checkpoint=f"{folder}/1", starting="earliest")
        second = (
            broker.stream(f"by-country-{RUN}", "analytics")
            .sources(ENRICHED)
            .schema("country string")
            .key("data.country")
            .tumbling_time(1)  # Of the time at which the first stage wrote: nothing is late.
            .grace_period(0)
            .aggregate(clicks="count(*)")
            .to(TOTALS)
            .run(spark, checkpoint=f"{folder}/2", starting="earliest")
        )
        while clicks.total() < 30 and second.query.isActive:
            for message in broker.queue(TOTALS).pop(wait_s=1, batch=100, auto_ack=True):
                clicks[message.data["country"]] += message.data["clicks"]
        first.stop()
        second.stop()
    for country in sorted(clicks):
        print(f"{country}: {clicks[country]} clicks")
    return clicks


if __name__ == "__main__":
    main(os.environ.get("QUEEN_URL", "http://localhost:6632"), queen.spark.session("stages"))
