"""Windows that close on sealed time, and lateness that is a property of the row.

Spark's own watermark follows the largest time it has seen. So an idle queue never closes a
window, one producer with a fast clock closes everybody's, and which late row is dropped
depends on where micro-batches were cut. Here the watermark follows the sealed time instead:

    sealed         the source says in each micro-batch, in one marker row, up to when its
                   queues are complete; the watermark is that minus the grace
    late           a row is late for a window when it was written at or after the window's
                   end plus the grace. Nothing but the row decides this

A row that is not late has `createdAt < end + grace`. Its micro-batch began at or before
`createdAt`, so the watermark in that batch is still before the window's end, and Spark keeps
it. Therefore results do not depend on how micro-batches were cut, an idle queue closes on
time, a wrong clock harms nobody, and the same functions over a batch give the same rows.

A DataFrame that is not a stream passes through the same functions; it has no markers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from queen.spark.launch.settings import check_classic, zone_settings
from queen.wire.pipelines import is_zone

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SEALED = "sealed"
CREATED_AT = "createdAt"
WINDOW = "window"
# Of Spark, and not public: a column that has this key is the event time of its DataFrame.
_DELAY = "spark.watermarkDelayMs"
TIME = "_time"

Duration = int | float | timedelta
# How far ahead of the broker's clock a message may say that it happened, unless told.
DAY = timedelta(days=1)
# What a calendar is cut into; weeks begin on Monday.
UNITS = ("day", "week", "month")


class Windowed(NamedTuple):
    """Rows with the window that they belong to, and those that came too late for theirs."""

    rows: DataFrame
    late: DataFrame


def windowed(
    df: DataFrame,
    size: Duration | str,
    *,
    slide: Duration | None = None,
    grace: Duration = 0,
    ahead: Duration = DAY,
    time: str | Column = CREATED_AT,
    zone: str = "UTC",
    observed: str | None = None,
) -> Windowed:
    """Give each row its window, in a column `window`; durations are seconds.

        events = spark.readStream.format("queen").option("markers", "true")...load()
        rows, late = windowed(events, 60, time="data.ts", grace=30)
        rows.groupBy("window", "partition").count()

    With `"day"`, `"week"` (from Monday) or `"month"` for a size, windows are those of the calendar
    in a `zone` like `Europe/Berlin`.

    A window is `[start, end)`. It closes when sealed time reaches its end plus `grace`. Rows
    written later are in `late`, with their window, and nowhere else. With `slide` a row
    belongs to several windows, and may be late for some of them. A row without a time belongs
    to no window: it is in `late` with a null window. So is, with its window, one whose time is
    more than `ahead` after it was written: its clock is wrong, and its window would stay open
    until then.

    `late` has no watermark: write it in a query of its own, or union it to the result. Filter
    after this, not before: a filter would take the markers away. With `observed` the progress
    of the query counts them: `rows`, those without a time (`untimed`), and `late` ones.
    """
    from pyspark.sql import functions as f

    check_classic(df.sparkSession, "windows on sealed time")
    if not is_zone(zone):
        raise ValueError(f"windowed, zone: {zone!r} is not known; one is like 'Europe/Berlin'")
    grace_ms = milliseconds(grace)
    cut = _cut_by_calendar(df, size, slide, zone) if isinstance(size, str) else _cut(size, slide)
    is_late = f.col(WINDOW)["end"] + exact_interval(grace_ms) <= f.col(CREATED_AT)
    is_late = is_late | _is_ahead(f.col(TIME), ahead)
    with_time = df.withColumn(TIME, _time_column(time))
    rows = on_sealed_time(with_time, TIME, grace_ms)
    rows = observe(rows, observed, rows=f.count("*"), untimed=f.count_if(f.col(TIME).isNull()))
    with cut.settings():
        rows = rows.select("*", cut.window_of(f.col(TIME), grace_ms))
        late = cut.keep_untimed(messages_of(with_time))
    rows = observe(rows, observed, late=f.count_if(is_late))
    return Windowed(
        rows.where(~is_late).drop(TIME),
        late.where(is_late | f.col(WINDOW).isNull()).drop(TIME),
    )


def timed(
    df: DataFrame,
    *,
    grace: Duration = 0,
    ahead: Duration = DAY,
    time: str | Column = CREATED_AT,
    name: str = "time",
    observed: str | None = None,
) -> Windowed:
    """Give each row its time in a column `name`, for joins, sessions and dedup.

    Without a window a row is late when it was written at or after its own time plus `grace`.
    A session then never grows after it has closed, and a join never misses a partner: what
    such an operator has let go of is older than every row that is not late. One whose time is
    more than `ahead` after it was written is set aside like a late one. A grace of 0 counts
    as a millisecond: otherwise a row whose time is when it was written would be late.
    """
    from pyspark.sql import functions as f

    check_classic(df.sparkSession, "windows on sealed time")
    grace_ms = whole_grace_ms(milliseconds(grace))
    is_late = f.col(name) + exact_interval(grace_ms) <= f.col(CREATED_AT)
    is_late = is_late | _is_ahead(f.col(name), ahead)
    with_time = df.withColumn(name, _time_column(time))
    is_aside = is_late | f.col(name).isNull()
    rows = on_sealed_time(with_time, name, grace_ms)
    rows = observe(rows, observed, rows=f.count("*"), late=f.count_if(is_aside))
    late = messages_of(with_time).where(is_aside)
    return Windowed(rows.where(~is_late), late)


def on_sealed_time(df: DataFrame, time: str, grace_ms: int) -> DataFrame:
    """Let the watermark follow the markers, and take them out.

    The optimizer moves any filter that does not name the watermark column below the watermark,
    where it removes the markers, and windows would silently never close. So every column is
    made to depend on `sealed`: whatever is filtered later stays above.
    """
    from pyspark.sql import functions as f

    if not df.isStreaming:
        return messages_of(df)
    _check_markers(df)
    is_message = f.col(SEALED).isNull()
    names = [name for name in df.columns if name != SEALED]
    guarded = [f.when(is_message, named_column(name)).alias(name) for name in names]
    tagged = [
        event_time(named_column(name), name, grace_ms) if name == time else named_column(name)
        for name in names
    ]
    return (
        df.withWatermark(SEALED, f"{grace_ms} milliseconds")
        .select(*guarded, SEALED)
        .where(is_message)
        .select(*tagged)
    )


def messages_of(df: DataFrame) -> DataFrame:
    """Return the rows that are messages: all but the markers."""
    if SEALED not in df.columns:
        return df
    return df.where(named_column(SEALED).isNull()).drop(SEALED)


def milliseconds(duration: Duration) -> int:
    """Return seconds, or a timedelta, as whole milliseconds: Spark's watermark knows no less.

    >>> milliseconds(1.5), milliseconds(timedelta(minutes=1))
    (1500, 60000)
    """
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ValueError(
            f"a duration is 0 or more, as a number of seconds or a timedelta, and not {duration!r}"
        )
    return round(seconds * 1000)


def whole_grace_ms(grace_ms: int) -> int:
    """Return the grace of an operator that goes by the times of rows: a millisecond at least."""
    return max(grace_ms, 1)


def event_time(column: Column, name: str, grace_ms: int) -> Column:
    """Return a column that Spark takes for the event time of its DataFrame."""
    return column.alias(name, metadata={_DELAY: grace_ms})


def named_column(name: str) -> Column:
    """Return the column of a name, in which there may be dots and backticks."""
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")


def observe(df: DataFrame, name: str | None, **counts: Column) -> DataFrame:
    """Let the progress of a stream count something: `late` of `orders` is `late_orders`."""
    if name is None or not df.isStreaming:
        return df
    (first, *rest) = (count.alias(what) for what, count in counts.items())
    return df.observe(f"{'_'.join(counts)}_of_{name}", first, *rest)


class _Cut(NamedTuple):
    """A way to cut time into windows."""

    # From a time, and the grace, to the column of its windows.
    window_of: Callable[[Column, int], Column]
    # Gives rows their windows; those without a time are kept, once, with a null window.
    keep_untimed: Callable[[DataFrame], DataFrame]
    # Of the session while columns are made.
    settings: Callable[[], AbstractContextManager[None]] = nullcontext


def _cut(size: Duration, slide: Duration | None) -> _Cut:
    from pyspark.sql import functions as f

    size_ms, step_ms = _size_and_step_ms(size, slide)

    def window_of(time: Column, grace_ms: int = 0) -> Column:
        # Spark itself takes such a window for an event time.
        return f.window(time, f"{size_ms} milliseconds", f"{step_ms} milliseconds").alias(WINDOW)

    def keep_untimed(df: DataFrame) -> DataFrame:
        has_time = named_column(TIME).isNotNull()
        stand_in = f.coalesce(named_column(TIME), named_column(CREATED_AT))
        cut = df.withColumn(WINDOW, window_of(stand_in))
        is_newest = f.col(WINDOW)["start"] + exact_interval(step_ms) > named_column(CREATED_AT)
        return cut.where(has_time | is_newest).withColumn(WINDOW, f.when(has_time, f.col(WINDOW)))

    return _Cut(window_of, keep_untimed)


def _cut_by_calendar(df: DataFrame, unit: str, slide: Duration | None, zone: str) -> _Cut:
    if unit not in UNITS:
        raise ValueError(f"a window is so many seconds long, or one of {', '.join(UNITS)}")
    if slide is not None:
        raise ValueError(f"windows of one {unit} follow one another: they have no slide")

    def window_of(time: Column, grace_ms: int) -> Column:
        return event_time(calendar_window(time, unit), WINDOW, grace_ms)

    def keep_untimed(df: DataFrame) -> DataFrame:
        return df.withColumn(WINDOW, calendar_window(named_column(TIME), unit))

    return _Cut(window_of, keep_untimed, lambda: zone_settings(df.sparkSession, zone))


def calendar_window(time: Column, unit: str) -> Column:
    """Return the day, week or month of a time, null without one, in the zone of the session.

    Its bounds are made of dates: a day begins when its date does, also where clocks skip
    midnight, and is as long as it is until the next one begins.
    """
    from pyspark.sql import functions as f

    def following(period: Column) -> Column:
        if unit == "month":
            return f.add_months(period, 1)
        return f.date_add(period, 7 if unit == "week" else 1)

    time = time.cast("timestamp")
    day = time.cast("date")
    period = day if unit == "day" else f.trunc(day, unit).cast("date")
    # Where clocks go back over midnight, it is the day before once more.
    has_ended = time >= following(period).cast("timestamp")
    period = f.when(has_ended, following(period)).otherwise(period)
    start, end = period.cast("timestamp"), following(period).cast("timestamp")
    return f.when(time.isNotNull(), f.struct(start.alias("start"), end.alias("end")))


def _check_markers(df: DataFrame) -> None:
    if SEALED not in df.columns:
        raise ValueError(
            f"the stream has no column {SEALED!r}: read it with .option('markers', 'true'), "
            "and keep the column until here"
        )


def _is_ahead(time: Column, ahead: Duration) -> Column:
    from pyspark.sql import functions as f

    return time > f.col(CREATED_AT) + exact_interval(milliseconds(ahead))


def _time_column(time: str | Column) -> Column:
    from pyspark.sql import functions as f

    return f.expr(time) if isinstance(time, str) else time


def exact_interval(duration_ms: int) -> Column:
    """Return a duration that can be added to a time, as a literal.

    To what `interval 86400000 milliseconds` is in SQL Spark adds a day of the session's calendar,
    which has 23 or 25 hours when clocks are changed. An interval of microseconds has no days.
    """
    from pyspark import SparkContext
    from pyspark.sql import Column

    context = SparkContext._active_spark_context
    assert context is not None
    jvm: Any = context._jvm
    interval = jvm.org.apache.spark.unsafe.types.CalendarInterval(0, 0, duration_ms * 1000)
    return Column(jvm.org.apache.spark.sql.functions.lit(interval))


def _size_and_step_ms(size: Duration, slide: Duration | None) -> tuple[int, int]:
    size_ms = milliseconds(size)
    step_ms = size_ms if slide is None else milliseconds(slide)
    if not 0 < step_ms <= size_ms:
        given = f"{size!r}" if slide is None else f"{size!r} with a slide of {slide!r}"
        raise ValueError(
            "a window is longer than 0, and a slide longer than 0 and not longer than the window: "
            f"{given}"
        )
    return size_ms, step_ms
