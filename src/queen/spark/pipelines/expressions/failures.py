"""Messages on which an expression of a definition fails: found before anything is computed.

An expression may fail on one message of millions: a text that is no number, a time that no
calendar has. Spark then fails the batch, and with it the pipeline, for good. So what is computed of
single messages is tried first, by `TryEval`, which gives null instead of an error; inside a
structure, so that a null that was computed is told from one that stands for an error.

    where, event time, keys, dedup, what is aggregated, what is selected, what is joined by

An expression that only names a column is not tried. After a join what is computed is of a pair of
messages, and after aggregation of many: there an error still fails the pipeline.

A payload that is not what the schema says fails before all of them, unless the definition asks for
`_corrupt`: then it looks after such payloads itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from queen.spark.arrow.columns import CORRUPT, unfit_reason
from queen.spark.pipelines.expressions.trials import VALUE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from queen.spark.pipelines.expressions.trials import Trials
    from queen.wire.pipelines import Definition

# The reason, in a row of a message that has failed.
FAILED = "_failed"
_ASKS_CORRUPT = re.compile(rf"\b{CORRUPT}\b")
_EVENT_TIME = "eventTime"
# The first and the last moment that are used as times.
_CALENDAR = ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999")


def has_trials(definition: Definition, side: int, trials: Trials, df: DataFrame) -> bool:
    """Whether some expression could fail on a message of a side."""
    reads = definition.reads[side]
    return bool(reads.where) or any(
        trials.by_row(text, df) for _, text in _computed(definition, side)
    )


def checks_schema(definition: Definition, side: int) -> bool:
    """Whether payloads that are not what the schema says are set aside."""
    if definition.reads[side].schema is None or definition.kind == "function":
        return False
    return not any(_ASKS_CORRUPT.search(text) for text in _expressions(definition))


def _expressions(definition: Definition) -> Iterator[str]:
    """Yield all expressions over messages, of all sides."""
    for reads in definition.reads:
        yield from reads.where
        yield reads.event_time or ""
    for join in definition.joins:
        yield from (text for pair in join.on for text in pair)
    yield from definition.dedup
    for named in (definition.keys, definition.aggregates, definition.distinct, definition.select):
        yield from named.values()
    yield definition.output.partition_by or ""


def failure_of(
    definition: Definition, side: int, trials: Trials, df: DataFrame, *, with_unfit: bool
) -> Column | None:
    """Return why a message of a side cannot be computed with, null when it can; None when nothing
    could fail on it. `with_unfit` counts payloads that are not what the schema says."""
    reads, failure = definition.reads[side], None
    if with_unfit and reads.schema is not None and checks_schema(definition, side):
        reason = unfit_reason(cast("StructType", StructType.fromDDL(reads.schema)))
        failure = f.when(f.col(CORRUPT).isNotNull(), f.lit(reason))
    for condition in reads.where:
        trial = trials.column(condition)
        failure = _case(failure, trial.isNull(), f.lit(_reason("where", condition)))
        # What is left out is asked nothing else.
        is_in = f.coalesce(trial[VALUE].cast("boolean"), f.lit(False))
        failure = _case(failure, ~is_in, f.lit(None).cast("string"))
    for name, text in _computed(definition, side):
        for trial in trials.by_row(text, df):
            failure = _case(failure, trial.isNull(), f.lit(_reason(name, text)))
            if name == _EVENT_TIME:
                is_far = trial[VALUE].isNotNull() & within_calendar(trial[VALUE]).isNull()
                failure = _case(failure, is_far, f.lit(f"{name} is in no year from 1 to 9999"))
    return None if failure is None else failure.otherwise(f.lit(None).cast("string"))


def _reason(name: str, text: str) -> str:
    return f"{name} cannot be computed: {text}"


def _case(failure: Column | None, condition: Column, value: Column) -> Column:
    return f.when(condition, value) if failure is None else failure.when(condition, value)


def _computed(definition: Definition, side: int) -> Iterator[tuple[str, str]]:
    """Yield what is computed of single messages, with the name that it has in a definition."""
    reads = definition.reads[side]
    if reads.event_time:
        yield _EVENT_TIME, reads.event_time
    if definition.joins:
        yield from (("join on", text) for text in _joined_by(definition, side))
        return
    yield from (("dedup", text) for text in definition.dedup)
    yield from ((f"key {name}", text) for name, text in definition.keys.items())
    yield from ((f"aggregate {name}", text) for name, text in definition.aggregates.items())
    yield from ((f"distinct {name}", text) for name, text in definition.distinct.items())
    if definition.window is None:
        yield from ((f"select {name}", text) for name, text in definition.select.items())
        if definition.output.partition_by:
            yield "partitionBy", definition.output.partition_by


def _joined_by(definition: Definition, side: int) -> list[str]:
    """Return what a side is joined by; of the sides before a later join there are only pairs."""
    if side == 0:
        return [left for left, _ in definition.joins[0].on]
    return [right for _, right in definition.joins[side - 1].on]


def within_calendar(time: Column) -> Column:
    """Return a time, null when it is so far off that nothing could be added to it."""
    first, last = (f.expr(f"timestamp '{moment} UTC'") for moment in _CALENDAR)
    return f.when(time.between(first, last), time)
