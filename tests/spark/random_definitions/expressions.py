"""What random definitions compute: each expression as Spark SQL, and as Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

SCHEMA = "id string, k string, s string, ms bigint, n string, x bigint, ts timestamp"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXTS = ("id", "k", "s", "n")
_NUMBERS = ("ms", "x")
_MOST_MS = (2**63 - 1) // 1000


class CannotCompute(Exception):
    """An expression fails on a message."""


# Why a message is set aside whose payload does not fit.
UNFIT = "the payload is not what the schema says"


class Message(NamedTuple):
    """A message as the broker has it."""

    queue: str
    partition: str
    offset: int
    transaction: str
    created: datetime
    payload: Any

    @property
    def data(self) -> dict[str, Any] | None:
        return fitting(self.payload)

    @property
    def fits(self) -> bool:
        """Whether the payload is what the schema says; one that is null has no fields."""
        return self.payload is None or self.data is not None

    def field(self, name: str) -> Any:
        data = self.data
        return None if data is None else data.get(name)


def fitting(payload: Any) -> dict[str, Any] | None:
    """Return a payload as the schema has it, or None when it does not fit."""
    if not isinstance(payload, dict):
        return None
    data = dict(payload)
    if any(not isinstance(data.get(name), str | None) for name in _TEXTS):
        return None
    if any(not isinstance(data.get(name), int | None) for name in _NUMBERS):
        return None
    if data.get("ts") is not None:
        try:
            # A timestamp of the schema that names no zone is UTC in every zone.
            data["ts"] = instant(data["ts"], UTC)
        except ValueError:
            return None
    return data


def instant(text: str, zone: Any) -> datetime:
    """Return the instant that a text names; of two that it may name, the first."""
    at = datetime.fromisoformat(text)
    return (at.replace(tzinfo=zone) if at.tzinfo is None else at).astimezone(UTC)


# The messages of a row by the names of their sides; None when a join found no partner.
Row = Mapping[str, Message | None]
Value = Callable[[Row], Any]


class Expression(NamedTuple):
    """Over the columns of one message."""

    # With `{m}` before each column: after a join there stands the name of a side.
    text: str
    value: Callable[[Message, ZoneInfo], Any]

    def sql(self, side: str | None = None) -> str:
        return self.text.format(m=f"{side}." if side else "")

    def of(self, message: Message | None, zone: ZoneInfo) -> Any:
        """Return its value; of a side that is not there all columns are null."""
        return self.value(message or _NOBODY, zone)

    def fails(self, message: Message, zone: ZoneInfo) -> bool:
        try:
            self.value(message, zone)
        except CannotCompute:
            return True
        return False


_NOBODY: Any = type(
    "Nobody", (), {"field": lambda _self, _name: None, "queue": None, "partition": None}
)()


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise CannotCompute from None


def _instant_of_text(text: str | None, zone: ZoneInfo) -> datetime | None:
    if text is None:
        return None
    try:
        return instant(text, zone)
    except ValueError:
        raise CannotCompute from None


def _instant_of_ms(at_ms: int | None) -> datetime | None:
    if at_ms is None:
        return None
    if abs(at_ms) > _MOST_MS:
        raise CannotCompute
    return EPOCH + timedelta(milliseconds=at_ms)


def _null_or(value: Any, function: Callable[[Any], Any]) -> Any:
    return None if value is None else function(value)


def _field(name: str) -> Expression:
    return Expression(f"{{m}}data.{name}", lambda message, _zone: message.field(name))


ID, KEY, X = _field("id"), _field("k"), _field("x")
UPPER_KEY = Expression(
    "upper({m}data.k)", lambda message, _zone: _null_or(message.field("k"), str.upper)
)
REST = Expression(
    "{m}data.x % 3", lambda message, _zone: _null_or(message.field("x"), lambda x: x % 3)
)
QUEUE = Expression("{m}queue", lambda message, _zone: message.queue)
PARTITION = Expression("{m}partition", lambda message, _zone: message.partition)
NUMBER = Expression("cast({m}data.n as int)", lambda message, _zone: _number(message.field("n")))
# In the zone of the definition.
HOUR = Expression(
    "hour({m}data.ts)",
    lambda message, zone: _null_or(message.field("ts"), lambda at: at.astimezone(zone).hour),
)

AT_TIMESTAMP = _field("ts")
AT_TEXT = Expression(
    "to_timestamp({m}data.s)", lambda message, zone: _instant_of_text(message.field("s"), zone)
)
AT_MS = Expression(
    "timestamp_millis({m}data.ms)", lambda message, _zone: _instant_of_ms(message.field("ms"))
)
EVENT_TIMES = {"ts": AT_TIMESTAMP, "s": AT_TEXT, "ms": AT_MS}

SINGLE_KEYS = {
    "k": KEY, "upper": UPPER_KEY, "rest": REST, "queue": QUEUE, "partition": PARTITION,
    "number": NUMBER, "hour": HOUR,
}  # fmt: skip
JOINED_KEYS = {"k": KEY, "upper": UPPER_KEY, "rest": REST, "queue": QUEUE, "hour": HOUR}

CONDITIONS = (
    Expression(
        "{m}data.x > 2", lambda message, _zone: _null_or(message.field("x"), lambda x: x > 2)
    ),
    Expression(
        "{m}data.k <> 'b'", lambda message, _zone: _null_or(message.field("k"), lambda k: k != "b")
    ),
    Expression(
        "cast({m}data.n as int) >= 3",
        lambda message, _zone: _null_or(_number(message.field("n")), lambda n: n >= 3),
    ),
    Expression(
        "{m}data.k is null or {m}data.x < 9",
        lambda message, _zone: (
            True if message.field("k") is None else _null_or(message.field("x"), lambda x: x < 9)
        ),
    ),
)


class Aggregate(NamedTuple):
    """Over the rows of a window; `{0}` is what is taken of each."""

    text: str
    argument: Expression | None
    fold: Callable[[Sequence[Any]], Any]

    def sql(self, side: str | None = None) -> str:
        return self.text.format(self.argument.sql(side) if self.argument else "*")


def _known(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _sum(values: Sequence[Any]) -> Any:
    return sum(_known(values)) if _known(values) else None


def _mean(values: Sequence[Any]) -> Any:
    return sum(_known(values)) / len(_known(values)) if _known(values) else None


def _least(values: Sequence[Any]) -> Any:
    return min(_known(values), default=None)


def _most(values: Sequence[Any]) -> Any:
    return max(_known(values), default=None)


def _sum_of_large(values: Sequence[Any]) -> Any:
    return _sum([value for value in _known(values) if value > 4])


SINGLE_AGGREGATES = {
    "n": Aggregate("count({0})", None, len),
    "known": Aggregate("count({0})", KEY, lambda values: len(_known(values))),
    "total": Aggregate("sum({0})", X, _sum),
    "numbers": Aggregate("sum({0})", NUMBER, _sum),
    "least": Aggregate("min({0})", NUMBER, _least),
    "mean": Aggregate("avg({0})", X, _mean),
    "last": Aggregate("max({0})", ID, _most),
    "large": Aggregate("sum({0}) filter (where {0} > 4)", X, _sum_of_large),
    "many": Aggregate(
        "count_if({0} > 4)", X, lambda values: len([value for value in _known(values) if value > 4])
    ),
}
_FAILING = ("numbers", "least")
JOINED_AGGREGATES = {name: made for name, made in SINGLE_AGGREGATES.items() if name not in _FAILING}


class ResultExpression(NamedTuple):
    """Over a result: its window, its keys, what was computed."""

    text: str
    value: Callable[[Mapping[str, Any], ZoneInfo], Any]


def _window_end(result: Mapping[str, Any]) -> datetime:
    end: datetime = result["windowEnd"]
    return end


def _clock(at: datetime, zone: ZoneInfo) -> datetime:
    return at.astimezone(zone).replace(tzinfo=None)


def window_conditions(length_ms: int) -> list[ResultExpression]:
    """Return what may be asked of the windows of results."""
    length = timedelta(milliseconds=length_ms)
    return [
        ResultExpression(
            f"window.end - window.start > interval {length_ms} milliseconds",
            # Spark subtracts times as the clocks of the zone show them, also when these change.
            lambda result, zone: (
                _clock(result["windowEnd"], zone) - _clock(result["windowStart"], zone) > length
            ),
        ),
        ResultExpression(
            "second(window.end) % 2 = 0",
            lambda result, _zone: _window_end(result).second % 2 == 0,
        ),
        ResultExpression(
            "hour(window.start) % 3 <> 0",
            lambda result, zone: result["windowStart"].astimezone(zone).hour % 3 != 0,
        ),
        ResultExpression(
            "minute(window.end) % 2 = 0",
            lambda result, zone: _window_end(result).astimezone(zone).minute % 2 == 0,
        ),
    ]


def at_least(name: str, count: int) -> ResultExpression:
    return ResultExpression(
        f"{name} >= {count}",
        lambda result, _zone: _null_or(result[name], lambda value: value >= count),
    )


def result_column(name: str) -> ResultExpression:
    return ResultExpression(name, lambda result, _zone: result[name])


def twice(name: str) -> ResultExpression:
    return ResultExpression(
        f"{name} * 2", lambda result, _zone: _null_or(result[name], lambda value: value * 2)
    )


LOCAL_START = ResultExpression(
    "date_format(windowStart, 'yyyy-MM-dd HH:mm')",
    lambda result, zone: f"{result['windowStart'].astimezone(zone):%Y-%m-%d %H:%M}",
)
