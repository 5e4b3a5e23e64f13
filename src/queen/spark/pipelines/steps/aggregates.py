"""What is computed of each window: for its keys, filtered, and the best of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from queen.spark.pipelines.steps.dedup import once_per_time, once_per_window
from queen.spark.pipelines.steps.joins import wait_of
from queen.spark.pipelines.steps.top import top_of
from queen.spark.windows.event_time import (
    TIME,
    WINDOW,
    calendar_window,
    event_time,
    exact_interval,
    milliseconds,
    named_column,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from queen.wire.pipelines import Definition, Top

# The window that Spark groups by; the first and last time of a session.
_GROUPED, _FIRST, _LAST = "_grouped", "_first", "_last"


class Aggregation:
    """The aggregates of one definition.

    With `since` and `until` only of windows that began then or later, and have closed by then.
    """

    def __init__(
        self,
        definition: Definition,
        value_of: Callable[[str], Column],
        *,
        grace: timedelta,
        since: datetime | None,
        until: datetime | None,
    ) -> None:
        self._definition = definition
        self._value = value_of
        self._grace = grace
        self._since = since
        self._until = until

    def of(self, rows: DataFrame) -> DataFrame:
        """Return a row for each window and its keys."""
        definition = self._definition
        keys = {f"_key_{at}": self._value(text) for at, text in enumerate(definition.keys.values())}
        is_session = definition.window is not None and definition.window.type == "session"
        if definition.dedup and definition.window is not None:
            if is_session:
                rows = once_per_time(definition, rows, self._value)
            else:
                rows = once_per_window(definition, self._with_window(rows), keys, self._value)
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
            return top_of(rows, top, keys, results, [WINDOW])
        end = event_time(f.col(WINDOW)["end"], _LAST, milliseconds(self._grace))
        bounded = rows.select("*", f.col(WINDOW)["start"].alias(_FIRST), end)
        best = top_of(bounded, top, keys, results, [_FIRST, _LAST])
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
