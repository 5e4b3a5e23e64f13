"""From a definition to DataFrames: the same for a stream and for history.

Nothing here asks whether it works on a stream, except where a live query would not have said
something yet: with `until` a batch gives the rows that a live query has given when sealed
time has reached that instant, and no others.

Keys travel under names of their own (`_key_0`, …) until the last step: a key may be called
like a column of the message that it is computed from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as f

from queen.spark.pipelines.partition_names import partition_name
from queen.spark.windows.event_time import (
    SEALED,
    WINDOW,
    Windowed,
    event_time,
    messages_of,
    timed,
    windowed,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from queen.wire.pipelines import Definition, Joined, Reads, Top

TIME = "_time"
# What orders messages: the first of several that are the same is kept.
_ORDER = ("createdAt", "queue", "partition", "offset")
_MESSAGE = ("queue", "partition", "offset", "transactionId", "createdAt")
# The partition of a result, beside its columns.
PARTITION = "_partition"
# Of texts that Spark makes; like those that the sink makes.
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}


class Compiled(NamedTuple):
    """Results, as columns with the names that the definition gives them, and late rows."""

    result: DataFrame
    # Messages that came too late, or have no time; None when nothing can be late.
    late: DataFrame | None
    # A result is a message as it came.
    is_message: bool = False


def needs_time(definition: Definition) -> bool:
    """Whether anything waits for time to pass: then the source must say how far it is."""
    return bool(definition.joins or definition.window or definition.dedup)


def compiled(
    definition: Definition, frames: Mapping[str, DataFrame], *, until: datetime | None = None
) -> Compiled:
    """Return what a definition makes of the DataFrames that its `reads` name."""
    sides = [_Side(reads, frames[reads.name]) for reads in definition.reads]
    return _Compiler(definition, until).compile(sides)


class _Side:
    """One of the reads, with its filters."""

    def __init__(self, reads: Reads, df: DataFrame) -> None:
        self.name = reads.name
        self.time = reads.event_time or "createdAt"
        # A filter alone would remove the markers too.
        keeps_markers = f"{SEALED} is not null or " if SEALED in df.columns else ""
        for condition in reads.where:
            df = df.where(f.expr(f"{keeps_markers}({condition})"))
        self.df = df


class _Compiler:
    def __init__(self, definition: Definition, until: datetime | None) -> None:
        self._definition = definition
        self._grace = timedelta(milliseconds=definition.grace_ms)
        self._until = None if until is None else _whole_ms(until) - self._grace

    def compile(self, sides: Sequence[_Side]) -> Compiled:
        definition = self._definition
        if definition.joins:
            rows, late = self._joined(sides)
        elif definition.window is not None and definition.window.type != "session":
            rows, late = self._cut(sides[0])
        elif needs_time(definition):
            rows, late = self._timed(sides[0])
        else:
            rows, late = messages_of(sides[0].df), None
        if definition.window is None:
            rows = self._without_repeats(rows) if definition.dedup else rows
            rows = rows.drop(TIME)
            is_message = not definition.joins and not definition.select
            place = _named(sides[0].name)["partition"] if definition.joins else f.col("partition")
            return Compiled(self._selected(rows, place), late, is_message)
        keys = [_named(key).cast("string") for key in definition.keys]
        place = f.concat_ws("/", *keys) if keys else f.lit(None).cast("string")
        return Compiled(self._selected(self._computed(rows), place), late)

    # ---- time ----

    def _cut(self, side: _Side) -> tuple[DataFrame, DataFrame]:
        window = self._definition.window
        assert window is not None
        assert window.size_ms is not None
        slide = None if window.slide_ms is None else timedelta(milliseconds=window.slide_ms)
        size = timedelta(milliseconds=window.size_ms)
        both = windowed(
            side.df, size, slide=slide, grace=self._grace, time=side.time, observed=side.name
        )
        return both.rows, late_rows(both.late, side.name)

    def _timed(self, side: _Side) -> tuple[DataFrame, DataFrame]:
        both = self._in_time(side)
        return both.rows, late_rows(both.late, side.name)

    def _in_time(self, side: _Side) -> Windowed:
        return timed(side.df, grace=self._grace, time=side.time, name=TIME, observed=side.name)

    # ---- joins ----

    def _joined(self, sides: Sequence[_Side]) -> tuple[DataFrame, DataFrame]:
        """Join all sides, each as one structure under its name; the time is the first one's."""
        both = [self._in_time(side) for side in sides]
        joins = self._definition.joins
        on = [[left for left, _ in joins[0].on], *([right for _, right in one.on] for one in joins)]
        frames = [
            _as_structure(one.rows, side.name, keys)
            for one, side, keys in zip(both, sides, on, strict=True)
        ]
        rows = self._join(frames[0], frames[1], sides[1].name, joins[:1])
        for at, (frame, side) in enumerate(zip(frames[2:], sides[2:], strict=True), 2):
            # From here on the left side is structures, so its keys are found inside of them.
            keyed = _with_keys(rows, [left for left, _ in joins[at - 1].on])
            rows = self._join(keyed, frame, side.name, joins[:at])
        late = [late_rows(one.late, side.name) for one, side in zip(both, sides, strict=True)]
        return rows, reduce(lambda one, other: one.unionByName(other), late)

    def _join(
        self, rows: DataFrame, frame: DataFrame, name: str, joins: Sequence[Joined]
    ) -> DataFrame:
        """Join one more side by the last of `joins`; the others are done."""
        join = joins[-1]
        within = f.expr(f"interval {join.within_ms} milliseconds")
        ours, theirs = f.col(f"l.{TIME}"), f.col(f"r.{TIME}")
        condition = theirs.between(ours - within, ours + within) & _same_keys(join)
        how = "left" if join.how == "anti" else join.how
        joined = rows.alias("l").join(frame.alias("r"), condition, how)
        kept = [one for one in rows.columns if one != TIME and one not in _keys_of(join.on)]
        # Of the two times one stays; a full join has rows that only the other side has.
        time = f.coalesce(ours, theirs) if how == "full" else ours
        after = joined.select(
            *(f.col(f"l.`{one}`") for one in kept),
            f.col(f"r.`{name}`"),
            event_time(time, TIME, self._definition.grace_ms),
        )
        has_ours = reduce(lambda one, other: one | other, (_named(one).isNotNull() for one in kept))
        if join.how == "anti":
            after = after.where(_named(name).isNull())
        decided = self._decided(after, has_ours & _named(name).isNotNull(), joins)
        return decided.drop(name) if join.how == "anti" else decided

    def _decided(self, joined: DataFrame, is_pair: Column, joins: Sequence[Joined]) -> DataFrame:
        """Leave out what a live query would still wait for a partner of."""
        if self._until is None or joins[-1].how == "inner":
            return joined
        return joined.where(is_pair | (f.col(TIME) <= f.lit(self._until - _wait_of(joins))))

    # ---- aggregates ----

    def _computed(self, rows: DataFrame) -> DataFrame:
        definition = self._definition
        keys = {f"_key_{at}": f.expr(text) for at, text in enumerate(definition.keys.values())}
        if definition.dedup and definition.window is not None:
            is_session = definition.window.type == "session"
            if is_session:
                rows = self._without_repeats(rows)
            else:
                rows = self._once_per_window(self._with_window(rows), keys)
                keys = {name: f.col(name) for name in keys}
        of_window = self._window_of(rows)
        alone = definition.distinct and not definition.aggregates
        if alone and len(definition.distinct) == 1 and WINDOW in rows.columns:
            computed = self._distinct_in_two_stages(rows, keys)
        else:
            by = [of_window, *(column.alias(name) for name, column in keys.items())]
            computed = rows.groupBy(*by).agg(*self._aggregates())
        return self._finished(computed)

    def _window_of(self, rows: DataFrame) -> Column:
        window = self._definition.window
        assert window is not None
        if WINDOW in rows.columns:
            return f.col(WINDOW)
        if window.type == "session":
            return f.session_window(TIME, f"{window.gap_ms} milliseconds").alias(WINDOW)
        slide_ms = window.slide_ms or window.size_ms
        return f.window(TIME, f"{window.size_ms} milliseconds", f"{slide_ms} milliseconds")

    def _with_window(self, rows: DataFrame) -> DataFrame:
        if WINDOW in rows.columns:
            return rows
        return rows.withColumn(WINDOW, self._window_of(rows))

    def _aggregates(self) -> list[Column]:
        definition = self._definition
        return [
            *(f.expr(text).alias(name) for name, text in definition.aggregates.items()),
            *(
                f.size(f.collect_set(f.expr(text))).cast("bigint").alias(name)
                for name, text in definition.distinct.items()
            ),
        ]

    def _distinct_in_two_stages(self, rows: DataFrame, keys: Mapping[str, Column]) -> DataFrame:
        """Count different values without holding all of a group in one row of the state."""
        ((name, text),) = self._definition.distinct.items()
        by = [f.col(WINDOW), *(column.alias(key) for key, column in keys.items())]
        values = rows.groupBy(*by, f.expr(text).alias("_value")).agg(f.count("*").alias("_n"))
        return values.groupBy(WINDOW, *keys).agg(f.count("_value").alias(name))

    def _once_per_window(self, rows: DataFrame, keys: Mapping[str, Column]) -> DataFrame:
        """Keep, of the messages that are the same, the first one in each window."""
        same = [f.expr(text).alias(f"_same_{at}") for at, text in enumerate(self._definition.dedup)]
        columns = [one for one in rows.columns if one != WINDOW]
        sides = [side.name for side in self._definition.reads] if self._definition.joins else []
        first = f.min_by(f.struct(*columns), _order_of(sides)).alias("_row")
        by = [column.alias(name) for name, column in keys.items()]
        return rows.groupBy(WINDOW, *by, *same).agg(first).select(WINDOW, *keys, "_row.*")

    def _without_repeats(self, rows: DataFrame) -> DataFrame:
        """Keep one of the messages that are the same and happened at the same time."""
        names = [f"_same_{at}" for at in range(len(self._definition.dedup))]
        for name, text in zip(names, self._definition.dedup, strict=True):
            rows = rows.withColumn(name, f.expr(text))
        return rows.dropDuplicates([*names, TIME]).drop(*names)

    def _finished(self, computed: DataFrame) -> DataFrame:
        """Give keys their names, then filter, and take the top."""
        definition = self._definition
        if self._until is not None:
            closed = self._until - _wait_of(definition.joins)
            computed = computed.where(f.col(WINDOW)["end"] <= f.lit(closed))
        names = {f"_key_{at}": name for at, name in enumerate(definition.keys)}
        results = [*definition.aggregates, *definition.distinct]
        rows = computed.select(
            WINDOW, *(_named(old).alias(new) for old, new in names.items()), *map(_named, results)
        )
        for condition in definition.having:
            rows = rows.where(f.expr(condition))
        if definition.top is not None:
            rows = _top_of(rows, definition.top, list(definition.keys), results)
        rest = [_named(one) for one in rows.columns if one != WINDOW]
        return rows.select(
            f.col(WINDOW)["start"].alias("windowStart"),
            f.col(WINDOW)["end"].alias("windowEnd"),
            *rest,
        )

    def _selected(self, rows: DataFrame, place: Column) -> DataFrame:
        wanted, by = self._definition.select, self._definition.output.partition_by
        place = f.expr(by).cast("string") if by else place
        rows = rows.withColumn(PARTITION, partition_name(place))
        if not wanted:
            return rows
        chosen = [f.expr(text).alias(name) for name, text in wanted.items()]
        return rows.select(*chosen, PARTITION)


def late_rows(late: DataFrame, side: str) -> DataFrame:
    """Return late messages of any side in columns that are the same for all."""
    has_window = WINDOW in late.columns
    window = f.col(WINDOW) if has_window else f.lit(None).cast(_WINDOW_TYPE)
    is_text = dict(late.dtypes)["data"] == "string"
    payload = f.col("data") if is_text else f.to_json("data", JSON_OPTIONS)
    if "_corrupt" in late.columns:
        payload = f.coalesce(payload, f.col("_corrupt"))
    return late.select(
        f.lit(side).alias("side"), *_MESSAGE, window.alias(WINDOW), payload.alias("payload")
    )


_WINDOW_TYPE = "struct<start: timestamp, end: timestamp>"


def _keys_of(on: Sequence[Any]) -> list[str]:
    return [f"_on_{at}" for at in range(len(on))]


def _same_keys(join: Joined) -> Column:
    """Return what says that two rows have the same keys; a null is not the same as a null."""
    keys = _keys_of(join.on)
    same = reduce(
        lambda one, other: one & other, (f.col(f"l.{key}") == f.col(f"r.{key}") for key in keys)
    )
    if join.how != "full":
        return same
    # A full join of streams pairs nulls, other than one of batches. Here they differ by side.
    return same & (_with_null("l", keys, 1) == _with_null("r", keys, 2))


def _with_null(side: str, keys: Sequence[str], mark: int) -> Column:
    has_null = reduce(
        lambda one, other: one | other, (f.col(f"{side}.{key}").isNull() for key in keys)
    )
    return f.when(has_null, f.lit(mark)).otherwise(f.lit(0))


def _wait_of(joins: Sequence[Joined]) -> timedelta:
    """Return how long after its time a row that finds no partner is let go of.

    `within` is inclusive, and Spark's time has no less than a millisecond. What comes out of
    a join is behind by its wait, so that the waits of several add up.
    """
    return timedelta(milliseconds=sum(join.within_ms + 1 for join in joins))


def _with_keys(rows: DataFrame, expressions: Sequence[str]) -> DataFrame:
    for key, text in zip(_keys_of(expressions), expressions, strict=True):
        rows = rows.withColumn(key, f.expr(text))
    return rows


def _as_structure(rows: DataFrame, name: str, keys: Sequence[str]) -> DataFrame:
    """Put a message into one column; its time and what it is joined by stay outside."""
    inside = [_named(one) for one in rows.columns if one != TIME]
    keyed = _with_keys(rows, keys)
    return keyed.select(f.struct(*inside).alias(name), TIME, *_keys_of(keys))


def _order_of(sides: Sequence[str]) -> Column:
    """Return what says which of some rows came first: messages, or joined ones."""
    fields = [f"`{side}`.`{one}`" for side in sides for one in _ORDER] or list(_ORDER)
    return f.struct(*(f.expr(one).alias(f"_{at}") for at, one in enumerate(fields)))


def _top_of(rows: DataFrame, top: Top, keys: list[str], results: list[str]) -> DataFrame:
    """Keep the rows with the most of something in each window; equal ones by their keys."""
    columns = [*keys, *results]
    row = f.struct(f.expr(top.by).alias("_by"), *map(_named, columns))
    rest = [key for key in keys if key not in top.per]
    compare = "0"
    for key in reversed(rest):
        compare = _comparing(key, compare, "<")
    order = _comparing("_by", compare, ">")
    listed = rows.groupBy(WINDOW, *map(_named, top.per)).agg(f.collect_list(row).alias("_rows"))
    best = f.expr(f"slice(array_sort(_rows, (l, r) -> {order}), 1, {top.count})")
    ranked = listed.select(WINDOW, f.posexplode(best).alias("_at", "_row"))
    return ranked.select(
        WINDOW,
        (f.col("_at") + 1).alias("rank"),
        *(f.col(f"_row.`{one}`").alias(one) for one in columns),
    )


def _comparing(field: str, otherwise: str, first: str) -> str:
    """Return SQL that orders `l` and `r` by a field, nulls last."""
    ours, theirs = f"l.`{field}`", f"r.`{field}`"
    after = "<" if first == ">" else ">"
    return (
        f"case when {ours} is null and {theirs} is null then {otherwise} "
        f"when {ours} is null then 1 when {theirs} is null then -1 "
        f"when {ours} {first} {theirs} then -1 when {ours} {after} {theirs} then 1 "
        f"else {otherwise} end"
    )


def _named(name: str) -> Column:
    return f.col("`" + name.replace("`", "``") + "`")


def _whole_ms(at: datetime) -> datetime:
    # Spark's watermark has no microseconds.
    return at.replace(microsecond=at.microsecond // 1000 * 1000)
