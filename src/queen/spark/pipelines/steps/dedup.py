"""Messages that are the same are used once: in each window, or of each event time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from queen.spark.windows.event_time import TIME, WINDOW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from queen.wire.pipelines import Definition

# What orders messages: the first of several that are the same is kept.
_ORDER = ("createdAt", "queue", "partition", "offset")
# Of an expression over messages.
Value = Callable[[str], "Column"]


def once_per_window(
    definition: Definition, rows: DataFrame, keys: Mapping[str, Column], value_of: Value
) -> DataFrame:
    """Keep the first of the messages that are the same, in each window."""
    same = [value_of(text).alias(f"_same_{at}") for at, text in enumerate(definition.dedup)]
    columns = [column for column in rows.columns if column != WINDOW]
    sides = [side.name for side in definition.reads] if definition.joins else []
    # Of a side that was to find nothing there is no message.
    sides = [side for side in sides if side in columns]
    first = f.min_by(f.struct(*columns), _order_of(sides)).alias("_row")
    by = [column.alias(name) for name, column in keys.items()]
    return rows.groupBy(WINDOW, *by, *same).agg(first).select(WINDOW, *keys, "_row.*")


def once_per_time(definition: Definition, rows: DataFrame, value_of: Value) -> DataFrame:
    """Keep one of the messages that are the same and happened at the same time."""
    names = [f"_same_{at}" for at in range(len(definition.dedup))]
    for name, text in zip(names, definition.dedup, strict=True):
        rows = rows.withColumn(name, value_of(text))
    return rows.dropDuplicates([*names, TIME]).drop(*names)


def _order_of(sides: Sequence[str]) -> Column:
    """Return what says which of some rows came first: messages, or joined ones."""
    fields = [f"`{side}`.`{field}`" for side in sides for field in _ORDER] or list(_ORDER)
    return f.struct(*(f.expr(field).alias(f"_{at}") for at, field in enumerate(fields)))
