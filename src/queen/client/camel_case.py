"""The names of the JavaScript client, for those who come from it, and those of the wire.

Every method and field is written once, in Python's spelling. A class with this mixin answers to
the other spelling as well: `stream.tumblingTime(60)` is `stream.tumbling_time(60)`, and
`window.leaseId` is `window.lease_id`. Type checkers know Python's names only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

from queen.client.transport.wire_format import camel

T = TypeVar("T")

# What users have pushed is as they have spelled it.
_PAYLOADS = frozenset({"data", "payload"})
_HUMP = re.compile(r"(?<=[a-z0-9])[A-Z]")


def snake(name: str) -> str:
    """Return a name in Python's spelling.

    >>> snake("tumblingTime"), snake("tumbling_time")
    ('tumbling_time', 'tumbling_time')
    """
    return _HUMP.sub(lambda hump: f"_{hump[0].lower()}", name)


class EitherSpelling:
    """What is found under a name of Python is found under that of JavaScript too."""

    # A class that has slots only, keeps them.
    __slots__ = ()

    if not TYPE_CHECKING:
        # Hidden from type checkers: to them every name would exist.
        def __getattr__(self, name: str) -> Any:
            python_name = snake(name)
            if python_name == name or name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(self, python_name)


class AnswerDict(dict[str, Any]):
    """An object that a server has answered. Its keys are those of the wire, some of which the
    original spells one way and some the other; whoever asks finds them in either spelling.

    >>> AnswerDict({"queueName": "a"})["queue_name"], AnswerDict({"event_type": 1}).get("eventType")
    ('a', 1)
    """

    def __missing__(self, key: str) -> Any:
        for name in (snake(key), camel(key)):
            if name != key and dict.__contains__(self, name):
                return dict.__getitem__(self, name)
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key in either spelling."""
        try:
            return self[key]
        except KeyError:
            return default

    def __contains__(self, key: object) -> bool:
        if dict.__contains__(self, key):
            return True
        return isinstance(key, str) and any(
            dict.__contains__(self, name) for name in (snake(key), camel(key))
        )


def in_either_spelling(answer: T) -> T:
    """Return an answer whose objects are found in either spelling, however deep they are."""
    if isinstance(answer, dict):
        either: Any = AnswerDict(
            {
                key: value if key in _PAYLOADS else in_either_spelling(value)
                for key, value in answer.items()
            }
        )
        return either  # type: ignore[no-any-return]
    if isinstance(answer, list):
        items: Any = [in_either_spelling(item) for item in answer]
        return items  # type: ignore[no-any-return]
    return answer
