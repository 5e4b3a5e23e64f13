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
from queen.spark.pipelines.failures import (
    FAILED,
    Trials,
    checks_schema,
    failure_of,
    has_trials,
    with_explicit_casts,
    within_calendar,
)
from queen.spark.pipelines.joins import Joiner, wait_of
from queen.spark.sink.partition_names import partition_name
from queen.spark.windows.event_time import (
    CREATED_AT,
    SEALED,
    TIME,
    WINDOW,
    Windowed,
    calendar_window,
    event_time,
    exact_interval,
    messages_of,
    milliseconds,
    named_column,
    observe,
    timed,
    whole_grace_ms,
    windowed,
)
from queen.wire.pipelines import keeps_late, needs_time

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from queen.wire.pipelines import Definition, Reads, Top

# What orders messages: the first of several that are the same is kept.
_ORDER = ("createdAt", "queue", "partition", "offset")
MESSAGE = ("queue", "partition", "offset", "transactionId", "createdAt")
# The partition of a result, beside its columns.
PARTITION = "_partition"
# The window that Spark groups by; the first and last time of a session.
_GROUPED, _FIRST, _LAST = "_grouped", "_first", "_last"
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
            reads.name: _written_in_time(frames[reads.name], reads, trials, until)
            for reads in definition.reads
        }
    sides = [
        _Side(
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


def _written_in_time(
    df: DataFrame, reads: Reads, trials: Trials, until: datetime | None
) -> DataFrame:
    """Let messages have been written when they happened, and leave out what happens later."""
    if reads.event_time is not None:
        time = trials.value(f"cast({reads.event_time} as timestamp)")
        df = df.withColumn(CREATED_AT, within_calendar(time))
    if until is None:
        return df
    # One without a time belongs to no window, but it may be one to fail on.
    return df.where(f.col(CREATED_AT).isNull() | (f.col(CREATED_AT) < f.lit(until)))


class _Side:
    """One of the reads: what can be computed with, and all of it with what cannot.

    `has_unfit` says that payloads which are not what the schema says are among what cannot;
    otherwise the source sets them aside, and they are only left out.
    """

    def __init__(
        self,
        definition: Definition,
        number: int,
        df: DataFrame,
        trials: Trials,
        *,
        is_fatal: bool,
        has_unfit: bool,
        in_time: bool,
    ) -> None:
        reads = definition.reads[number]
        self.name = reads.name
        everything = df
        # Here, and not in the branch for what is set aside, which reads all of it again.
        is_marker = f.col(SEALED).isNotNull() if SEALED in df.columns else f.lit(False)
        df = observe(df, self.name, rows=f.count_if(~is_marker))
        if checks_schema(definition, number) and not has_unfit:
            df = observe(df, self.name, failed=f.count_if(f.col(CORRUPT).isNotNull()))
            df = _only_messages(df, f.col(CORRUPT).isNull())
        # What was written in time has it there already.
        self.time = trials.value((None if in_time else reads.event_time) or CREATED_AT)
        if reads.event_time is not None:
            self.time = within_calendar(self.time)
        failure = failure_of(definition, number, trials, df, with_unfit=has_unfit)
        self.can_fail = failure is not None
        conditions = [trials.value(condition) for condition in reads.where]
        # Of what fails no time is known, so that it is with the late messages.
        self.all = everything.withColumn(
            FAILED, f.lit(None).cast("string") if failure is None else failure
        )
        for condition in conditions:
            self.all = _only_messages(self.all, f.col(FAILED).isNotNull() | condition)
        self.time_of_all = f.when(f.col(FAILED).isNull(), self.time)
        if failure is not None:
            is_good = failure.isNull()
            if is_fatal:
                is_good = f.when(is_good, True).otherwise(_raise(failure))
            df = _only_messages(df, is_good)
        for condition in conditions:
            df = _only_messages(df, condition)
        self.df = df


def _only_messages(df: DataFrame, condition: Column) -> DataFrame:
    """Keep the messages of which a condition holds. A filter alone would remove markers too."""
    if SEALED not in df.columns:
        return df.where(condition)
    # In this order: of a marker nothing else is asked.
    return df.where(f.when(named_column(SEALED).isNotNull(), True).otherwise(condition))


def _raise(failure: Column) -> Column:
    """Return what fails the query with the name of the message that it fails on."""
    place = [f.lit("message "), f.col("id"), f.lit(" at offset "), f.col("offset")]
    place += [f.lit(" of partition "), f.col("partition"), f.lit(" of queue "), f.col("queue")]
    return f.raise_error(f.concat(*place, f.lit(": "), failure)).cast("boolean")


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

    def compile(self, sides: Sequence[_Side]) -> CompiledPipeline:
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
            rows = self._without_repeats(rows) if definition.dedup else rows
            if self._since is not None:
                rows = rows.where(f.col(TIME) >= f.lit(self._since))
            rows = rows.drop(TIME)
            is_message = _gives_messages(definition)
            first = named_column(sides[0].name)
            partition = first["partition"] if definition.joins else f.col("partition")
            return CompiledPipeline(self._select(rows, partition), aside, is_message)
        keys = [named_column(key).cast("string") for key in definition.keys]
        partition = f.concat_ws("/", *keys) if keys else f.lit(None).cast("string")
        return CompiledPipeline(self._select(self._aggregate(rows), partition), aside)

    # ---- what is set aside ----

    def _set_aside(self, sides: Sequence[_Side]) -> DataFrame:
        frames = [self._aside_of(side) for side in sides]
        return reduce(lambda first, other: first.unionByName(other), frames)

    def _aside_of(self, side: _Side) -> DataFrame:
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

    def _join(self, sides: Sequence[_Side]) -> DataFrame:
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

    # ---- aggregates ----

    def _value(self, text: str) -> Column:
        """Return the value of an expression over a message, or over a pair of joined ones."""
        return f.expr(text) if self._definition.joins else self._trials.value(text)

    def _aggregate(self, rows: DataFrame) -> DataFrame:
        definition = self._definition
        keys = {f"_key_{at}": self._value(text) for at, text in enumerate(definition.keys.values())}
        is_session = definition.window is not None and definition.window.type == "session"
        if definition.dedup and definition.window is not None:
            if is_session:
                rows = self._without_repeats(rows)
            else:
                rows = self._once_per_window(self._with_window(rows), keys)
                keys = {name: f.col(name) for name in keys}
        if definition.window is not None and definition.window.type == "calendar":
            rows = self._with_window(rows)
        window = self._window_of(rows)
        alone = definition.distinct and not definition.aggregates
        # What is given before a window has closed must be computed in one step.
        alone = alone and definition.emit == "closed"
        if alone and len(definition.distinct) == 1 and WINDOW in rows.columns:
            computed = self._count_distinct_in_two_steps(rows, keys)
        else:
            by = [window, *(column.alias(name) for name, column in keys.items())]
            if is_session and not keys:
                # Spark has no sessions of everything; what is the same in all rows will do.
                by.append(f.pmod(f.unix_micros(TIME), f.lit(1)).alias("_all"))
            computed = rows.groupBy(*by).agg(*self._aggregates(), *self._session_bounds())
        return self._finish(computed)

    def _session_bounds(self) -> list[Column]:
        """Return the first and last time of a session, if somebody asks when it was.

        Its window is what Spark groups by: a filter on that is moved to where each row still
        has a session of its own, and would cut sessions instead of choosing among them.
        """
        window, having = self._definition.window, self._definition.having
        if window is None or window.type != "session":
            return []
        if not (having or self._until or self._since):
            return []
        return [f.min(TIME).alias(_FIRST), f.max(TIME).alias(_LAST)]

    def _window_of(self, rows: DataFrame) -> Column:
        window = self._definition.window
        assert window is not None
        if WINDOW in rows.columns:
            return f.col(WINDOW)
        if window.type == "session":
            return f.session_window(TIME, f"{window.gap_ms} milliseconds").alias(WINDOW)
        if window.unit is not None:
            cut = calendar_window(f.col(TIME), window.unit)
            return event_time(cut, WINDOW, milliseconds(self._grace))
        slide_ms = window.slide_ms or window.size_ms
        return f.window(TIME, f"{window.size_ms} milliseconds", f"{slide_ms} milliseconds")

    def _with_window(self, rows: DataFrame) -> DataFrame:
        if WINDOW in rows.columns:
            return rows
        return rows.select("*", self._window_of(rows))

    def _aggregates(self) -> list[Column]:
        definition = self._definition
        return [
            *(f.expr(text).alias(name) for name, text in definition.aggregates.items()),
            *(
                f.size(f.collect_set(self._value(text))).cast("bigint").alias(name)
                for name, text in definition.distinct.items()
            ),
        ]

    def _count_distinct_in_two_steps(
        self, rows: DataFrame, keys: Mapping[str, Column]
    ) -> DataFrame:
        """Count different values without holding all of a group in one row of the state."""
        ((name, text),) = self._definition.distinct.items()
        by = [f.col(WINDOW), *(column.alias(key) for key, column in keys.items())]
        values = rows.groupBy(*by, self._value(text).alias("_value")).agg(f.count("*").alias("_n"))
        return values.groupBy(WINDOW, *keys).agg(f.count("_value").alias(name))

    def _once_per_window(self, rows: DataFrame, keys: Mapping[str, Column]) -> DataFrame:
        """Keep the first of the messages that are the same, in each window."""
        dedup = enumerate(self._definition.dedup)
        same = [self._value(text).alias(f"_same_{at}") for at, text in dedup]
        columns = [column for column in rows.columns if column != WINDOW]
        sides = [side.name for side in self._definition.reads] if self._definition.joins else []
        # Of a side that was to find nothing there is no message.
        sides = [side for side in sides if side in columns]
        first = f.min_by(f.struct(*columns), _order_of(sides)).alias("_row")
        by = [column.alias(name) for name, column in keys.items()]
        return rows.groupBy(WINDOW, *by, *same).agg(first).select(WINDOW, *keys, "_row.*")

    def _without_repeats(self, rows: DataFrame) -> DataFrame:
        """Keep one of the messages that are the same and happened at the same time."""
        names = [f"_same_{at}" for at in range(len(self._definition.dedup))]
        for name, text in zip(names, self._definition.dedup, strict=True):
            rows = rows.withColumn(name, self._value(text))
        return rows.dropDuplicates([*names, TIME]).drop(*names)

    def _finish(self, computed: DataFrame) -> DataFrame:
        """Give keys their names, then filter, and take the top."""
        definition = self._definition
        computed = self._with_computed_window(computed)
        if self._until is not None:
            closed = self._until - wait_of(definition.joins)
            computed = computed.where(f.col(WINDOW)["end"] <= f.lit(closed))
        if self._since is not None:
            computed = computed.where(f.col(WINDOW)["start"] >= f.lit(self._since))
        names = {f"_key_{at}": name for at, name in enumerate(definition.keys)}
        results = [*definition.aggregates, *definition.distinct]
        rows = computed.select(
            _GROUPED,
            WINDOW,
            *(named_column(old).alias(new) for old, new in names.items()),
            *map(named_column, results),
        )
        for condition in definition.having:
            rows = rows.where(f.expr(condition))
        if definition.top is not None:
            rows = self._top_of(rows, definition.top, results)
        hidden = (WINDOW, _GROUPED)
        rest = [named_column(column) for column in rows.columns if column not in hidden]
        return rows.select(
            f.col(WINDOW)["start"].alias("windowStart"),
            f.col(WINDOW)["end"].alias("windowEnd"),
            *rest,
        )

    def _top_of(self, rows: DataFrame, top: Top, results: list[str]) -> DataFrame:
        """Keep the best rows of each window.

        Spark would merge sessions that it groups by again, with those of other keys. So it is
        told only when a session began, and when it ended as the time by which to let go of it.
        """
        window, keys = self._definition.window, list(self._definition.keys)
        rows = rows.withColumn(WINDOW, f.col(_GROUPED))
        if window is None or window.type != "session":
            return _top_of(rows, top, keys, results, [WINDOW])
        end = event_time(f.col(WINDOW)["end"], _LAST, milliseconds(self._grace))
        bounded = rows.select("*", f.col(WINDOW)["start"].alias(_FIRST), end)
        best = _top_of(bounded, top, keys, results, [_FIRST, _LAST])
        bounds = f.struct(f.col(_FIRST).alias("start"), f.col(_LAST).alias("end"))
        return best.withColumn(WINDOW, bounds).drop(_FIRST, _LAST)

    def _with_computed_window(self, computed: DataFrame) -> DataFrame:
        """Keep what Spark grouped by beside the window; for sessions the two are not the same."""
        grouped = computed.withColumn(_GROUPED, f.col(WINDOW))
        if _FIRST not in computed.columns:
            return grouped
        assert self._definition.window is not None
        gap = exact_interval(self._definition.window.gap_ms or 0)
        bounds = f.struct(f.col(_FIRST).alias("start"), (f.col(_LAST) + gap).alias("end"))
        return grouped.withColumn(WINDOW, bounds)

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


def _order_of(sides: Sequence[str]) -> Column:
    """Return what says which of some rows came first: messages, or joined ones."""
    fields = [f"`{side}`.`{field}`" for side in sides for field in _ORDER] or list(_ORDER)
    return f.struct(*(f.expr(field).alias(f"_{at}") for at, field in enumerate(fields)))


def _top_of(
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


def _whole_ms(at: datetime) -> datetime:
    # Spark's watermark has no microseconds.
    return at.replace(microsecond=at.microsecond // 1000 * 1000)
