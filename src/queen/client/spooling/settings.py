"""What `Queen(spool_options={...})` may say of a client's spool."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypedDict


class SpoolSettings(TypedDict, total=False):
    """All of them may be left out."""

    # What all processes that share the folder may keep in it; then pushes raise `SpoolFull`.
    max_bytes: int
    # What stays free on the disk of the folder.
    min_free_bytes: int
    # The name under which records wait; without it, the addresses of the broker.
    broker: str
    # How long a broker may take for a push before it is put into the spool.
    try_s: float
    # How long `close` lets a broker take what waits.
    close_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The same, complete."""

    max_bytes: int = 1024 * 1024 * 1024
    min_free_bytes: int = 256 * 1024 * 1024
    broker: str = ""
    try_s: float = 5.0
    close_s: float = 5.0


def complete_settings(given: Mapping[str, Any] | None) -> Settings:
    """Return settings with their defaults; one that there is not is an error."""
    known = {field.name for field in dataclasses.fields(Settings)}
    unknown = sorted(set(given or ()) - known)
    if unknown:
        raise ValueError(f"spool_options has no {unknown[0]!r}; it has {', '.join(sorted(known))}")
    return Settings(**(given or {}))
