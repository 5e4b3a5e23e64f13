"""Fields of messages, named by their path: `data.user`, `data.items.0.price`, `queue`.

A path begins at the message, goes through objects by key and through arrays by number, and reads
the payload as JSON has it. What is not there is `ABSENT`; null is not there either, for all that
is computed here: it is passed over by aggregates and matches nothing in a join.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from queen.client.streams.messages import WindowMessage

# A path, or a function of a message.
Field = str | Callable[[WindowMessage], Any]


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()

_encoder = msgspec.json.Encoder(order="deterministic")


def value_at(message: WindowMessage, field: Field) -> Any:
    """Return what a message has there, `ABSENT` when it has nothing or null."""
    if not isinstance(field, str):
        value = field(message)
        return ABSENT if value is None else value
    first, *rest = field.split(".")
    if first in ("data", "payload"):
        value = message.plain
    elif first in message:
        value = message[first]
    else:
        raise ValueError(f"a path begins with a field of the message, as data.{field}: {field!r}")
    for name in rest:
        value = _inside(value, name)
    return ABSENT if value is None else value


def _inside(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
        return value[int(name)]
    return None


def values_at(messages: Iterable[WindowMessage], field: Field) -> Iterator[Any]:
    """Yield what messages have there, passing over those that have nothing."""
    for message in messages:
        value = value_at(message, field)
        if value is not ABSENT:
            yield value


def numbers_at(messages: Iterable[WindowMessage], field: Field) -> list[int | float]:
    """Return the numbers that messages have there. Neither true nor "7" is a number."""
    return [
        value
        for value in values_at(messages, field)
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


def identity(value: Any) -> Any:
    """Return what equal values share and others do not: 1 is 1.0, but neither is true or "1"."""
    if isinstance(value, bool | dict | list):
        return (type(value), hashable(value))
    return value


def hashable(value: Any) -> Any:
    """Return a value that can be the key of a dict; objects and arrays are their JSON."""
    return _encoder.encode(value).decode() if isinstance(value, dict | list) else value
