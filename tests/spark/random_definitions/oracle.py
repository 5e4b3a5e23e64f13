"""What a definition gives: plain Python over its messages, from the pages about time in pipelines.

There is no stream here, no state and no batch: only messages, each with the instant at which it
was written, and the instant that sealed time has reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from tests.spark.random_definitions.expressions import (
    EPOCH,
    UNFIT,
    CannotCompute,
    Expression,
    Message,
)
from tests.spark.random_definitions.specs import Join, Side, Spec

_MS = timedelta(milliseconds=1)
Json = dict[str, Any]
Span = tuple[datetime, datetime]


class Given(NamedTuple):
    """What a pipeline has given when sealed time reached an instant."""

    results: list[Any]
    late: list[Json]
    # Without the reason.
    failed: list[Json]
    # The expressions that fail on each of those, by its transaction.
    reasons: dict[str, list[str]]
    # When something is decided.
    instants: list[datetime]


class Joined(NamedTuple):
    """Messages of several sides, the time of the first that is there, and when it is given."""

    parts: Mapping[str, Message | None]
    time: datetime
    # Before this instant nobody has seen it.
    ready: datetime


def iso(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def expected(spec: Spec, messages: Sequence[Message], until: datetime) -> Given:
    """Return what a definition has given when sealed time has reached `until`."""
    return _Oracle(spec, until).give([one for one in messages if one.created < until])


class _Oracle:
    def __init__(self, spec: Spec, until: datetime) -> None:
        self._spec = spec
        # Time passes by the millisecond for windows and for what waits.
        self._passed = until.replace(microsecond=until.microsecond // 1000 * 1000)
        self._zone = spec.zone
        self._late: list[Json] = []
        self._failed: list[Json] = []
        self._reasons: dict[str, list[str]] = {}
        self._instants: list[datetime] = []

    def give(self, messages: Sequence[Message]) -> Given:
        spec = self._spec
        sides = {side.name: self._in_time(side, messages) for side in spec.sides}
        rows = self._join(sides) if spec.joins else sides[spec.sides[0].name]
        results = self._results_of_rows(rows) if spec.window is None else self._results(rows)
        return Given(results, self._late, self._failed, self._reasons, self._instants)

    def _value(self, row: Joined, sided: tuple[str, Expression]) -> Any:
        side, expression = sided
        return expression.of(row.parts[side], self._zone)

    # ---- messages by themselves ----

    def _in_time(self, side: Side, messages: Sequence[Message]) -> list[Joined]:
        """Return what a side has to compute with; what is late or fails is noted."""
        rows = []
        for message in messages:
            if message.queue not in side.queues:
                continue
            if not message.fits:
                self._note_failed(side, message, [UNFIT])
                continue
            if not self._is_wanted(side, message):
                continue
            failing = [text for text, one in self._computed(side) if one.fails(message, self._zone)]
            if failing:
                self._note_failed(side, message, failing)
                continue
            time = side.time.of(message, self._zone) if side.time else message.created
            if not self._spec.needs_time:
                rows.append(Joined({side.name: message}, message.created, message.created))
            elif self._is_set_aside(side, message, time):
                continue
            else:
                rows.append(Joined({side.name: message}, time, message.created))
        return rows

    def _is_wanted(self, side: Side, message: Message) -> bool:
        """Whether all conditions hold, asked one after the other; noted when one fails."""
        for condition in side.where:
            try:
                if not condition.of(message, self._zone):
                    return False
            except CannotCompute:
                self._note_failed(side, message, [condition.sql()])
                return False
        return True

    def _computed(self, side: Side) -> list[tuple[str, Expression]]:
        """Return what is computed of a message by itself, beside conditions."""
        spec = self._spec
        computed = [side.time] if side.time is not None else []
        if spec.joins:
            number = [one.name for one in spec.sides].index(side.name)
            pairs = spec.joins[0].on if number == 0 else spec.joins[number - 1].on
            computed += [pair[0 if number == 0 else 1] for pair in pairs]
            return [(one.sql(), one) for one in computed]
        sided = [*spec.dedup, *spec.keys.values(), *spec.distinct.values(), *spec.select.values()]
        computed += [one for _, one in sided]
        made = [made for _, made in spec.aggregates.values() if made.argument is not None]
        arguments = [(one.sql(), one.argument) for one in made if one.argument is not None]
        return [*((one.sql(), one) for one in computed), *arguments]

    def _is_set_aside(self, side: Side, message: Message, time: datetime | None) -> bool:
        """Whether a message is late, ahead, or without a time; if it has windows, for all."""
        spec = self._spec
        if time is None:
            self._note_late(side, message, None)
            return True
        is_ahead = time > message.created + spec.ahead
        if not spec.cuts_windows:
            if is_ahead or message.created >= time + spec.grace:
                self._note_late(side, message, None)
                return True
            return False
        missed = [span for span in self._windows(time) if is_ahead or self._is_late(message, span)]
        for span in missed:
            self._note_late(side, message, span)
        return len(missed) == len(self._windows(time))

    def _is_late(self, message: Message, span: Span) -> bool:
        return message.created >= span[1] + self._spec.grace

    def _place(self, side: Side, message: Message) -> Json:
        return {
            "side": side.name,
            "queue": message.queue,
            "partition": message.partition,
            "offset": message.offset,
            "transactionId": message.transaction,
            "createdAt": iso(message.created),
            "data": message.payload,
        }

    def _note_late(self, side: Side, message: Message, span: Span | None) -> None:
        window = None if span is None else {"start": iso(span[0]), "end": iso(span[1])}
        self._late.append({**self._place(side, message), "window": window})

    def _note_failed(self, side: Side, message: Message, failing: list[str]) -> None:
        self._failed.append(self._place(side, message))
        self._reasons[message.transaction] = failing

    # ---- joins ----

    def _join(self, sides: Mapping[str, list[Joined]]) -> list[Joined]:
        spec = self._spec
        rows = sides[spec.sides[0].name]
        for number, join in enumerate(spec.joins):
            name = spec.sides[number + 1].name
            wait = spec.wait(number + 1) + spec.grace
            before = [side.name for side in spec.sides[: number + 1]]
            rows = self._join_side(join, rows, sides[name], name, before, wait)
        return rows

    def _join_side(
        self,
        join: Join,
        ours: list[Joined],
        theirs: list[Joined],
        name: str,
        before: list[str],
        wait: timedelta,
    ) -> list[Joined]:
        nobody = dict.fromkeys(before)
        pairs, found_ours, found_theirs = [], set(), set()
        for left_at, left in enumerate(ours):
            for right_at, right in enumerate(theirs):
                if self._are_partners(join, left, right, name):
                    found_ours.add(left_at)
                    found_theirs.add(right_at)
                    parts = {**left.parts, **right.parts}
                    pairs.append(Joined(parts, left.time, max(left.ready, right.ready)))
        alone = [row for at, row in enumerate(ours) if at not in found_ours]
        alone = [row._replace(parts={**row.parts, name: None}) for row in alone]
        if join.how == "full":
            others = [row for at, row in enumerate(theirs) if at not in found_theirs]
            alone += [row._replace(parts={**nobody, **row.parts}) for row in others]
        given = [] if join.how == "anti" else pairs
        if join.how == "inner":
            return given
        return given + self._no_longer_waiting(alone, wait)

    def _are_partners(self, join: Join, left: Joined, right: Joined, name: str) -> bool:
        if abs(left.time - right.time) > timedelta(milliseconds=join.within_ms):
            return False
        for ours, theirs in join.on:
            first = self._value(left, (join.left, ours))
            # A null equals nothing, not even a null.
            if first is None or first != self._value(right, (name, theirs)):
                return False
        return True

    def _no_longer_waiting(self, rows: Iterable[Joined], wait: timedelta) -> list[Joined]:
        waited = []
        for row in rows:
            ready = row.time + wait
            self._instants.append(ready)
            if ready <= self._passed:
                waited.append(row._replace(ready=max(row.ready, ready)))
        return waited

    # ---- results ----

    def _results_of_rows(self, rows: list[Joined]) -> list[Any]:
        spec = self._spec
        self._instants += [row.ready for row in rows]
        if spec.dedup:
            rows = self._without_repeats(rows)
        if not spec.select:
            messages = [row.parts[spec.sides[0].name] for row in rows]
            return [message.payload for message in messages if message is not None]
        return [
            {name: _plain(self._value(row, sided)) for name, sided in spec.select.items()}
            for row in rows
        ]

    def _without_repeats(self, rows: Iterable[Joined]) -> list[Joined]:
        """Keep one of those that are equal and happened at the same time."""
        kept: dict[Any, Joined] = {}
        for row in rows:
            kept.setdefault((row.time, *self._identity(row)), row)
        return list(kept.values())

    def _identity(self, row: Joined) -> tuple[Any, ...]:
        return tuple(self._value(row, sided) for sided in self._spec.dedup)

    def _results(self, rows: list[Joined]) -> list[Json]:
        spec = self._spec
        assert spec.window is not None
        groups = self._cut(rows) if spec.window.size_ms else self._sessions(rows)
        results = []
        for (span, key), members in groups:
            closes = span[1] + spec.grace + spec.wait()
            self._instants.append(closes)
            if closes > self._passed:
                continue
            results.append(self._computed_result(span, key, members))
        for condition in spec.having:
            results = [result for result in results if condition.value(result, self._zone)]
        if spec.top is not None:
            results = self._best(results)
        if spec.select_results:
            chosen = spec.select_results.items()
            results = [
                {name: made.value(result, self._zone) for name, made in chosen}
                for result in results
            ]
        return [{name: _plain(value) for name, value in result.items()} for result in results]

    def _key(self, row: Joined) -> tuple[Any, ...]:
        return tuple(self._value(row, sided) for sided in self._spec.keys.values())

    def _windows(self, time: datetime) -> list[Span]:
        """Return all windows that contain a time; starts are multiples of the slide."""
        assert self._spec.window is not None
        size = timedelta(milliseconds=self._spec.window.size_ms)
        slide = timedelta(milliseconds=self._spec.window.slide_ms) or size
        start = EPOCH + (time - EPOCH) // slide * slide
        spans = []
        while start + size > time:
            spans.append((start, start + size))
            start -= slide
        return spans

    def _cut(self, rows: list[Joined]) -> list[tuple[tuple[Span, Any], list[Joined]]]:
        groups: dict[tuple[Span, Any], list[Joined]] = {}
        for row in rows:
            for span in self._windows(row.time):
                message = row.parts[self._spec.sides[0].name]
                if self._spec.cuts_windows and message and self._is_late(message, span):
                    continue
                groups.setdefault((span, self._key(row)), []).append(row)
        if self._spec.dedup:
            groups = {group: self._firsts(members) for group, members in groups.items()}
        return list(groups.items())

    def _firsts(self, rows: list[Joined]) -> list[Joined]:
        """Keep the first of those that are equal, in order of writing."""
        kept: dict[Any, Joined] = {}
        for row in sorted(rows, key=self._order):
            kept.setdefault(self._identity(row), row)
        return list(kept.values())

    def _order(self, row: Joined) -> list[Any]:
        """What is written at one instant is in the order of its place."""
        return [
            (0,) if one is None else (1, one.created, one.queue, one.partition, one.offset)
            for one in (row.parts.get(side.name) for side in self._spec.sides)
        ]

    def _sessions(self, rows: list[Joined]) -> list[tuple[tuple[Span, Any], list[Joined]]]:
        assert self._spec.window is not None
        gap = timedelta(milliseconds=self._spec.window.gap_ms)
        rows = self._without_repeats(rows) if self._spec.dedup else rows
        of_key: dict[Any, list[Joined]] = {}
        for row in sorted(rows, key=lambda one: one.time):
            of_key.setdefault(self._key(row), []).append(row)
        groups = []
        for key, all_of_key in of_key.items():
            session: list[Joined] = []
            for row in all_of_key:
                if session and row.time > session[-1].time + gap:
                    groups.append((((session[0].time, session[-1].time + gap), key), session))
                    session = []
                session.append(row)
            groups.append((((session[0].time, session[-1].time + gap), key), session))
        return groups

    def _computed_result(self, span: Span, key: Sequence[Any], rows: list[Joined]) -> Json:
        spec = self._spec
        result: Json = {"windowStart": span[0], "windowEnd": span[1]}
        result |= dict(zip(spec.keys, key, strict=True))
        for name, (side, made) in spec.aggregates.items():
            argument = made.argument
            values = (
                rows if argument is None else [self._value(row, (side, argument)) for row in rows]
            )
            result[name] = made.fold(values)
        for name, sided in spec.distinct.items():
            different = {self._value(row, sided) for row in rows}
            result[name] = len(different - {None})
        return result

    def _best(self, results: list[Json]) -> list[Json]:
        """Keep those with the most of something; equal ones in the order of their keys."""
        top = self._spec.top
        assert top is not None
        rest = [name for name in self._spec.keys if name not in top.per]
        groups: dict[Any, list[Json]] = {}
        for result in results:
            per = (result["windowStart"], result["windowEnd"], *(result[name] for name in top.per))
            groups.setdefault(per, []).append(result)

        def order(result: Json) -> list[Any]:
            by = result[top.by]
            most = (1, 0) if by is None else (0, -by)
            return [most, *((result[name] is None, result[name]) for name in rest)]

        best = []
        for group in groups.values():
            for rank, result in enumerate(sorted(group, key=order)[: top.count], 1):
                best.append({**result, "rank": rank})
        return best


def _plain(value: Any) -> Any:
    return iso(value) if isinstance(value, datetime) else value
