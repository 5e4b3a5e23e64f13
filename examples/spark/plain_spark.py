"""A query of somebody who knows Spark and nothing of Queen but `register`.

Spark's own watermark follows the latest message. So the last window stays open until a later
message comes, and what becomes of a late one depends on where Spark cut its batches. To close
windows on the clock, and to keep what is late, see `queen.spark.windowed`, or define a pipeline.
"""

import os
import tempfile
import uuid

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import queen.spark
from queen import SyncQueen

RUN = uuid.uuid4().hex[:8]
VIEWS, COUNTS = f"views-{RUN}", f"view-counts-{RUN}"


def main(url: str, spark: SparkSession) -> int:
    queen.spark.register(spark)
    with SyncQueen(url) as broker, tempfile.TemporaryDirectory() as folder:
        broker.queue(VIEWS).push([{"page": "/tea"}] * 6)
        views = spark.readStream.format("queen").option("url", url).option("queue", VIEWS).load()
        query = (
            views.withWatermark("createdAt", "1 second")
            .groupBy(f.window("createdAt", "1 second"), f.get_json_object("data", "$.page"))
            .count()
            .toDF("window", "page", "count")
            .select(f.struct("window.start", "page", "count").alias("data"))
            .writeStream.format("queen")
            .options(url=url, queue=COUNTS, checkpointLocation=folder)
            .trigger(processingTime="500 milliseconds")
            .start()
        )
        total = 0
        while total < 6 and query.isActive:
            broker.queue(VIEWS).push({"page": "/later"})
            for message in broker.queue(COUNTS).pop(wait_s=1, batch=100, auto_ack=True):
                total += message.data["count"] if message.data["page"] == "/tea" else 0
        query.stop()
    print(f"/tea was viewed {total} times")
    return total


if __name__ == "__main__":
    main(os.environ.get("QUEEN_URL", "http://localhost:6632"), queen.spark.session("views"))
