"""The names of the JavaScript client, for those who come from it.

Every method and field is written once, in Python's spelling. A class with this mixin answers to
the other spelling as well: `stream.tumblingTime(60)` is `stream.tumbling_time(60)`, and
`window.leaseId` is `window.lease_id`. Type checkers know Python's names only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

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
