"""Which verb holds the expression that Spark refuses.

Spark says what is wrong with an expression, and not where it was written. So once it has refused
a definition, each expression is asked for by itself, over streams without messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from queen.spark.pipelines.expressions.casts import as_pairs
from queen.spark.windows.event_time import WINDOW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from queen.wire.pipelines import Definition


class _Held(NamedTuple):
    """An expression, the verb that it was given to, and what Spark makes of it."""

    verb: str
    text: str
    rows: Callable[[], DataFrame]


def holder_of_error(definition: Definition, frames: Mapping[str, DataFrame]) -> str | None:
    """Return the verb and the expression that Spark refuses; None when it is none by itself."""
    for held in _all_held(definition, frames):
        try:
            check_streaming(held.rows(), "update")
        except PySparkException:
            return f"{held.verb} {held.text!r}"
    return None


def check_streaming(rows: DataFrame, mode: str) -> None:
    """Let Spark say what it cannot do in a stream; by itself it does when it starts one."""
    jvm: Any = rows.sparkSession.sparkContext._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(
        rows._jdf.queryExecution().analyzed(),
        modes.Update() if mode == "update" else modes.Append(),
    )


def _all_held(definition: Definition, frames: Mapping[str, DataFrame]) -> Iterator[_Held]:
    """Yield all expressions, in the order in which they act."""
    for reads in definition.reads:
        side = frames[reads.name]
        yield from (_Held("where", text, _kept(side, text)) for text in reads.where)
        if reads.event_time is not None:
            yield _Held("event_time", reads.event_time, _selected(side, reads.event_time))
    yield from _held_by_joins(definition, frames)
    rows = as_pairs(frames) if definition.joins else frames[definition.reads[0].name]
    yield from (_Held("dedup", text, _selected(rows, text)) for text in definition.dedup)
    for verb, named in (("key", definition.keys), ("distinct", definition.distinct)):
        for name, text in named.items():
            yield _Held(f"{verb} {name}", text, _selected(rows, text))
    for name, text in definition.aggregates.items():
        yield _Held(f"aggregate {name}", text, _aggregated(rows, text))
    if definition.window is not None:
        rows = _results_of(definition, rows)
    yield from (_Held("having", text, _kept(rows, text)) for text in definition.having)
    if definition.top is not None:
        yield _Held("top, by", definition.top.by, _selected(rows, definition.top.by))
    if definition.window is not None:
        rows = _with_bounds(definition, rows)
    for name, text in definition.select.items():
        yield _Held(f"select {name}", text, _selected(rows, text))
    if definition.output.partition_by is not None:
        by = definition.output.partition_by
        yield _Held("to, partition", by, _selected(rows, by))


def _held_by_joins(definition: Definition, frames: Mapping[str, DataFrame]) -> Iterator[_Held]:
    for at, join in enumerate(definition.joins):
        left = frames[definition.reads[0].name] if at == 0 else as_pairs(frames)
        right = frames[definition.reads[at + 1].name]
        for ours, theirs in join.on:
            yield _Held("join, on", ours, _selected(left, ours))
            yield _Held("join, on", theirs, _selected(right, theirs))


def _results_of(definition: Definition, rows: DataFrame) -> DataFrame:
    """Return what aggregates look like, without any."""
    now = f.lit(0).cast("timestamp")
    keys = [f.expr(text).alias(name) for name, text in definition.keys.items()]
    distinct = [f.count(f.expr(text)).alias(name) for name, text in definition.distinct.items()]
    computed = [f.expr(text).alias(name) for name, text in definition.aggregates.items()]
    window = f.struct(now.alias("start"), now.alias("end"))
    return rows.groupBy(*keys).agg(*computed, *distinct).withColumn(WINDOW, window)


def _with_bounds(definition: Definition, results: DataFrame) -> DataFrame:
    """Return results with the names that a selection finds."""
    window = f.col(WINDOW)
    bounds = [window["start"].alias("windowStart"), window["end"].alias("windowEnd")]
    rank = [] if definition.top is None else [f.lit(1).alias("rank")]
    return results.select("*", *bounds, *rank).drop(WINDOW)


def _selected(rows: DataFrame, text: str) -> Callable[[], DataFrame]:
    return lambda: rows.select(f.expr(text))


def _kept(rows: DataFrame, text: str) -> Callable[[], DataFrame]:
    return lambda: rows.where(f.expr(text))


def _aggregated(rows: DataFrame, text: str) -> Callable[[], DataFrame]:
    return lambda: rows.groupBy().agg(f.expr(text))
