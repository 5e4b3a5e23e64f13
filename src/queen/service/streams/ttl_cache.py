"""What was true a moment ago, and may be taken for true a moment longer.

A consumer asks for window after window of the same stream. What the stream is, and which group
has which number, changes hardly ever; the claim in the database decides anyway.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOMENT_S = 1.0
_MANY = 10_000


class TtlCache(Generic[K, V]):
    def __init__(self) -> None:
        self._entries: dict[K, tuple[float, V]] = {}

    def get(self, key: K) -> V | None:
        at, value = self._entries.get(key, (0.0, None))
        return value if time.monotonic() - at < _MOMENT_S else None

    def put(self, key: K, value: V) -> None:
        if len(self._entries) >= _MANY:
            self._entries.clear()
        self._entries[key] = (time.monotonic(), value)

    def forget(self, key: K) -> None:
        self._entries.pop(key, None)
