"""What PostgreSQL has refused lately.

A database may answer every question and still take nothing: its disk is full, or it is a
standby. That shows only in the statements that fail, so each failure is noted here by its
SQLSTATE, and forgotten when the same statement succeeds. What nobody has tried for a while
is forgotten too: whoever sends no traffic to a server that is not ready must see it become
ready some time, or nobody would ever try again.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import asyncpg

_LATELY_S = 30.0
_DISK_FULL = "53100"
_READ_ONLY = "25006"
_APPEND = "append"
# Not enough resources, and errors of the system below PostgreSQL.
_CLASSES = ("53", "58")
_WORDS = {
    _DISK_FULL: "PostgreSQL has no disk space left",
    _READ_ONLY: "PostgreSQL is read-only",
}


class _Refusal(NamedTuple):
    state: str
    at: float


class Refusals:
    def __init__(self) -> None:
        # By the name of the statement.
        self._refused: dict[str, _Refusal] = {}

    def note(self, name: str, error: asyncpg.PostgresError, *, is_hot: bool) -> None:
        """Note that a statement failed, if that says something about all others like it.

        A full disk and a standby refuse everybody. Other wants of resources count only for
        what must be fast: one large report that found no memory is no reason to leave.
        """
        state = error.sqlstate or ""
        if state in _WORDS or (is_hot and state[:2] in _CLASSES):
            self._refused[name] = _Refusal(state, time.monotonic())

    def forget(self, name: str) -> None:
        """Note that a statement succeeded. One that wrote messages shows that there is room."""
        if name == _APPEND:
            self._refused.clear()
        elif self._refused:
            self._refused.pop(name, None)

    def latest(self) -> str | None:
        """Say what PostgreSQL refuses now, as far as anybody has tried lately."""
        last = max(self._refused.values(), key=lambda refusal: refusal.at, default=None)
        if last is None or time.monotonic() - last.at > _LATELY_S:
            return None
        words = _WORDS.get(last.state, "PostgreSQL lacks what it needs")
        return f"{words} (SQLSTATE {last.state})"
