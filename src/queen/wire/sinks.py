"""Sinks, as programs that compute in many places use them: open, stage, commit, abort."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_BATCH = 2**62
MAX_TASK = 2**31 - 1
MAX_STAGES = 100_000

Run = Annotated[
    str,
    Meta(min_length=1, max_length=255, description="What tells one start of the program apart."),
]
Epoch = Annotated[int, Meta(ge=1, le=MAX_BATCH, description="What opening it gave.")]
BatchNumber = Annotated[int, Meta(ge=0, le=MAX_BATCH, description="Batches go up.")]
Task = Annotated[int, Meta(ge=0, le=MAX_TASK)]
Attempt = Annotated[int, Meta(ge=0, le=MAX_BATCH)]


class OpenSink(msgspec.Struct, rename="camel"):
    """A run of a query that wants to publish."""

    run: Run
    # It publishes one batch and never comes back.
    once: bool = False


class OpenedSink(msgspec.Struct, rename="camel"):
    """The run's number, which fences earlier runs, and the last batch that is published."""

    query: str
    epoch: int
    last_batch: int | None


class StagedPart(msgspec.Struct, rename="camel"):
    """How many messages a part holds."""

    messages: int


class StageRef(msgspec.Struct, rename="camel"):
    """An attempt of a task whose stage counts, and how many messages it staged in all."""

    task: Task
    attempt: Attempt
    messages: Annotated[int, Meta(ge=1, le=MAX_BATCH)]


class CommitSink(msgspec.Struct, rename="camel"):
    """A batch, and the stages that it consists of."""

    run: Run
    epoch: Epoch
    batch: BatchNumber
    stages: Annotated[list[StageRef], Meta(max_length=MAX_STAGES)]


class CommittedSink(msgspec.Struct, rename="camel"):
    """What became of a batch: `committed` now, or `already` before."""

    status: str
    batch: int
    messages: int
    # Not stored, because their transaction ids were there.
    duplicates: int


class AbortedSink(msgspec.Struct, rename="camel"):
    """How many staged parts were dropped."""

    parts: int
