"""Stages of a sink: tasks send rows to the broker, the driver commits or aborts them.

A task opens its sink with the first row that it has, so a task without rows asks for nothing.
What it has staged, a `Stage`, travels to the driver; a commit names the stages that count.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from queen.core.frame import CONTENT_TYPE
from queen.errors import BadRequest, Conflict, QueenError
from queen.spark.broker import Broker, BrokerAddress
from queen.spark.dead_letters import DeadLetter, set_aside
from queen.spark.sink.row_frames import (
    DEAD_LETTER,
    TEXT,
    Layout,
    RowFrame,
    frames_of,
    reason_with_row,
)

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("queen.spark")

# Of one request. A frame is larger only if one message is.
_PART_BYTES = 8 * 1024 * 1024


class BrokerAccess(NamedTuple):
    """Where the broker is, and how long to try."""

    address: BrokerAddress
    retry_s: float
    # Whose messages are set aside.
    pipeline: str = ""

    def broker(self) -> Broker:
        return Broker(self.address, self.retry_s)


class SinkBatch(NamedTuple):
    """The batch that a task works for, of which sink and in which run."""

    sink: str
    run: str
    number: int
    # Nobody will ask for this sink again.
    once: bool = False


@dataclass(frozen=True)
class Stage(WriterCommitMessage):
    """What a task has staged; small, it travels to the driver."""

    batch: SinkBatch
    epoch: int
    task: int
    attempt: int
    messages: int
    # The batch is published; the task has sent nothing.
    is_old: bool = False


# ---- on an executor ----


def stage_rows(
    access: BrokerAccess,
    layout: Layout,
    batch: SinkBatch,
    rows: Iterator[pa.RecordBatch],
    first_task: int = 0,
) -> Stage:
    """Send the rows of a task to the broker, in parts."""
    rows = _messages_among(access, rows)
    context = task_context()
    task, attempt = first_task + context.partitionId(), context.taskAttemptId()
    stager = _Stager(access, batch, task, attempt)
    try:
        for frame in frames_of(rows, layout, f"{batch.sink}:{batch.number}:{task}:"):
            stager.add(frame)
            if stager.is_old:
                break
    except ValueError as error:
        raise BadRequest(f"task {task}, {error}") from None
    stager.send()
    return Stage(batch, stager.epoch, task, attempt, stager.messages, stager.is_old)


def _messages_among(
    access: BrokerAccess, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are messages; those that are dead letters are set aside at once."""
    for batch in batches:
        if DEAD_LETTER not in batch.schema.names:
            yield batch
            continue
        ids = batch.column(DEAD_LETTER)
        dead = batch.filter(ids.is_valid())
        letters = [
            DeadLetter(str(name), str(reason))
            for name, reason in zip(dead.column(DEAD_LETTER), dead.column(TEXT), strict=True)
        ]
        set_aside(access.broker(), access.pipeline, letters)
        yield batch.filter(ids.is_null()).drop_columns([DEAD_LETTER])


class _Stager:
    """Sends what an attempt of a task stages, part by part."""

    def __init__(self, access: BrokerAccess, batch: SinkBatch, task: int, attempt: int) -> None:
        self._access = access
        self._broker = access.broker()
        self._batch = batch
        self._key = {"run": batch.run, "batch": batch.number, "task": task, "attempt": attempt}
        self._waiting: list[RowFrame] = []
        self._bytes = self._parts = 0
        self.messages = 0
        self.epoch = 0
        self.is_old = False

    def add(self, frame: RowFrame) -> None:
        if not self.epoch:
            run = _open_sink(self._access, self._batch)
            self.epoch = run.epoch
            self.is_old = self._batch.number <= run.last_batch
        if self.is_old:
            return
        size = len(frame.segment.data) + len(frame.segment.ids)
        if self._waiting and (
            self._bytes + size > _PART_BYTES or self._waiting[0].has_own_ids != frame.has_own_ids
        ):
            self.send()
        self._waiting.append(frame)
        self._bytes += size

    def send(self) -> None:
        """Send what is waiting as one part."""
        if not self._waiting:
            return
        part = {
            **self._key,
            "epoch": self.epoch,
            "part": self._parts,
            "unique": str(not self._waiting[0].has_own_ids).lower(),
        }
        path = f"{_path(self._batch.sink, 'stage')}?{urlencode(part)}"
        body = b"".join(frame.packed for frame in self._waiting)
        try:
            self._broker.call("POST", path, body, CONTENT_TYPE)
        except BadRequest as error:
            reason = reason_with_row(self._waiting)
            raise BadRequest(f"task {self._key['task']}, {reason or error.message}") from None
        self.messages += sum(frame.segment.count for frame in self._waiting)
        self._parts += 1
        self._waiting, self._bytes = [], 0


class _OpenRun(NamedTuple):
    epoch: int
    last_batch: int


# Of the sinks that this process has worked for lately.
_open_runs: dict[tuple[BrokerAddress, str, str], _OpenRun] = {}
_MAX_OPEN_RUNS = 64


def _open_sink(access: BrokerAccess, batch: SinkBatch) -> _OpenRun:
    """Return the epoch of this run; the first task that asks gives it one."""
    key = (access.address, batch.sink, batch.run)
    run = _open_runs.get(key)
    if run is None:
        body = {"run": batch.run, "once": batch.once}
        answer = access.broker().ask("POST", _path(batch.sink, "open"), body)
        last = answer["lastBatch"]
        run = _OpenRun(answer["epoch"], -1 if last is None else last)
        while len(_open_runs) >= _MAX_OPEN_RUNS:
            del _open_runs[next(iter(_open_runs))]
        _open_runs[key] = run
    return run


def task_context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def _path(sink: str, verb: str) -> str:
    return f"/api/v1/sink/{quote(sink, safe='')}/{verb}"


# ---- on the driver ----


def commit_stages(access: BrokerAccess, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Publish what the tasks of a batch have staged."""
    for message in messages:
        if isinstance(message, Stage) and message.is_old:
            _warn_already_published(message.batch)
            return
    stages = stages_with_rows(messages)
    if not stages:
        return
    batch = stages[0].batch
    if len({stage.epoch for stage in stages}) > 1:
        raise Conflict(f"two runs of query {batch.sink!r} have written one batch; start it again")
    answer = access.broker().ask("POST", _path(batch.sink, "commit"), stages_body(stages))
    if answer["status"] == "already":
        _warn_already_published(batch)


def abort_stages(access: BrokerAccess, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop what the tasks of a batch have staged. What is published stays published."""
    stages = stages_with_rows(messages)
    if not stages:
        return
    sink = stages[0].batch.sink
    try:
        Broker(access.address, retry_s=0).ask("POST", _path(sink, "abort"), stages_body(stages))
    except QueenError as error:
        # The broker removes it later.
        _log.info("stages of query %s could not be dropped: %s", sink, error)


def stages_with_rows(messages: Sequence[WriterCommitMessage | None]) -> list[Stage]:
    """Return the stages among the messages of tasks; those without rows are nowhere stored."""
    return [message for message in messages if isinstance(message, Stage) and message.messages]


def stages_body(stages: Sequence[Stage]) -> dict[str, Any]:
    """Return the body of a commit or an abort, which names the stages of a batch."""
    first = stages[0]
    return {
        "run": first.batch.run,
        "epoch": first.epoch,
        "batch": first.batch.number,
        "stages": [
            {"task": stage.task, "attempt": stage.attempt, "messages": stage.messages}
            for stage in stages
        ],
    }


def _warn_already_published(batch: SinkBatch) -> None:
    _log.warning("batch %d of query %s is published already", batch.number, batch.sink)
