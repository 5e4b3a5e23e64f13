"""Groups and joins of the messages of a window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from queen.client.streams.fields import ABSENT, Field, hashable, identity, value_at
from queen.client.streams.messages import WindowMessage

# Where messages go that have nothing to be grouped by.
NULL_KEY = "null_key"

How = Literal["inner", "left"]


class Joined(NamedTuple):
    """Two messages with the same value; `right` is None where a left join found none."""

    key: Any
    left: WindowMessage
    right: WindowMessage | None


def group_messages(
    messages: Iterable[WindowMessage], field: Field, null_key: Any
) -> dict[Any, list[WindowMessage]]:
    """Return messages by what they have in a field, in the order of their first."""
    groups: dict[Any, list[WindowMessage]] = {}
    for message in messages:
        value = value_at(message, field)
        key = null_key if value is ABSENT else hashable(value)
        groups.setdefault(key, []).append(message)
    return groups


def join_messages(
    lefts: Iterable[WindowMessage],
    rights: Iterable[WindowMessage],
    on: Field | tuple[Field, Field],
    how: How,
) -> Iterator[Joined]:
    """Yield the pairs that have the same value; null is the same as nothing, as in SQL."""
    if how not in ("inner", "left"):
        raise ValueError(f"how is 'inner' or 'left', not {how!r}")
    left_on, right_on = on if isinstance(on, tuple) else (on, on)
    matches: dict[Any, list[WindowMessage]] = defaultdict(list)
    for right in rights:
        value = value_at(right, right_on)
        if value is not ABSENT:
            matches[identity(value)].append(right)
    for left in lefts:
        value = value_at(left, left_on)
        matching = matches.get(identity(value), []) if value is not ABSENT else []
        key = None if value is ABSENT else value
        yield from (Joined(key, left, right) for right in matching)
        if not matching and how == "left":
            yield Joined(key, left, None)
