"""What a backfill has computed: printed, or written once to where the caller says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from queen.spark.pipelines.compiler import JSON_OPTIONS, PARTITION, Compiled
from queen.spark.pipelines.writing import messages

if TYPE_CHECKING:
    from queen.spark.pipelines.run import Options
    from queen.wire.pipelines import Definition


def plain_rows(made: Compiled) -> Iterator[dict[str, Any]]:
    """Yield results as JSON has them."""
    names = [f"`{name}`" for name in made.result.columns if name != PARTITION]
    texts = made.result.select(f.to_json(f.struct(*names), JSON_OPTIONS).alias("row"))
    for row in texts.toLocalIterator():
        yield json.loads(row["row"])


def deliver_history(
    definition: Definition,
    made: Compiled,
    options: Options,
    queue: str | None,
    folder: str | None,
) -> int:
    """Write results to a queue or a new folder; return how many."""
    kept = made.result.persist()
    try:
        count = kept.count()
        if folder is not None:
            kept.drop(PARTITION).write.format(definition.output.format).save(folder)
        elif queue is not None:
            # Late messages are in their queue since they came.
            rows = messages(definition, made._replace(result=kept, late=None))
            broker = {"url": ",".join(options.address().urls)}
            if options.token:
                broker["token"] = options.token
            writer = rows.drop("queue").write.format("queen").mode("append").options(**broker)
            writer.option("queue", queue).save()
        return count
    finally:
        kept.unpersist()
