"""Random definitions, and messages with every fault there is."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.spark.random_definitions import expressions as e
from tests.spark.random_definitions.specs import Join, Planned, Side, Sided, Spec, Top, Window

# Instants around which a clock on the wall is changed, or is not.
_CHANGES = {
    "UTC": ("2024-02-29T12:00:00Z",),
    "Asia/Kolkata": ("2024-06-01T00:00:00Z",),
    "Europe/Berlin": ("2024-03-31T01:00:00Z", "2024-10-27T01:00:00Z"),
    "America/New_York": ("2024-03-10T07:00:00Z", "2024-11-03T06:00:00Z"),
    # By half an hour.
    "Australia/Lord_Howe": ("2024-04-06T15:00:00Z", "2024-10-05T15:30:00Z"),
}
_DAY_MS = 24 * 3600 * 1000
# Of the messages of a past that is made up, in units.
_SPAN = 200
_KEYS = ("a", "b", "B", "c", "ü/1", "")
_HOWS = ("inner", "left", "full", "anti")
_NUMERIC = ("n", "known", "total", "numbers", "least", "mean", "large", "many", "ids", "names")
_BIT = timedelta(microseconds=1)
_MS = timedelta(milliseconds=1)
_AROUND = (-_MS, -_BIT, timedelta(), timedelta(), _BIT, _MS)
_NOT_FITTING: tuple[Any, ...] = (7, "text", [1], {"id": "odd", "x": "seven"}, {"ts": "yesterday"})


def made_up(seed: int, unique: str) -> Spec:
    """Return the definition of a seed; `unique` names its queues."""
    return _Maker(seed, unique).make()


class _Maker:
    def __init__(self, seed: int, unique: str) -> None:
        self._chance = random.Random(f"definition {seed}")
        self._seed = seed
        self._name = f"random-{seed}-{unique}"

    def make(self) -> Spec:
        chance = self._chance
        kind = chance.choices(
            ("tumbling", "sliding", "session", "none", "join", "join and window"),
            (20, 15, 15, 15, 20, 15),
        )[0]
        joins = chance.choice((1, 1, 2)) if kind.startswith("join") else 0
        is_past = chance.random() < 0.75
        spec = Spec(
            seed=self._seed,
            name=self._name,
            sides=self._sides(joins),
            zone_name=chance.choice(list(_CHANGES)),
            is_past=is_past,
            unit_ms=chance.choice((1000, 60_000)) if is_past else 1000,
            grace_ms=0,
            ahead_ms=None,
        )
        spec.grace_ms = self._duration(spec, (0, 0, 0.5, 1, 3, 10, 30), (0, 0, 0.5, 1, 2))
        if chance.random() < 0.4:
            spec.ahead_ms = self._duration(spec, (5, 20, 60), (2, 5))
        # A day of which the clocks are changed has 23 or 25 hours; a duration has not.
        is_long = is_past and chance.random() < 0.08
        spec.grace_ms = _DAY_MS if is_long else spec.grace_ms
        for number in range(joins):
            spec.joins.append(self._join(spec, number))
        if is_long and joins == 1:
            spec.joins[0].within_ms = _DAY_MS
        if kind in ("tumbling", "sliding", "session"):
            spec.window = self._window(spec, kind)
        elif kind == "join and window":
            spec.window = self._window(spec, chance.choice(("tumbling", "sliding", "session")))
        if spec.window is not None:
            self._add_aggregates(spec)
        else:
            self._add_select(spec)
        if chance.random() < 0.7:
            spec.late_to = f"{self._name}-late"
        if chance.random() < 0.6:
            spec.errors_to = f"{self._name}-errors"
        if not spec.needs_time:
            spec.late_to = spec.ahead_ms = None
        return spec

    def _duration(
        self, spec: Spec, of_the_past: tuple[float, ...], of_the_present: tuple[float, ...]
    ) -> int:
        units = self._chance.choice(of_the_past if spec.is_past else of_the_present)
        return round(units * spec.unit_ms)

    def _sides(self, joins: int) -> list[Side]:
        chance = self._chance
        names = ("one", "two", "three")[: joins + 1]
        many = chance.choice((1, 1, 2, 3)) if not joins else chance.choice((1, 1, 3 - joins))
        sides = []
        for number, name in enumerate(names):
            count = many if number == 0 else 1
            field = chance.choice(("ts", "ts", "s", "s", "ms", None))
            where = chance.sample(e.CONDITIONS, chance.choice((0, 0, 1, 1, 2)))
            queues = [f"{self._name}-{name}-{at}" for at in range(count)]
            time = None if field is None else e.EVENT_TIMES[field]
            sides.append(Side(name, queues, field, time, where if chance.random() < 0.6 else []))
        return sides

    def _join(self, spec: Spec, number: int) -> Join:
        chance = self._chance
        left = "one"
        if number and spec.joins[0].how != "anti":
            left = chance.choice(("one", "two"))
        pairs = [(e.KEY, e.KEY), (e.KEY, e.UPPER_KEY), (e.X, e.X)]
        if number == 0:
            # Over rows of several sides an error is that of the pipeline.
            pairs.append((e.NUMBER, e.X))
        on = [chance.choice(pairs)] + ([(e.REST, e.REST)] if chance.random() < 0.2 else [])
        within_ms = self._duration(spec, (0.5, 1, 2, 5), (0.5, 1))
        return Join(left, on, within_ms, chance.choice(_HOWS))

    def _window(self, spec: Spec, kind: str) -> Window:
        if kind == "session":
            return Window(kind, gap_ms=self._duration(spec, (1, 3, 8), (0.5, 1)))
        size_ms = self._duration(spec, (2, 5, 7, 10, 30), (1, 2, 3))
        if kind == "tumbling":
            return Window(kind, size_ms=size_ms)
        slide_ms = min(size_ms, self._duration(spec, (1, 2, 3, 5), (0.5, 1)))
        return Window(kind, size_ms=size_ms, slide_ms=slide_ms)

    def _there(self, spec: Spec) -> list[str]:
        """Return the sides that are there after the joins."""
        hows = ["", *(join.how for join in spec.joins)]
        return [side.name for side, how in zip(spec.sides, hows, strict=True) if how != "anti"]

    def _sided(self, spec: Spec, expression: e.Expression) -> Sided:
        return self._chance.choice(self._there(spec)), expression

    # ---- windows ----

    def _add_aggregates(self, spec: Spec) -> None:
        chance = self._chance
        keys = e.JOINED_KEYS if spec.joins else e.SINGLE_KEYS
        for name in chance.sample(list(keys), chance.choice((0, 1, 1, 1, 2))):
            spec.keys[name] = self._sided(spec, keys[name])
        aggregates = e.JOINED_AGGREGATES if spec.joins else e.SINGLE_AGGREGATES
        for name in chance.sample(list(aggregates), chance.choice((0, 1, 1, 2, 3))):
            spec.aggregates[name] = (chance.choice(self._there(spec)), aggregates[name])
        if not spec.aggregates or chance.random() < 0.2:
            distinct = {"ids": e.ID, "names": e.KEY}
            for name in chance.sample(list(distinct), chance.choice((1, 1, 2))):
                spec.distinct[name] = self._sided(spec, distinct[name])
        if chance.random() < 0.3:
            spec.dedup = self._dedup(spec)
        self._choose_results(spec)

    def _dedup(self, spec: Spec) -> list[Sided]:
        assert spec.window is not None
        if spec.window.type == "session":
            return self._identity(spec)
        expressions = self._chance.choice(([e.ID], [e.KEY], [e.REST, e.KEY]))
        return [self._sided(spec, expression) for expression in expressions]

    def _identity(self, spec: Spec) -> list[Sided]:
        """Return what only copies of a message have in common; nothing when it needs a time."""
        if spec.sides[0].time is None:
            return []
        return [(side, e.ID) for side in self._there(spec)]

    def _choose_results(self, spec: Spec) -> None:
        chance = self._chance
        computed = [name for name in [*spec.aggregates, *spec.distinct] if name in _NUMERIC]
        if chance.random() < 0.35:
            assert spec.window is not None
            length_ms = spec.window.gap_ms or spec.window.size_ms
            spec.having.append(chance.choice(e.window_conditions(length_ms)))
        if computed and chance.random() < 0.3:
            spec.having.append(e.at_least(chance.choice(computed), chance.choice((1, 2, 5))))
        if computed and spec.keys and chance.random() < 0.25:
            per = [name for name in spec.keys if chance.random() < 0.3]
            spec.top = Top(chance.choice((1, 2, 3)), chance.choice(computed), per)
        if chance.random() < 0.25:
            names = ["windowStart", *spec.keys, *(["rank"] if spec.top else [])]
            spec.select_results = {f"r_{name}": e.result_column(name) for name in names}
            spec.select_results["local"] = e.LOCAL_START
            spec.select_results |= {f"twice_{name}": e.twice(name) for name in computed}

    # ---- without windows ----

    def _add_select(self, spec: Spec) -> None:
        chance = self._chance
        if chance.random() < 0.35:
            spec.dedup = self._identity(spec)
        if not spec.joins and chance.random() < 0.3:
            return
        pool = {"id": e.ID, "k": e.KEY, "x": e.X, "upper": e.UPPER_KEY, "hour": e.HOUR}
        if not spec.dedup:
            # Copies may stand in different places.
            pool |= {"queue": e.QUEUE, "partition": e.PARTITION}
        if not spec.joins:
            pool |= {"number": e.NUMBER, "at": e.AT_TEXT}
        for side in self._there(spec):
            names = {"id", *chance.sample(list(pool), 2)}
            for name in sorted(names):
                spec.select[f"{side}_{name}"] = (side, pool[name])


# ---- messages ----


class Messages:
    """Makes up the messages of a definition, one after the other."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._chance = random.Random(f"messages {spec.seed}")
        self._number = 0
        self._sent: list[Planned] = []
        self._times: list[tuple[Any, datetime]] = []
        self.count = self._chance.randrange(*((40, 90) if spec.joins else (50, 140)))

    def of_the_past(self) -> list[Planned]:
        """Return all of them, written when they say."""
        spec, chance = self._spec, self._chance
        change = datetime.fromisoformat(chance.choice(_CHANGES[spec.zone_name]))
        unit = timedelta(milliseconds=spec.unit_ms)
        now = change - unit * chance.randrange(50, 150)
        planned: list[Planned] = []
        while len(planned) < self.count:
            if chance.random() < 0.7:
                now += unit * (_SPAN / self.count * chance.random() * 2)
                now = now.replace(microsecond=now.microsecond // 1000 * 1000)
            if chance.random() < 0.2:
                now += _BIT * chance.choice((1, 500, 999))
            now = self._on_an_edge(now) if chance.random() < 0.1 else now
            planned.append(self.next(now))
        return planned

    def _on_an_edge(self, now: datetime) -> datetime:
        """Return a time after now at which a window closes, or almost."""
        window = self._spec.window
        if window is None or not window.size_ms:
            return now
        step = timedelta(milliseconds=window.slide_ms or window.size_ms)
        end = e.EPOCH + (now - self._spec.grace - e.EPOCH) // step * step + step
        if window.slide_ms:
            end += timedelta(milliseconds=window.size_ms % window.slide_ms)
        return max(now, end + self._spec.grace + self._chance.choice(_AROUND))

    def next(self, now: datetime) -> Planned:
        """Return the next message, as somebody writes it now."""
        chance = self._chance
        if self._sent and chance.random() < 0.08:
            message = self._again(now)
        else:
            side = chance.choice(self._spec.sides)
            payload = self._payload(side, now)
            if chance.random() < 0.025:
                payload = chance.choice(_NOT_FITTING)
            message = Planned(chance.choice(side.queues), self._partition(), payload, now)
        self._sent.append(message)
        return message

    def _again(self, now: datetime) -> Planned:
        before = self._chance.choice(self._sent[-20:])
        side = next(side for side in self._spec.sides if before.queue in side.queues)
        queue = self._chance.choice(side.queues)
        return Planned(queue, self._partition(), before.payload, now)

    def _partition(self) -> str:
        return self._chance.choice(("p", "q", "r"))

    def _payload(self, side: Side, now: datetime) -> dict[str, Any]:
        chance = self._chance
        self._number += 1
        key = chance.choice(_KEYS) if chance.random() < 0.93 else None
        payload: dict[str, Any] = {
            "id": f"m{self._number}",
            "k": key,
            "x": chance.randrange(12) if chance.random() < 0.95 else None,
            "n": str(chance.randrange(12)),
        }
        if chance.random() < 0.1:
            payload["n"] = chance.choice((None, "many", "1,5"))
        return payload | self._time_fields(side, self._time(key, now))

    def _time_fields(self, side: Side, at: datetime | None) -> dict[str, Any]:
        chance = self._chance
        if at is None:
            return {} if chance.random() < 0.5 else {"ts": None, "s": None, "ms": None}
        local = at.astimezone(self._spec.zone).replace(tzinfo=None)
        text = local.isoformat(" ")
        if chance.random() < 0.1:
            text = at.isoformat().replace("+00:00", "Z")
        ts = at.isoformat().replace("+00:00", "Z" if chance.random() < 0.8 else "")
        at_ms = (at - e.EPOCH) // _MS
        if chance.random() < 0.04:
            text, at_ms = chance.choice(("soon", "2024-02-30 10:00:00")), 2**63 - 1
        return {"ts": ts, "s": text, "ms": at_ms}

    def _time(self, key: Any, now: datetime) -> datetime | None:
        """Return when a message says that it happened; None when it does not say."""
        chance, spec = self._chance, self._spec
        unit = timedelta(milliseconds=spec.unit_ms)
        kinds = {
            "prompt": 45, "edge": 12, "late": 10, "soon": 5, "ahead": 4, "never": 3,
            "near": 25 if self._times else 0,
        }  # fmt: skip
        kind = chance.choices(list(kinds), list(kinds.values()))[0]
        if kind == "never":
            return None
        if kind == "prompt":
            at = now - (spec.grace * 0.9 + unit * 0.2) * chance.random()
        elif kind == "edge":
            at = now - spec.grace + chance.choice(_AROUND)
        elif kind == "late":
            at = now - spec.grace - unit * chance.choice((1, 5, 40)) * chance.random()
        elif kind == "soon":
            at = now + unit * (5 if spec.is_past else 2) * chance.random()
        elif kind == "ahead":
            at = self._ahead(now)
        else:
            at = self._near(key)
        if chance.random() < 0.8 and kind != "edge":
            at = at.replace(microsecond=at.microsecond // 1000 * 1000)
        self._times.append((key, at))
        return at

    def _ahead(self, now: datetime) -> datetime:
        if self._chance.random() < 0.3:
            return datetime(9999, 6, 1, tzinfo=UTC)
        return now + self._spec.ahead + self._chance.choice(_AROUND)

    def _near(self, key: Any) -> datetime:
        """Return a time at which something is just decided by one that was before."""
        chance, spec = self._chance, self._spec
        of_key = [at for other, at in self._times[-30:] if other == key and at.year < 9999]
        some = of_key or [at for _, at in self._times[-30:] if at.year < 9999]
        if not some:
            return e.EPOCH
        apart_ms = [0, *(join.within_ms for join in spec.joins)]
        if spec.window is not None and spec.window.gap_ms:
            apart_ms.append(spec.window.gap_ms)
        apart = timedelta(milliseconds=chance.choice(apart_ms)) * chance.choice((-1, 1))
        return chance.choice(some) + apart + chance.choice(_AROUND)
