"""From a definition to DataFrames: the same for a stream and for history.

Nothing here asks whether it works on a stream. A batch with `until` leaves out what a live
query would give only later: it gives the rows that a live query has given when sealed time
reaches that instant, and no others. With `in_time` a message counts as written when it happened.

Keys travel under names of their own (`_key_0`, …) until the last step: a key may be called
like a column of the message that it is computed from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as f

from queen.spark.arrow.columns import CORRUPT, RAW
from queen.spark.pipelines.expressions.casts import with_explicit_casts
from queen.spark.pipelines.expressions.failures import FAILED, checks_schema, has_trials
from queen.spark.pipelines.expressions.trials import Trials
from queen.spark.pipelines.steps.aggregates import Aggregation
from queen.spark.pipelines.steps.dedup import once_per_time
from queen.spark.pipelines.steps.joins import Joiner
from queen.spark.pipelines.steps.sides import Side, written_in_time
from queen.spark.sink.partition_names import partition_name
from queen.spark.windows.event_time import (
    TIME,
    WINDOW,
    Windowed,
    messages_of,
    milliseconds,
    named_column,
    timed,
    whole_grace_ms,
    windowed,
)
from queen.wire.pipelines import keeps_late, needs_time

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from queen.wire.pipelines import Definition

MESSAGE = ("queue", "partition", "offset", "transactionId", "createdAt")
# The partition of a result, beside its columns.
PARTITION = "_partition"
# Of texts that Spark makes; like those that the sink makes.
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}


class CompiledPipeline(NamedTuple):
    """Results, as columns with the names that the definition gives them, and what is set aside."""

    result: DataFrame
    # Messages that came too late, have no time, or cannot be computed with; None without them.
    aside: DataFrame | None
    # Whether a result is a message as it came.
    is_message: bool = False


def needs_raw(definition: Definition) -> bool:
    """Whether messages are passed on, late ones or as results: then as the bytes that came."""
    if definition.kind == "function":
        return False
    return bool(definition.late_to or definition.errors_to) or _gives_raw(definition)


def _gives_messages(definition: Definition) -> bool:
    return not (definition.joins or definition.select or definition.window)


def _gives_raw(definition: Definition) -> bool:
    """Whether results are messages as they came. Tables and files have columns instead."""
    return _gives_messages(definition) and definition.output.queue is not None


def sets_aside(definition: Definition, frames: Mapping[str, DataFrame]) -> bool:
    """Whether a branch of the query is there for messages that are set aside.

    Payloads that do not fit the schema need none as long as they are dead letters: the source finds
    them anyway, and says so.
    """
    if definition.kind == "function":
        return False
    if keeps_late(definition) or definition.on_error == "fail":
        return keeps_late(definition)
    definition = with_explicit_casts(definition, frames)
    trials = Trials(next(iter(frames.values())).sparkSession)
    return any(
        has_trials(definition, side, trials, frames[reads.name])
        or (definition.errors_to is not None and checks_schema(definition, side))
        for side, reads in enumerate(definition.reads)
    )


def compile_definition(
    definition: Definition,
    frames: Mapping[str, DataFrame],
    *,
    until: datetime | None = None,
    since: datetime | None = None,
    in_time: bool = False,
    has_aside: bool = False,
    has_buckets: bool = True,
) -> CompiledPipeline:
    """Return what a definition makes of the DataFrames that its `reads` name.

    With `since` only of windows that began then or later.

    `has_aside` says whether there is a branch for what is set aside. A live query without one fails
    on a message that cannot be computed with; history leaves it out, as the live query has.
    `has_buckets` is of joins: see there.
    """
    definition = with_explicit_casts(definition, frames)
    trials = Trials(next(iter(frames.values())).sparkSession)
    is_live = any(frame.isStreaming for frame in frames.values())
    fails = definition.on_error == "fail"
    if in_time:
        frames = {
            reads.name: written_in_time(frames[reads.name], reads, trials, until)
            for reads in definition.reads
        }
    sides = [
        Side(
            definition,
            number,
            frames[reads.name],
            trials,
            is_fatal=fails or (is_live and not has_aside),
            has_unfit=fails or has_aside,
            in_time=in_time,
        )
        for number, reads in enumerate(definition.reads)
    ]
    compiler = _Compiler(
        definition, until, trials, since=since, has_aside=has_aside, has_buckets=has_buckets
    )
    return compiler.compile(sides)


class _Compiler:
    def __init__(
        self,
        definition: Definition,
        until: datetime | None,
        trials: Trials,
        *,
        since: datetime | None,
        has_aside: bool,
        has_buckets: bool,
    ) -> None:
        self._definition = definition
        self._since = since
        self._trials = trials
        self._has_aside = has_aside
        self._has_buckets = has_buckets
        grace_ms = definition.grace_ms
        if not _cuts_windows(definition):
            grace_ms = whole_grace_ms(grace_ms)
        self._grace = timedelta(milliseconds=grace_ms)
        self._ahead = timedelta(milliseconds=definition.ahead_ms)
        self._until = None if until is None else _whole_ms(until) - self._grace

    def compile(self, sides: Sequence[Side]) -> CompiledPipeline:
        definition = self._definition
        aside = self._set_aside(sides) if self._has_aside else None
        if definition.joins:
            rows = self._join(sides)
        elif _cuts_windows(definition):
            rows = self._without_raw(self._cut(sides[0].df, sides[0].time, sides[0].name).rows)
        elif needs_time(definition):
            rows = self._without_raw(self._time(sides[0].df, sides[0].time, sides[0].name).rows)
        else:
            rows = self._without_raw(messages_of(sides[0].df))
        if definition.window is None:
            if definition.dedup:
                rows = once_per_time(definition, rows, self._value)
            if self._since is not None:
                rows = rows.where(f.col(TIME) >= f.lit(self._since))
            rows = rows.drop(TIME)
            is_message = _gives_messages(definition)
            first = named_column(sides[0].name)
            partition = first["partition"] if definition.joins else f.col("partition")
            return CompiledPipeline(self._select(rows, partition), aside, is_message)
        keys = [named_column(key).cast("string") for key in definition.keys]
        partition = f.concat_ws("/", *keys) if keys else f.lit(None).cast("string")
        return CompiledPipeline(self._select(self._aggregation().of(rows), partition), aside)

    # ---- what is set aside ----

    def _set_aside(self, sides: Sequence[Side]) -> DataFrame:
        frames = [self._aside_of(side) for side in sides]
        return reduce(lambda first, other: first.unionByName(other), frames)

    def _aside_of(self, side: Side) -> DataFrame:
        """Return what is set aside of a side. There is a branch for it even if that is nothing:
        the sources of a checkpoint stay as many as they were."""
        if not needs_time(self._definition):
            aside = messages_of(side.all)
        elif _cuts_windows(self._definition):
            aside = self._cut(side.all, side.time_of_all).late
        else:
            aside = self._time(side.all, side.time_of_all).late
        if not keeps_late(self._definition):
            aside = aside.where(f.col(FAILED).isNotNull() if side.can_fail else f.col("offset") < 0)
        return aside_rows(aside, side.name)

    # ---- time and joins ----

    def _cut(self, df: DataFrame, time: Column, observed: str | None = None) -> Windowed:
        window = self._definition.window
        assert window is not None
        return windowed(
            df,
            window.unit or timedelta(milliseconds=window.size_ms or 0),
            slide=None if window.slide_ms is None else timedelta(milliseconds=window.slide_ms),
            grace=self._grace,
            ahead=self._ahead,
            time=time,
            zone=self._definition.time_zone,
            observed=observed,
        )

    def _time(self, df: DataFrame, time: Column, observed: str | None = None) -> Windowed:
        return timed(
            df, grace=self._grace, ahead=self._ahead, time=time, name=TIME, observed=observed
        )

    def _without_raw(self, rows: DataFrame) -> DataFrame:
        """Take payloads out of rows of which they are no result: they would fill the state."""
        return rows if _gives_raw(self._definition) else rows.drop(RAW)

    def _join(self, sides: Sequence[Side]) -> DataFrame:
        """Join all sides; what is late is so before it is joined."""
        frames = [
            (side.name, self._without_raw(self._time(side.df, side.time, side.name).rows))
            for side in sides
        ]
        grace_ms = milliseconds(self._grace)
        joiner = Joiner(
            self._definition.joins,
            grace_ms,
            self._until,
            self._trials.value,
            has_buckets=self._has_buckets,
        )
        return joiner.join(frames)

    # ---- what is computed ----

    def _value(self, text: str) -> Column:
        """Return the value of an expression over a message, or over a pair of joined ones."""
        return f.expr(text) if self._definition.joins else self._trials.value(text)

    def _aggregation(self) -> Aggregation:
        return Aggregation(
            self._definition, self._value, grace=self._grace, since=self._since, until=self._until
        )

    def _select(self, rows: DataFrame, partition: Column) -> DataFrame:
        """Take the columns that are selected, and the partition: the given one, unless defined."""
        by = self._definition.output.partition_by
        partition = f.expr(by).cast("string") if by else partition
        rows = rows.withColumn(PARTITION, partition_name(partition))
        if not self._definition.select:
            return rows
        is_of_messages = not (self._definition.joins or self._definition.window)
        value = self._trials.rows_of if is_of_messages else f.expr
        selected = [value(text).alias(name) for name, text in self._definition.select.items()]
        return rows.select(*selected, PARTITION)


def _cuts_windows(definition: Definition) -> bool:
    """Whether each row is late, or not, for a window; otherwise it is for its own time."""
    window = definition.window
    return window is not None and window.type != "session" and not definition.joins


def aside_rows(messages: DataFrame, side: str) -> DataFrame:
    """Return messages of any side that are set aside, in columns that are the same for all."""
    window = f.lit(None).cast(_WINDOW_TYPE)
    if WINDOW in messages.columns:
        window = f.when(f.col(FAILED).isNull(), f.col(WINDOW))
    payload = passed_on(messages).alias("payload")
    return messages.select(
        f.lit(side).alias("side"), "id", *MESSAGE, window.alias(WINDOW), FAILED, payload
    )


def passed_on(messages: DataFrame) -> Column:
    """Return the payloads of messages as they came, as texts."""
    if RAW in messages.columns:
        return f.col(RAW)
    if dict(messages.dtypes)["data"] == "string":
        return f.col("data")
    text = f.to_json("data", JSON_OPTIONS)
    return f.coalesce(text, f.col(CORRUPT)) if CORRUPT in messages.columns else text


_WINDOW_TYPE = "struct<start: timestamp, end: timestamp>"


def _whole_ms(at: datetime) -> datetime:
    # Spark's watermark has no microseconds.
    return at.replace(microsecond=at.microsecond // 1000 * 1000)
