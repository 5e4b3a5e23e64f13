"""The best results of each window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from queen.spark.windows.event_time import named_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from queen.wire.pipelines import Top


def top_of(
    rows: DataFrame, top: Top, keys: list[str], results: list[str], window: list[str]
) -> DataFrame:
    """Keep the rows with the most of something in each window; equal ones by their keys."""
    columns = [*keys, *results]
    row = f.struct(f.expr(top.by).alias("_by"), *map(named_column, columns))
    rest = [key for key in keys if key not in top.per]
    compare = "0"
    for key in reversed(rest):
        compare = _comparison(key, compare, "<")
    order = _comparison("_by", compare, ">")
    listed = rows.groupBy(*window, *map(named_column, top.per)).agg(
        f.collect_list(row).alias("_rows")
    )
    best = f.expr(f"slice(array_sort(_rows, (l, r) -> {order}), 1, {top.count})")
    ranked = listed.select(*window, f.posexplode(best).alias("_at", "_row"))
    return ranked.select(
        *window,
        (f.col("_at") + 1).alias("rank"),
        *(f.col(f"_row.`{column}`").alias(column) for column in columns),
    )


def _comparison(field: str, otherwise: str, first: str) -> str:
    """Return SQL that orders `l` and `r` by a field, nulls last."""
    ours, theirs = f"l.`{field}`", f"r.`{field}`"
    after = "<" if first == ">" else ">"
    return (
        f"case when {ours} is null and {theirs} is null then {otherwise} "
        f"when {ours} is null then 1 when {theirs} is null then -1 "
        f"when {ours} {first} {theirs} then -1 when {ours} {after} {theirs} then 1 "
        f"else {otherwise} end"
    )
