"""What a stream computes, when Spark runs it: the verbs that make it a pipeline.

    totals = (
        queen.stream("orders-per-minute")
        .sources("orders")
        .schema("user string, amount double, ts timestamp")
        .event_time("data.ts").key("data.user")
        .tumbling_time(60).grace_period(30)
        .aggregate(total="sum(data.amount)", n="count(*)")
        .late_to("late-orders")
        .to("totals")
    )
    await totals.define()

Expressions are Spark SQL over the columns of a message: `queue`, `partition`, `offset`,
`createdAt` and `data`. After a join they are found under the name of each side. The order in
which verbs are called says nothing; `queen.wire.pipelines` shows in which they act.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from queen.client.durations import Seconds, told_ms
from queen.client.streams.verbs import (
    check_leased,
    check_output,
    check_verbs,
    check_windows,
    told_count,
    told_expressions,
    told_name,
    told_names,
    told_pairs,
    told_zone,
)
from queen.errors import BadRequest
from queen.extras import require

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from queen.client.queen import Queen
    from queen.spark.pipelines.run import Running

Self = TypeVar("Self", bound="PipelineVerbs")
Json = dict[str, Any]
On = str | Sequence[str] | Mapping[str, str]

PATH = "/api/v1/pipelines"
_PATH_END = re.compile(r"[^.]+$")
_NOT_IN_NAMES = re.compile(r"\W+")
_WINDOWS = {
    "window_duration_ms": "sizeMs",
    "window_slide_ms": "slideMs",
    "window_gap_ms": "gapMs",
    "window_unit": "unit",
}


class PipelineVerbs:
    """The part of the stream builder that says what Spark computes."""

    if TYPE_CHECKING:
        name: str
        _queen: Queen
        _definition: Json
        _window: Json

    # All that time was told to be cut into; the last is `_window`.
    _windows: tuple[Json, ...] = ()
    # Fields of a definition as the broker has them; empty when this is no pipeline.
    _pipeline: Json = {}  # noqa: RUF012 - replaced, never changed
    # Of the side that this builder reads.
    _side: Json = {}  # noqa: RUF012
    _others: tuple[Json, ...] = ()

    def _with_pipeline(self: Self, **fields: Any) -> Self:
        changed = copy.copy(self)
        changed._pipeline = {**self._pipeline, **fields}
        return changed

    def _with_side(self: Self, **fields: Any) -> Self:
        changed = self._with_pipeline()
        changed._side = {**self._side, **fields}
        return changed

    def _extend(self, name: str, *more: str) -> list[str]:
        return [*self._pipeline.get(name, ()), *more]

    def _merge(self, verb: str, name: str, more: Mapping[str, str]) -> dict[str, str]:
        # A name that was told before is told anew.
        return _once_each(verb, list({**self._pipeline.get(name, {}), **more}.items()))

    # ---- what is read ----

    def schema(self: Self, fields: str) -> Self:
        """Say what is in `data`, as Spark writes it: `"user string, amount double"`."""
        return self._with_side(schema=told_name("schema", fields))

    def where(self: Self, *conditions: str) -> Self:
        """Use only messages for which all conditions hold."""
        told = told_expressions("where", *conditions)
        return self._with_side(where=[*self._side.get("where", ()), *told])

    def event_time(self: Self, expression: str) -> Self:
        """Say when a message happened; when it was written, unless told."""
        (told,) = told_expressions("event_time", expression)
        return self._with_side(eventTime=told)

    def join(
        self: Self,
        other: Self | str,
        *,
        on: On,
        within: Seconds,
        how: str = "inner",
        name: str | None = None,
    ) -> Self:
        """Join another stream, or a queue: messages with equal `on` that happened `within` so
        much time of each other.

        `on` is an expression for both sides, several, or a mapping from ours to theirs. `how`
        is `inner`, `left`, `full`, or `anti` for messages of ours that found no other.
        """
        reads = _side_of(other)
        if name is not None:
            reads = {**reads, "name": told_name("join, name", name)}
        within_ms = told_ms("join, within", within)
        joined = {"on": told_pairs("join, on", on), "withinMs": within_ms, "how": how}
        changed = self._with_pipeline(joins=[*self._pipeline.get("joins", ()), joined])
        changed._others = (*self._others, reads)
        return changed

    def named(self: Self, name: str) -> Self:
        """Set the name by which expressions after a join find this side."""
        return self._with_side(name=told_name("named", name))

    def dedup(self: Self, *expressions: str) -> Self:
        """Use only one of the messages that are equal in these: the first in each window of a
        key, or, without windows and in sessions, one of those with the same event time."""
        if not expressions:
            raise BadRequest("dedup: say what is equal, as in dedup('data.id')")
        told = told_expressions("dedup", *expressions)
        return self._with_pipeline(dedup=self._extend("dedup", *told))

    # ---- what is computed ----

    def daily(self: Self) -> Self:
        """Windows of one day each, from midnight to midnight in the `time_zone`: of 23 or 25
        hours where clocks change."""
        return self.calendar("day")

    def calendar(self: Self, unit: str) -> Self:
        """Windows of one `day`, `week` (from Monday) or `month` each, in the `time_zone`."""
        changed = self._with_pipeline()
        changed._window = {"window_type": "calendar", "window_unit": unit}
        changed._windows = (*self._windows, changed._window)
        return changed

    def key(self: Self, *expressions: str, **named: str) -> Self:
        """Compute for each value of these: `key("data.user")`, or `key(user="data.user")`."""
        return self._with_pipeline(
            keys=self._merge("key", "keys", _named("key", expressions, named))
        )

    def aggregate(self: Self, **aggregates: str) -> Self:
        """Compute aggregates of each window: `aggregate(total="sum(data.amount)")`."""
        named = _named("aggregate", (), aggregates)
        return self._with_pipeline(aggregates=self._merge("aggregate", "aggregates", named))

    def distinct(self: Self, **expressions: str) -> Self:
        """Count different values in each window, exactly: `distinct(users="data.user")`."""
        named = _named("distinct", (), expressions)
        return self._with_pipeline(distinct=self._merge("distinct", "distinct", named))

    def having(self: Self, *conditions: str) -> Self:
        """Give only results for which all conditions hold: `having("total > 100")`."""
        told = told_expressions("having", *conditions)
        return self._with_pipeline(having=self._extend("having", *told))

    def top(self: Self, count: int, *, by: str, per: Sequence[str] = ()) -> Self:
        """Give, of each window, the results with the most of `by`, and their `rank`; so many
        for each value of the keys named in `per`."""
        (told,) = told_expressions("top, by", by)
        keys = told_names("top, per", per)
        return self._with_pipeline(top={"count": told_count("top", count), "by": told, "per": keys})

    def select(self: Self, *expressions: str, **named: str) -> Self:
        """Say what a result holds; of aggregates, by their names."""
        chosen = _named("select", expressions, named)
        return self._with_pipeline(select=self._merge("select", "select", chosen))

    # ---- where it goes ----

    def emit(self: Self, when: str) -> Self:
        """Say when results are given: `closed`, once, when their window has closed, unless it is
        `updates`, with every micro-batch in which it has changed. Updates go to a table whose
        keys name the window and all keys, where the last one stays."""
        return self._with_pipeline(emit=when)

    def time_zone(self: Self, name: str) -> Self:
        """Name the zone of calendar windows, and in which expressions take times that say none,
        like `Europe/Berlin`; UTC, unless given. A `timestamp` of the schema that says none is UTC
        all the same."""
        return self._with_pipeline(timeZone=told_zone("time_zone", name))

    def max_ahead(self: Self, duration: Seconds) -> Self:
        """Say how far clocks may be ahead; a day, unless given. What says that it happens later
        than that is set aside like a late message."""
        return self._with_pipeline(aheadMs=told_ms("max_ahead", duration))

    def late_to(self: Self, queue: str) -> Self:
        """Put messages that came too late into a queue, each with its window."""
        return self._with_pipeline(lateTo=told_name("late_to", queue))

    def errors_to(self: Self, queue: str) -> Self:
        """Put messages on which an expression fails into a queue, each with the reason; as dead
        letters of the pipeline, unless given."""
        return self._with_pipeline(errorsTo=told_name("errors_to", queue))

    def on_error(self: Self, action: str) -> Self:
        """Say what becomes of a message on which an expression fails: `set_aside`, and the others
        go on, unless it is `fail`, and the pipeline ends and names it."""
        return self._with_pipeline(onError=action)

    def to(self: Self, queue: str, *, partition: str | None = None) -> Self:
        """Put results into a queue, exactly once; into the partition of their keys unless an
        expression says otherwise."""
        if partition is not None:
            (partition,) = told_expressions("to, partition", partition)
        return self._with_output("to", queue=queue, partitionBy=partition)

    def to_table(self: Self, table: str, *, keys: Sequence[str] = ()) -> Self:
        """Put results into a PostgreSQL table, exactly once; a row with the same `keys` is
        replaced. The run is told where the database is."""
        keys = told_names("to_table, keys", keys)
        return self._with_output("to_table", table=table, tableKeys=keys)

    def to_files(self: Self, path: str, format: str = "parquet") -> Self:
        """Put results into a folder, exactly once: `parquet`, `json`, `csv` or `orc`."""
        return self._with_output("to_files", files=path, format=format)

    def _with_output(self: Self, verb: str, **output: Any) -> Self:
        told_name(verb, next(iter(output.values())))
        check_output(verb, self._pipeline.get("output"), output)
        return self._with_pipeline(output=output)

    # ---- the definition ----

    @property
    def is_pipeline(self) -> bool:
        """Whether anything was said that only Spark can do."""
        is_calendar = self._window.get("window_type") == "calendar"
        return bool(self._pipeline or self._side or is_calendar)

    def definition(self) -> Json:
        """Return what the broker stores of a pipeline."""
        check_leased(self._definition, self._window)
        check_windows(self._windows)
        window = {
            theirs: self._window[ours]
            for ours, theirs in _WINDOWS.items()
            if self._window.get(ours)
        }
        kind = self._window.get("window_type")
        keys = self._pipeline.get("keys", {})
        if self._definition.get("partitioned"):
            keys = {"partition": "partition", **keys}
        fields = {
            "name": self.name,
            "namespace": self._definition.get("namespace", ""),
            **self._pipeline,
            "reads": [self._reads(), *self._others],
            "keys": keys,
            "window": {"type": kind, **window} if kind else None,
            "graceMs": self._definition.get("window_grace_period_ms"),
        }
        check_verbs(fields)
        return {field: value for field, value in fields.items() if value is not None}

    def _as_side(self) -> Json:
        """Return what another pipeline reads when it joins this one."""
        rest = [*self._pipeline, *(["window"] if self._window else [])]
        if rest:
            raise ValueError(
                f"{self.name} is joined with its {rest[0]}, but only sources, schema, where, "
                "event_time and a name belong to one side; say the rest after the join"
            )
        return self._reads()

    def _reads(self) -> Json:
        queues = self._definition.get("source_queue_names")
        named = {"queues": queues} if queues else {}
        return {"name": _plain_name(self.name), **named, **self._side}

    async def _define_pipeline(self, replace: bool) -> Json:
        body = {"definition": self.definition(), "replace": replace}
        answer: Json = await self._queen.post(PATH, body)
        return answer

    def run(self, spark: SparkSession, **options: Any) -> Running:
        """Start the pipeline on Spark, as it is defined here; see `queen.spark.run_pipeline`.

        A definition that is stored and differs raises `Conflict`, unless `replace=True`.
        Returns at once; `.wait()` returns when it was stopped.
        """
        require("spark", "a pipeline")
        from queen.spark.pipelines.run import run_definition

        return run_definition(self.definition(), spark, **{**self._connection(), **options})

    def backfill(
        self,
        spark: SparkSession,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        in_time: bool = False,
        **options: Any,
    ) -> DataFrame:
        """Return, as a DataFrame, what a live run that began at `since` has given at `until`; over
        all that there is, unless given.

        With `in_time` each message counts as written when it happened: for history that was
        pushed later. The two times are then of what happened: windows that began at `since` or
        later, and had closed by `until`.
        """
        require("spark", "a backfill")
        from queen.spark.pipelines.backfill import backfill_definition

        given = {**self._connection(), **options}
        return backfill_definition(
            self.definition(), spark, since=since, until=until, in_time=in_time, **given
        )

    def _connection(self) -> Json:
        return {"url": ",".join(self._queen.cluster.urls), "token": self._queen.cluster.token}


def pipeline_path(name: str, *parts: str) -> str:
    """Return the path of a pipeline in the API."""
    return "/".join((PATH, quote(name, safe=""), *parts))


def _side_of(other: Any) -> Json:
    """Return what a join reads: what a builder says, or a queue."""
    if isinstance(other, PipelineVerbs):
        return other._as_side()
    if not isinstance(other, str) or not other:
        raise BadRequest(f"join: {other!r} is neither a stream nor the name of a queue")
    return {"name": _plain_name(other), "queues": [other]}


def _named(verb: str, expressions: Sequence[str], named: Mapping[str, str]) -> dict[str, str]:
    """Return expressions by their names: those that they were given, or the end of a path."""
    told_expressions(verb, *expressions)
    for name, text in named.items():
        told_expressions(f"{verb}, {name}", text)
    return _once_each(verb, [*((_name_of(text), text) for text in expressions), *named.items()])


def _once_each(verb: str, named: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return expressions by names, of which Spark sees no case."""
    chosen: dict[str, tuple[str, str]] = {}
    for name, text in named:
        if chosen.setdefault(name.lower(), (name, text)) != (name, text):
            raise BadRequest(
                f"{verb}: two are called {name!r}, in which upper and lower case are the same; "
                f"give one another name, as in {verb}(other={text!r})"
            )
    return dict(chosen.values())


def _plain_name(name: str) -> str:
    """Return a name that an expression can hold without quotes.

    >>> _plain_name("user-clicks")
    'user_clicks'
    """
    return _NOT_IN_NAMES.sub("_", name)


def _name_of(expression: str) -> str:
    """Return what a column is called that nobody named: the end of its path.

    >>> _name_of("data.user"), _name_of("partition")
    ('user', 'partition')
    """
    path_end = _PATH_END.search(expression.strip())
    if path_end is None or _NOT_IN_NAMES.search(path_end[0]):
        raise ValueError(f"{expression!r} needs a name: write name={expression!r}")
    return path_end[0]
