"""Writing DataFrames into queues, each row once.

    task ──▶ stage   its rows, under (query, batch, run, task, attempt)
    driver ─▶ commit  names the stages of the attempts that count; the broker publishes them in
                      one transaction that also records the batch

Tasks that fail leave stages that nobody names. A batch that Spark repeats after a crash is
recorded already, and stays as it is. A second driver with the same checkpoint opens the query
again, which fences the first. The driver's side of Spark does not tell a writer which query it
works for, only tasks know; so tasks open the query, and what they learn travels to the driver
in their messages. See `queen.service.sinks.sinks` for the broker's side.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from queen.core.frame import CONTENT_TYPE
from queen.core.names import reason_against_name
from queen.errors import BadRequest, Conflict, QueenError
from queen.spark.broker import Broker, BrokerAddress, address_of
from queen.spark.sink.row_frames import Framed, Layout, frames_of, layout_of, reason_with_row

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("queen.spark")

# Of one request. A frame is larger only if one message is.
_PART_BYTES = 8 * 1024 * 1024
_MAX_QUERY_BYTES = 160
# A full queue or a database that is restarted may need some time.
_RETRY_S = 60.0


def batch_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return what writes a DataFrame once."""
    if overwrite:
        raise ValueError("a queue cannot be overwritten: write with mode('append')")
    name = _transaction_name(options)
    number = options.get("transactionbatch", "0")
    if not number.isdecimal():
        raise ValueError(f"option transactionBatch is {number!r}, not a whole number")
    if "stageto" in options:
        return _staging_writer(options, schema)
    own = uuid.uuid4().hex
    # Without a name it is a query of its own, which nobody will ever ask for again.
    task = _Task(name or own, own, int(number), once=name is None)
    return QueenWriter(_door_of(options), layout_of(options, schema), task)


def stream_writer(
    options: dict[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """Return what writes each micro-batch of a query."""
    if overwrite:
        raise ValueError("a queue takes rows as they are: use output mode append")
    writer = QueenStreamWriter(
        _door_of(options), layout_of(options, schema), _transaction_name(options)
    )
    return writer


class _Door(NamedTuple):
    """Where the broker is, and how long to knock."""

    address: BrokerAddress
    retry_s: float

    def broker(self) -> Broker:
        return Broker(self.address, self.retry_s)


def _door_of(options: dict[str, str]) -> _Door:
    given = options.get("retryseconds", str(_RETRY_S))
    if not given.replace(".", "", 1).isdecimal():
        raise ValueError(f"option retrySeconds is {given!r}, not a number")
    return _Door(address_of(options), float(given))


def _transaction_name(options: dict[str, str]) -> str | None:
    name = options.get("transactionname") or None
    if name is not None:
        reason = reason_against_name("option", name)
        if reason is None and len(name.encode()) > _MAX_QUERY_BYTES:
            reason = f"it is longer than {_MAX_QUERY_BYTES} bytes"
        if reason:
            raise ValueError(f"option transactionName: {reason}")
    return name


class _Task(NamedTuple):
    """For which batch of which query a task works."""

    query: str
    run: str
    batch: int
    once: bool = False


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task has staged; small, it travels to the driver."""

    query: str
    run: str
    epoch: int
    batch: int
    task: int
    attempt: int
    messages: int
    # The batch is published; the task has sent nothing.
    is_old: bool = False


class QueenWriter(DataSourceArrowWriter):
    """Writes a DataFrame in one batch. The names of its methods are Spark's."""

    def __init__(self, door: _Door, layout: Layout, task: _Task) -> None:
        self._door = door
        self._layout = layout
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _stage(self._door, self._layout, self._task, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._door, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._door, messages)


class StagingWriter(DataSourceArrowWriter):
    """Writes a DataFrame as far as the broker, and leaves it to somebody else to publish it.

    The driver's side of Spark is a process beside the program that asked, so what was staged is
    told in a file: the body of a commit, or of the ack of a window.
    """

    def __init__(
        self, door: _Door, layout: Layout, task: _Task, first_task: int, told: str
    ) -> None:
        self._door = door
        self._layout = layout
        self._task = task
        self._first_task = first_task
        self._told = told

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _stage(self._door, self._layout, self._task, iterator, self._first_task)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        named = [one for one in messages if isinstance(one, Staged) and one.messages]
        body = _request(named, "commit")[1] if named else None
        Path(self._told).write_bytes(msgspec.json.encode(body))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._door, messages)


def _staging_writer(options: dict[str, str], schema: StructType) -> StagingWriter:
    task = _Task(options["transactionname"], options["stagerun"], 0, once=True)
    door, layout = _door_of(options), layout_of(options, schema)
    return StagingWriter(door, layout, task, int(options["firsttask"]), options["stageto"])


class QueenStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query. The names of its methods are Spark's."""

    def __init__(self, door: _Door, layout: Layout, name: str | None) -> None:
        self._door = door
        self._layout = layout
        self._name = name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        query = context.getLocalProperty("sql.streaming.queryId")
        run = context.getLocalProperty("spark.jobGroup.id")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or run is None or batch is None:
            raise QueenError("Spark does not say which query this is; is it a streaming query?")
        task = _Task(self._name or query, run, int(batch))
        return _stage(self._door, self._layout, task, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _commit(self._door, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _abort(self._door, messages)


# ---- on an executor ----


class _Opened(NamedTuple):
    epoch: int
    last_batch: int


# Of the queries that this process has worked for lately.
_opened: dict[tuple[BrokerAddress, str, str], _Opened] = {}
_MAX_OPENED = 64


def _open(door: _Door, task: _Task) -> _Opened:
    """Return the epoch of this run; the first task that asks gives it one."""
    key = (door.address, task.query, task.run)
    found = _opened.get(key)
    if found is None:
        body = {"run": task.run, "once": task.once}
        answer = door.broker().ask("POST", _path(task.query, "open"), body)
        last = answer["lastBatch"]
        found = _Opened(answer["epoch"], -1 if last is None else last)
        while len(_opened) >= _MAX_OPENED:
            del _opened[next(iter(_opened))]
        _opened[key] = found
    return found


def _stage(
    door: _Door,
    layout: Layout,
    task: _Task,
    batches: Iterator[pa.RecordBatch],
    first_task: int = 0,
) -> Staged:
    """Send the rows of a task to the broker, in parts."""
    context = _context()
    number, attempt = first_task + context.partitionId(), context.taskAttemptId()
    prefix = f"{task.query}:{task.batch}:{number}:"
    stage = _Stage(door, task, number, attempt)
    try:
        for framed in frames_of(batches, layout, prefix):
            stage.add(framed)
            if stage.is_old:
                break
    except ValueError as error:
        raise BadRequest(f"task {number}, {error}") from None
    stage.send()
    return Staged(
        task.query,
        task.run,
        stage.epoch,
        task.batch,
        number,
        attempt,
        stage.messages,
        stage.is_old,
    )


class _Stage:
    """What an attempt of a task stages, part by part. Opens nothing as long as it is empty."""

    def __init__(self, door: _Door, task: _Task, number: int, attempt: int) -> None:
        self._door = door
        self._broker = door.broker()
        self._task = task
        self._key = {"run": task.run, "batch": task.batch, "task": number, "attempt": attempt}
        self._waiting: list[Framed] = []
        self._bytes = self._parts = 0
        self.messages = 0
        self.epoch = 0
        self.is_old = False

    def add(self, framed: Framed) -> None:
        if not self.epoch:
            opened = _open(self._door, self._task)
            self.epoch = opened.epoch
            self.is_old = self._task.batch <= opened.last_batch
        if self.is_old:
            return
        size = len(framed.segment.data) + len(framed.segment.ids)
        if self._waiting and (
            self._bytes + size > _PART_BYTES or self._waiting[0].has_own_ids != framed.has_own_ids
        ):
            self.send()
        self._waiting.append(framed)
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
        path = f"{_path(self._task.query, 'stage')}?{urlencode(part)}"
        body = b"".join(one.packed for one in self._waiting)
        try:
            self._broker.call("POST", path, body, CONTENT_TYPE)
        except BadRequest as error:
            reason = reason_with_row(self._waiting)
            raise BadRequest(f"task {self._key['task']}, {reason or error.message}") from None
        self.messages += sum(one.segment.count for one in self._waiting)
        self._parts += 1
        self._waiting, self._bytes = [], 0


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def _path(query: str, verb: str) -> str:
    return f"/api/v1/sink/{quote(query, safe='')}/{verb}"


# ---- on the driver ----


def _commit(door: _Door, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Publish what the tasks of a batch have staged."""
    staged = [one for one in messages if isinstance(one, Staged)]
    for one in staged:
        if one.is_old:
            _say_already(one)
            return
    named = [one for one in staged if one.messages]
    if not named:
        return
    first = named[0]
    if len({one.epoch for one in named}) > 1:
        raise Conflict(f"two runs of query {first.query!r} have written one batch; start it again")
    answer = door.broker().ask("POST", *_request(named, "commit"))
    if answer["status"] == "already":
        _say_already(first)


def _abort(door: _Door, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop what the tasks of a batch have staged. What is published stays published."""
    named = [one for one in messages if isinstance(one, Staged) and one.messages]
    if not named:
        return
    try:
        Broker(door.address, retry_s=0).ask("POST", *_request(named, "abort"))
    except QueenError as error:
        # The broker removes it later.
        _log.info("stages of query %s could not be dropped: %s", named[0].query, error)


def _request(named: list[Staged], verb: str) -> tuple[str, dict[str, Any]]:
    first = named[0]
    stages = [{"task": one.task, "attempt": one.attempt, "messages": one.messages} for one in named]
    body = {"run": first.run, "epoch": first.epoch, "batch": first.batch, "stages": stages}
    return _path(first.query, verb), body


def _say_already(staged: Staged) -> None:
    _log.warning("batch %d of query %s is published already", staged.batch, staged.query)
