"""/api/v1/pipelines: what a pipeline does, and how it is doing.

A definition is declarative: the order of its fields is the order in which they act.

    reads ─ where ─ joins ─ dedup ─ window ─ keys, aggregates, distinct ─ having ─ top ─ select
      └─ late rows ─ lateTo                                                        output ─┘

Expressions are Spark SQL over the columns of a message (`data.amount`, `partition`, …); after
a join over one structure for each side, by its name (`orders.data.amount`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec import Meta

from queen.core.names import matches_pattern
from queen.wire.cuts import Pattern
from queen.wire.paging import Pagination

Name = Annotated[str, Meta(min_length=1, max_length=255)]
Expression = Annotated[str, Meta(min_length=1, max_length=10_000)]
Few = Meta(max_length=100)
_MAX_MS = 366 * 24 * 3600 * 1000
Duration = Annotated[int, Meta(ge=1, le=_MAX_MS)]
_GRACE_MS = 30_000
_AHEAD_MS = 24 * 3600 * 1000
MOST_OF_TOP = 10_000


class _Part(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """A part of a definition; what is left out is not there."""


class Reads(_Part):
    """Queues that are read as one, and how."""

    # Of this side in a join.
    name: Name
    queues: Annotated[list[Name], Meta(max_length=100)] = []
    # Instead of `queues`: all that match, those too that are made while the pipeline runs.
    pattern: Pattern | None = None
    # Of the payload, as Spark writes it: `amount double, user string`. Without it `data` is
    # the JSON text.
    schema: Expression | None = None
    where: Annotated[list[Expression], Few] = []
    # When a message happened; when it was written, unless given.
    event_time: Expression | None = None


class Joined(_Part):
    """How the next of `reads` is joined to what is there."""

    # Pairs: of the left side, of the right side.
    on: Annotated[list[tuple[Expression, Expression]], Meta(min_length=1, max_length=20)]
    # How far apart the two may be, either way.
    within_ms: Duration
    how: Literal["inner", "left", "full", "anti"] = "inner"


class Window(_Part):
    """How time is cut."""

    type: Literal["tumbling", "sliding", "session", "calendar"]
    size_ms: Duration | None = None
    slide_ms: Duration | None = None
    gap_ms: Duration | None = None
    # Of a calendar window, in the zone of the definition; weeks begin on Monday.
    unit: Literal["day", "week", "month"] | None = None


class Top(_Part):
    """Of each window, the rows with the most of something."""

    count: Annotated[int, Meta(ge=1, le=MOST_OF_TOP)]
    by: Expression
    # Names of keys: so many for each value of these.
    per: Annotated[list[Name], Few] = []


class Output(_Part):
    """Where results go: one of queue, table and files."""

    queue: Name | None = None
    # The partition of a result in the queue; that of its keys, unless given.
    partition_by: Expression | None = None
    table: Name | None = None
    # The columns that name a row of the table; rows are added when there are none.
    table_keys: Annotated[list[Name], Few] = []
    files: Annotated[str, Meta(min_length=1, max_length=4000)] | None = None
    format: Literal["parquet", "json", "csv", "orc"] = "parquet"


class Definition(_Part):
    """What a pipeline does."""

    name: Name
    reads: Annotated[list[Reads], Meta(min_length=1, max_length=10)]
    namespace: Annotated[str, Meta(max_length=255)] = ""
    # A function in a file has code of its own; only what it reads and writes is known here.
    kind: Literal["definition", "function"] = "definition"
    # Changes whenever the function does.
    code: Annotated[str, Meta(max_length=64)] | None = None
    joins: Annotated[list[Joined], Few] = []
    dedup: Annotated[list[Expression], Few] = []
    window: Window | None = None
    grace_ms: Annotated[int, Meta(ge=0, le=_MAX_MS)] = _GRACE_MS
    # How far after it was written a message may say that it happened; set aside like a late one
    # when it is more.
    ahead_ms: Duration = _AHEAD_MS
    keys: Annotated[dict[Name, Expression], Few] = {}
    aggregates: Annotated[dict[Name, Expression], Few] = {}
    distinct: Annotated[dict[Name, Expression], Few] = {}
    top: Top | None = None
    having: Annotated[list[Expression], Few] = []
    select: Annotated[dict[Name, Expression], Few] = {}
    # When a window is given: once, when it has closed; or, to a table with keys, whenever it has
    # changed.
    emit: Literal["closed", "updates"] = "closed"
    late_to: Name | None = None
    # What becomes of a message on which an expression fails: it is set aside, as a dead letter of
    # the pipeline or in a queue, or the pipeline fails and names it.
    on_error: Literal["set_aside", "fail"] = "set_aside"
    errors_to: Name | None = None
    # In which expressions read and write times that name none: `to_timestamp(data.day)`; and whose
    # days, weeks and months calendar windows are.
    time_zone: Name = "UTC"
    output: Output = msgspec.field(default_factory=Output)


def needs_time(definition: Definition) -> bool:
    """Whether anything waits for time to pass: then the source must say how far it is."""
    return bool(definition.joins or definition.window or definition.dedup)


def keeps_late(definition: Definition) -> bool:
    """Whether something can be late, and is kept."""
    return definition.late_to is not None and needs_time(definition)


def reason_against(definition: Definition) -> str | None:
    """Return what is wrong with a definition beyond its types, or None."""
    rules = (
        _reason_against_reads,
        _reason_against_window,
        _reason_against_aggregates,
        _reason_against_names,
        _reason_against_dedup,
        _reason_against_time_zone,
        _reason_against_lateness,
        _reason_against_output,
        _reason_against_updates,
    )
    if len(definition.joins) != len(definition.reads) - 1 and definition.kind == "definition":
        return "joins: there is one for each of reads after the first"
    names = [side.name for side in definition.reads]
    if len(set(names)) < len(names):
        return "reads: the sides of a join need different names; give one with `name`"
    return next((reason for rule in rules if (reason := rule(definition))), None)


def _reason_against_reads(definition: Definition) -> str | None:
    for side in definition.reads:
        if bool(side.queues) == (side.pattern is not None):
            return f"reads: name the queues of {side.name!r}, or give a pattern of them"
    return None


def is_read(definition: Definition, queue: str) -> bool:
    """Whether a pipeline reads a queue: by its name, or because it matches."""
    return any(
        queue in side.queues or (side.pattern is not None and matches_pattern(side.pattern, queue))
        for side in definition.reads
    )


def names_read(definition: Definition) -> list[str]:
    """Return the queues that a pipeline reads, and its patterns of them."""
    return [
        name
        for side in definition.reads
        for name in ([side.pattern] if side.pattern is not None else side.queues)
    ]


class _Needed(NamedTuple):
    field: str
    reason: str


_NEEDED = {
    "tumbling": _Needed("size_ms", "window.sizeMs: a window needs its size"),
    "sliding": _Needed("size_ms", "window.sizeMs: a window needs its size"),
    "session": _Needed("gap_ms", "window.gapMs: a session needs its gap"),
    "calendar": _Needed("unit", "window.unit: a calendar window is a day, week or month"),
}


def _reason_against_window(definition: Definition) -> str | None:
    window = definition.window
    if window is None:
        return None
    if window.unit and window.type != "calendar":
        return "window.unit: only calendar windows have one"
    needed = _NEEDED[window.type]
    if not getattr(window, needed.field):
        return needed.reason
    size_ms = window.size_ms or 0
    if window.type == "sliding" and not (window.slide_ms and window.slide_ms <= size_ms):
        return "window.slideMs: a sliding window needs a slide that is not longer than its size"
    return None


def _reason_against_aggregates(definition: Definition) -> str | None:
    computes = bool(definition.aggregates or definition.distinct)
    if computes and definition.window is None:
        return "window: aggregates need a window: tumbling, sliding, session or calendar"
    if not computes:
        return _reason_to_compute(definition)
    if definition.top is not None and not set(definition.top.per) <= set(definition.keys):
        return "top.per: these are names of keys"
    return None


def _reason_against_names(definition: Definition) -> str | None:
    """Return which results would have one name; to Spark, upper and lower case are the same."""
    computed = [*definition.keys, *definition.aggregates, *definition.distinct]
    bounds = ["windowStart", "windowEnd"] if definition.window is not None else []
    for field, names in (("aggregates", [*bounds, *computed]), ("select", definition.select)):
        seen: set[str] = set()
        for name in names:
            if name.lower() in seen:
                return f"{field}: two results are called {name!r}, whatever their case; rename one"
            seen.add(name.lower())
    return None


def _reason_to_compute(definition: Definition) -> str | None:
    """Return what is said of aggregates when there are none."""
    if definition.window is not None:
        return "aggregates: a window without aggregates gives nothing; say what to compute"
    if definition.keys:
        return "keys: they are of aggregates; say what to compute"
    if definition.having:
        return "having: it is asked of aggregates; use where for messages"
    if definition.top is not None:
        return "top: it is taken from aggregates; say what to compute"
    return None


def _reason_against_dedup(definition: Definition) -> str | None:
    is_cut = definition.window is not None and definition.window.type != "session"
    if definition.dedup and not is_cut and definition.reads[0].event_time is None:
        return "dedup: without a window, two messages are the same only if their event time is too"
    return None


def _reason_against_time_zone(definition: Definition) -> str | None:
    if is_zone(definition.time_zone):
        return None
    return f"timeZone: {definition.time_zone!r} is not known; one is like 'Europe/Berlin'"


def is_zone(name: str) -> bool:
    """Whether a text names a time zone."""
    if name == "UTC":
        return True
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _reason_against_lateness(definition: Definition) -> str | None:
    """Return what is said of late messages where none can be."""
    if needs_time(definition) or definition.kind == "function":
        return None
    said = (
        ("lateTo", "late_to", definition.late_to is not None),
        ("aheadMs", "max_ahead", definition.ahead_ms != _AHEAD_MS),
        ("graceMs", "grace_period", definition.grace_ms != _GRACE_MS),
    )
    return next(
        (
            f"{field}: without a window, a join or dedup nothing is late; leave {verb} out"
            for field, verb, is_said in said
            if is_said
        ),
        None,
    )


def _reason_against_output(definition: Definition) -> str | None:
    output = definition.output
    given = [target for target in (output.queue, output.table, output.files) if target]
    if len(given) != 1:
        return "output: say where results go: to one queue, table or folder"
    others = (("lateTo", definition.late_to), ("errorsTo", definition.errors_to))
    for name, queue in (("output.queue", output.queue), *others):
        if queue is not None and is_read(definition, queue):
            return f"{name}: the pipeline reads {queue!r} itself; it would never end"
    for name, queue in others:
        if queue is not None and queue == output.queue:
            return f"{name}: results go to {queue!r}; what is set aside needs a queue of its own"
    if definition.errors_to is not None and definition.errors_to == definition.late_to:
        return f"errorsTo: late messages go to {definition.late_to!r}; give errors another queue"
    if definition.errors_to is not None and definition.on_error == "fail":
        return "errorsTo: nothing is set aside when an error fails the pipeline"
    return None


def _reason_against_updates(definition: Definition) -> str | None:
    """Return why windows cannot be given before they have closed."""
    window, output = definition.window, definition.output
    if definition.emit == "closed":
        return None
    reasons = (
        (
            not (output.table and output.table_keys),
            "updates go to a table with keys, where a row replaces the one before; a queue or a "
            "folder has nothing to take back",
        ),
        (window is None, "updates are of windows; what has none never changes"),
        (
            window is not None and window.type == "session",
            "Spark gives sessions when they have closed, and not before",
        ),
        (
            bool(definition.joins or definition.dedup or definition.top),
            "Spark gives what needs several steps (a join, dedup, top) when windows have closed, "
            "and not before",
        ),
        (
            bool(definition.having),
            "a row that is in the table would stay there when having no longer holds; leave "
            "having out, and filter where the table is read",
        ),
        (
            not _keys_name_results(definition),
            "the keys of the table must name a window and all keys: "
            + ", ".join(["windowStart", *definition.keys]),
        ),
    )
    return next((f"emit: {reason}" for is_so, reason in reasons if is_so), None)


def _keys_name_results(definition: Definition) -> bool:
    """Whether the keys of the table tell any two results apart."""
    select = definition.select
    named = {select.get(key) if select else key for key in definition.output.table_keys}
    return bool(named & {"windowStart", "windowEnd"}) and named >= set(definition.keys)


# ---- requests and answers ----


class DefineRequest(_Part):
    definition: Definition
    # A definition that differs takes the place of the one that is stored.
    replace: bool = False


class Defined(msgspec.Struct, rename="camel"):
    name: str
    fingerprint: str
    version: int
    created: bool
    changed: bool


class Progress(_Part):
    """What a running query says of itself."""

    # Of this run; a restart is another one.
    run_id: Annotated[str, Meta(pattern="^[0-9A-Za-z_.:-]{1,64}$")]
    state: Literal["starting", "running", "stopped", "failed"]
    fingerprint: Annotated[str, Meta(max_length=64)] | None = None
    host: Annotated[str, Meta(max_length=255)] | None = None
    checkpoint: Annotated[str, Meta(max_length=4000)] | None = None
    # What Spark calls the query over its restarts, and where it shows itself.
    query_id: Annotated[str, Meta(max_length=64)] | None = None
    ui_url: Annotated[str, Meta(max_length=1000, pattern="^https?://")] | None = None
    batches: Annotated[int, Meta(ge=0, le=2**53)] = 0
    # Since the run began.
    input_rows: Annotated[int, Meta(ge=0, le=2**53)] = 0
    output_rows: Annotated[int, Meta(ge=0, le=2**53)] = 0
    late_rows: Annotated[int, Meta(ge=0, le=2**53)] = 0
    # Messages on which an expression failed, and that were set aside.
    failed_rows: Annotated[int, Meta(ge=0, le=2**53)] = 0
    dropped_rows: Annotated[int, Meta(ge=0, le=2**53)] = 0
    # Of the last micro-batch.
    input_rows_per_second: Annotated[float, Meta(ge=0)] = 0.0
    processed_rows_per_second: Annotated[float, Meta(ge=0)] = 0.0
    batch_ms: Annotated[int, Meta(ge=0, le=2**53)] = 0
    # What it has left of its queues, of what was complete when it was planned.
    behind_messages: Annotated[int, Meta(ge=0, le=2**53)] = 0
    behind_bytes: Annotated[int, Meta(ge=0, le=2**53)] = 0
    behind_ms: Annotated[int, Meta(ge=0, le=2**53)] = 0
    state_rows: Annotated[int, Meta(ge=0, le=2**53)] = 0
    state_bytes: Annotated[int, Meta(ge=0, le=2**53)] = 0
    # Everything that was written before this instant has been read.
    done_until: Annotated[datetime, Meta(tz=True)] | None = None
    # Everything before this instant has closed.
    watermark: Annotated[datetime, Meta(tz=True)] | None = None
    error: Annotated[str, Meta(max_length=10_000)] | None = None


class FailedMessage(msgspec.Struct, rename="camel"):
    """A message on which an expression of a pipeline fails."""

    id: Annotated[str, Meta(max_length=64)]
    error: Annotated[str, Meta(max_length=20_000)]


class SetAsideRequest(msgspec.Struct, rename="camel"):
    messages: Annotated[list[FailedMessage], Meta(min_length=1, max_length=1000)]


class SetAsideAnswer(msgspec.Struct, rename="camel"):
    success: bool
    # How many are dead letters of the pipeline now; those that are gone are not.
    messages: int


class Heard(msgspec.Struct, rename="camel"):
    """The answer to a report."""

    # Somebody wants the pipeline to stop.
    stop: bool


class PipelineShown(msgspec.Struct, rename="camel"):
    name: str
    namespace: str
    kind: str
    # running, stopping, stopped, failed, lost (it says nothing any more), or never run.
    state: str
    reads: list[str]
    writes: str | None
    late_to: str | None
    fingerprint: str
    version: int
    created_at: str
    updated_at: str
    reported_at: str | None
    started_at: str | None
    # How many runs have reported; each after the first is a restart.
    runs: int
    definition: Definition
    progress: Progress | None


class Pipelines(msgspec.Struct, rename="camel"):
    pipelines: list[PipelineShown]
    pagination: Pagination


class StopAsked(msgspec.Struct, rename="camel"):
    success: bool
    # Whether somebody is there to hear it.
    running: bool


class PipelineDeleted(msgspec.Struct, rename="camel"):
    success: bool
    name: str


def plain(part: Any, *, whole: bool = False) -> Any:
    """Return a part of a definition as JSON has it: what is said, or all that holds.

    >>> plain(Output(queue="totals", format="parquet"))
    {'queue': 'totals'}
    """
    if isinstance(part, msgspec.Struct):
        fields = [(field, getattr(part, field.name)) for field in msgspec.structs.fields(part)]
        return {
            field.encode_name: plain(value, whole=whole)
            for field, value in fields
            if whole or value != _default_of(field)
        }
    if isinstance(part, dict):
        return {name: plain(value, whole=whole) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [plain(value, whole=whole) for value in part]
    return part


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def decode_definition(raw: Any) -> Definition:
    """Return a definition from what was decoded of its JSON."""
    return msgspec.convert(raw, Definition)
