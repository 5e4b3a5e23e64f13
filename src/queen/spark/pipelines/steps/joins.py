"""Joins of what a pipeline reads, by keys and within a time.

Each side is one column, a structure under its name, so that columns of two sides never meet.
Beside it stand its time, and the keys by which it is joined next (`_on_0`, …).

Spark compares a row with every row of the same keys that it holds. With few keys and a long
micro-batch that is everything with everything. So time is cut into buckets, and a pair must
also have the bucket in common. A row of the left side is in one bucket. One of the right side
is, as a copy, in each in which a partner may be:

    bucket             0         1         2
    left          │    a    │         │         │
    right         │      r────r       │         │     r is near the end of bucket 0
    within             ◀─────▶

A left row therefore meets each of its partners once, and all of them in one bucket: it is also
right about having none. A right row is not, since its copies do not know of each other. So a
full join, which gives the right rows without a partner too, has no buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from queen.spark.windows.event_time import TIME, event_time, exact_interval, named_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from queen.wire.pipelines import Joined


_BUCKET = "_bucket"
# Wide enough that most rows of the right side are in one bucket only.
_WITHINS_IN_BUCKET = 4
_SHORTEST_BUCKET_MS = 1000


class Joiner:
    """Joins the sides of one definition.

    With `until` it leaves out what a live query would still wait for a partner of. Without
    `has_buckets` it makes the plan of checkpoints that are older than buckets.
    """

    def __init__(
        self,
        joins: Sequence[Joined],
        grace_ms: int,
        until: datetime | None,
        value_of: Callable[[str], Column],
        *,
        has_buckets: bool = True,
    ) -> None:
        self._joins = joins
        # Makes a column of an expression over the messages of one side.
        self._value_of = value_of
        self._grace_ms = grace_ms
        self._until = until
        self._has_buckets = has_buckets

    def join(self, sides: Sequence[tuple[str, DataFrame]]) -> DataFrame:
        """Join all sides, names and rows; the time of a joined row is that of the first side."""
        joins = self._joins
        on = [[left for left, _ in joins[0].on], *([right for _, right in j.on] for j in joins)]
        frames = [
            _as_structure(rows, name, [self._value_of(key) for key in keys])
            for (name, rows), keys in zip(sides, on, strict=True)
        ]
        names = [name for name, _ in sides]
        joined = self._join_side(frames[0], frames[1], names[1], joins[:1])
        for at, (frame, name) in enumerate(zip(frames[2:], names[2:], strict=True), 2):
            # From here on the left side is structures, so its keys are found inside of them.
            keyed = _with_keys(joined, [f.expr(left) for left, _ in joins[at - 1].on])
            joined = self._join_side(keyed, frame, name, joins[:at])
        return joined

    def _join_side(
        self, rows: DataFrame, frame: DataFrame, name: str, joins: Sequence[Joined]
    ) -> DataFrame:
        """Join one more side by the last of `joins`; the others are done."""
        join = joins[-1]
        within = exact_interval(join.within_ms)
        ours, theirs = f.col(f"l.{TIME}"), f.col(f"r.{TIME}")
        condition = theirs.between(ours - within, ours + within) & _have_same_keys(join)
        how = "left" if join.how == "anti" else join.how
        before = [column for column in rows.columns if column not in (TIME, *_key_names(join.on))]
        if self._has_buckets and how != "full":
            rows, frame = _with_bucket(rows, join), _with_near_buckets(frame, join)
            condition = condition & (f.col(f"l.{_BUCKET}") == f.col(f"r.{_BUCKET}"))
        pairs = rows.alias("l").join(frame.alias("r"), condition, how)
        # Of the two times one stays; a full join has rows that only the other side has.
        time = f.coalesce(ours, theirs) if how == "full" else ours
        joined = pairs.select(
            *(f.col(f"l.`{column}`") for column in before),
            f.col(f"r.`{name}`"),
            event_time(time, TIME, self._grace_ms),
        )
        has_ours = reduce(or_, (named_column(column).isNotNull() for column in before))
        if join.how == "anti":
            joined = joined.where(named_column(name).isNull())
        decided = self._keep_decided(joined, has_ours & named_column(name).isNotNull(), joins)
        return decided.drop(name) if join.how == "anti" else decided

    def _keep_decided(
        self, joined: DataFrame, is_pair: Column, joins: Sequence[Joined]
    ) -> DataFrame:
        """Keep what a live query has given: pairs, and rows that it no longer waits for."""
        if self._until is None or joins[-1].how == "inner":
            return joined
        return joined.where(is_pair | (f.col(TIME) <= f.lit(self._until - wait_of(joins))))


def wait_of(joins: Sequence[Joined]) -> timedelta:
    """Return how long after its time a row that finds no partner is let go of.

    `within` is inclusive, and Spark's time has no less than a millisecond. What comes out of
    a join is behind by its wait, so that the waits of several add up.
    """
    return timedelta(milliseconds=sum(join.within_ms + 1 for join in joins))


def _with_bucket(rows: DataFrame, join: Joined) -> DataFrame:
    """Give each row the bucket that its time is in."""
    return rows.withColumn(_BUCKET, _bucket_of(f.col(TIME), join))


def _with_near_buckets(rows: DataFrame, join: Joined) -> DataFrame:
    """Repeat each row for every bucket in which there may be a row `within` of it."""
    within = f.expr(f"interval {join.within_ms} milliseconds")
    first, last = (_bucket_of(f.col(TIME) + far, join) for far in (-within, within))
    return rows.withColumn(_BUCKET, f.explode(f.sequence(first, last)))


def _bucket_of(time: Column, join: Joined) -> Column:
    """Return the number of a bucket. It never falls while time goes on; no more is needed."""
    length_ms = max(join.within_ms * _WITHINS_IN_BUCKET, _SHORTEST_BUCKET_MS)
    return f.call_function("div", f.unix_micros(time), f.lit(length_ms * 1000))


def _key_names(on: Sequence[Any]) -> list[str]:
    return [f"_on_{at}" for at in range(len(on))]


def _have_same_keys(join: Joined) -> Column:
    """Return what says that two rows have the same keys; a null is not the same as a null."""
    keys = _key_names(join.on)
    are_same = reduce(and_, (f.col(f"l.{key}") == f.col(f"r.{key}") for key in keys))
    if join.how != "full":
        return are_same
    # A full join of streams pairs nulls, and one of batches does not. Here they differ by side.
    return are_same & (_mark_of_null("l", keys, 1) == _mark_of_null("r", keys, 2))


def _mark_of_null(side: str, keys: Sequence[str], mark: int) -> Column:
    has_null = reduce(or_, (f.col(f"{side}.{key}").isNull() for key in keys))
    return f.when(has_null, f.lit(mark)).otherwise(f.lit(0))


def _with_keys(rows: DataFrame, values: Sequence[Column]) -> DataFrame:
    for key, value in zip(_key_names(values), values, strict=True):
        rows = rows.withColumn(key, value)
    return rows


def _as_structure(rows: DataFrame, name: str, keys: Sequence[Column]) -> DataFrame:
    """Put a message into one column; its time and what it is joined by stay outside."""
    fields = [named_column(column) for column in rows.columns if column != TIME]
    keyed = _with_keys(rows, keys)
    return keyed.select(f.struct(*fields).alias(name), TIME, *_key_names(keys))
