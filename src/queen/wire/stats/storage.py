"""What is stored and how long there is room for it, and the findings of a check-up."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class KeptQueue(msgspec.Struct, rename="camel"):
    """A queue that keeps every message."""

    name: str
    messages: int
    stored_bytes: int
    pushed_bytes_per_day: int | None


class Disk(msgspec.Struct, rename="camel"):
    path: str
    total_bytes: int
    free_bytes: int


class StorageForecast(msgspec.Struct, rename="camel"):
    at: str
    database_bytes: int
    disk: Annotated[Disk | None, Meta(description="Null when the database is on another machine.")]
    growth_bytes_per_day: Annotated[
        int | None,
        Meta(description="Of the queues that keep everything; null while too little was seen."),
    ]
    observed_seconds: Annotated[
        float, Meta(description="How long pushes were counted, up to 7 days.")
    ]
    days_until_full: float | None
    queues_keeping_everything: Annotated[
        int, Meta(description="Queues without retention: they keep messages for ever.")
    ]
    bytes_kept_for_ever: int
    queues: Annotated[list[KeptQueue], Meta(description="The largest of them, at most 100.")]
    sentence: Annotated[
        str | None, Meta(description="The same in words; null when every queue lets go.")
    ]


class Finding(msgspec.Struct):
    check: str
    level: Literal["ok", "warning", "problem", "unknown"]
    says: str
    advice: Annotated[str, Meta(description="What to do; empty when there is nothing to do.")]


class CheckupAnswer(msgspec.Struct):
    version: Annotated[str, Meta(description="Of the server.")]
    now: Annotated[str, Meta(description="What the clock of the server says.")]
    problems: int
    warnings: int
    findings: list[Finding]
