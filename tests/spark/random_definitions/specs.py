"""A random definition, and the messages that it is run over."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from tests.spark.random_definitions.expressions import (
    SCHEMA,
    Aggregate,
    Expression,
    ResultExpression,
)


@dataclass
class Side:
    name: str
    queues: list[str]
    # The field of the payload that says when; None when it is when a message was written.
    time_field: str | None
    time: Expression | None
    where: list[Expression]

    def definition(self) -> dict[str, Any]:
        given: dict[str, Any] = {"name": self.name, "queues": self.queues, "schema": SCHEMA}
        if self.time is not None:
            given["eventTime"] = self.time.sql()
        return {**given, "where": [condition.sql() for condition in self.where]}


@dataclass
class Join:
    # The side that the left expression is about.
    left: str
    on: list[tuple[Expression, Expression]]
    within_ms: int
    how: str


@dataclass
class Window:
    type: str
    size_ms: int = 0
    slide_ms: int = 0
    gap_ms: int = 0

    def definition(self) -> dict[str, Any]:
        sizes = {"sizeMs": self.size_ms, "slideMs": self.slide_ms, "gapMs": self.gap_ms}
        return {"type": self.type, **{name: value for name, value in sizes.items() if value}}


@dataclass
class Top:
    count: int
    by: str
    per: list[str]


# A side, and what is taken of its message.
Sided = tuple[str, Expression]


@dataclass
class Spec:
    seed: int
    name: str
    sides: list[Side]
    zone_name: str
    # Written when the test says, hours or years ago; otherwise as the clock says.
    is_past: bool
    # Of the times in this definition.
    unit_ms: int
    grace_ms: int
    ahead_ms: int | None
    joins: list[Join] = field(default_factory=list)
    dedup: list[Sided] = field(default_factory=list)
    window: Window | None = None
    keys: dict[str, Sided] = field(default_factory=dict)
    aggregates: dict[str, tuple[str, Aggregate]] = field(default_factory=dict)
    distinct: dict[str, Sided] = field(default_factory=dict)
    having: list[ResultExpression] = field(default_factory=list)
    top: Top | None = None
    select_results: dict[str, ResultExpression] = field(default_factory=dict)
    select: dict[str, Sided] = field(default_factory=dict)
    late_to: str | None = None
    errors_to: str | None = None

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.zone_name)

    @property
    def output(self) -> str:
        return f"{self.name}-out"

    @property
    def needs_time(self) -> bool:
        return bool(self.joins or self.window or self.dedup)

    @property
    def cuts_windows(self) -> bool:
        """Whether a message is late for a window, and not by its own time."""
        return bool(self.window and self.window.type != "session" and not self.joins)

    @property
    def grace(self) -> timedelta:
        """The grace; where there are no windows, of a millisecond at least."""
        least_ms = 0 if self.cuts_windows else 1
        return timedelta(milliseconds=max(self.grace_ms, least_ms))

    @property
    def ahead(self) -> timedelta:
        return timedelta(days=1) if self.ahead_ms is None else _ms(self.ahead_ms)

    def wait(self, joins: int | None = None) -> timedelta:
        """How long a row waits for partners in the first so many joins: `within` is inclusive."""
        return sum((_ms(join.within_ms + 1) for join in self.joins[:joins]), timedelta())

    def queues(self) -> list[str]:
        return [queue for side in self.sides for queue in side.queues]

    def side(self, name: str) -> Side:
        return next(side for side in self.sides if side.name == name)

    def definition(self) -> dict[str, Any]:
        """Return it as the broker stores it."""
        given: dict[str, Any] = {
            "name": self.name,
            "reads": [side.definition() for side in self.sides],
            "timeZone": self.zone_name,
            "output": {"queue": self.output},
            "joins": [self._join(number) for number in range(len(self.joins))],
            "dedup": [self._sql(sided) for sided in self.dedup],
            "keys": {name: self._sql(sided) for name, sided in self.keys.items()},
            "aggregates": {
                name: made.sql(side if self.joins else None)
                for name, (side, made) in self.aggregates.items()
            },
            "distinct": {name: self._sql(sided) for name, sided in self.distinct.items()},
            "having": [condition.text for condition in self.having],
            "select": {name: self._sql(sided) for name, sided in self.select.items()}
            | {name: made.text for name, made in self.select_results.items()},
        }
        if self.window is not None:
            given["window"] = self.window.definition()
        if self.top is not None:
            given["top"] = {"count": self.top.count, "by": self.top.by, "per": self.top.per}
        others: dict[str, Any] = {"errorsTo": self.errors_to}
        if self.needs_time:
            # Where nothing can be late they are refused.
            others |= {"graceMs": self.grace_ms, "aheadMs": self.ahead_ms, "lateTo": self.late_to}
        given |= {name: value for name, value in others.items() if value is not None}
        return {name: value for name, value in given.items() if value not in ([], {})}

    def _sql(self, sided: Sided) -> str:
        side, expression = sided
        return expression.sql(side if self.joins else None)

    def _join(self, number: int) -> dict[str, Any]:
        join = self.joins[number]
        # Only of the first join the left side is messages, and not rows of several.
        left = join.left if number else None
        on = [[ours.sql(left), theirs.sql()] for ours, theirs in join.on]
        return {"on": on, "withinMs": join.within_ms, "how": join.how}

    def described(self) -> str:
        """Say in one line what it does."""
        parts = [self.window.type if self.window else "no window"]
        parts += [join.how for join in self.joins]
        named = {
            "dedup": self.dedup, "keys": self.keys, "aggregates": self.aggregates,
            "distinct": self.distinct, "having": self.having, "top": self.top,
            "select": self.select or self.select_results, "late_to": self.late_to,
            "errors_to": self.errors_to, "where": [side for side in self.sides if side.where],
        }  # fmt: skip
        parts += [name for name, part in named.items() if part]
        times = "/".join(side.time_field or "createdAt" for side in self.sides)
        parts += [f"time {times}", f"grace {self.grace_ms} ms", self.zone_name]
        return ", ".join([*parts, "past" if self.is_past else "present"])


@dataclass
class Planned:
    """A message that is to be pushed."""

    queue: str
    partition: str
    payload: Any
    # When it is written in a past that is made up; otherwise in which part of the pushes.
    written: datetime


def _ms(duration_ms: int) -> timedelta:
    return timedelta(milliseconds=duration_ms)
