"""Leased windows as DataFrames.

A window that fits is fetched here and handed to Spark as an Arrow table: for ten thousand rows
that takes a third of the time that tasks of their own would need. A larger one is read by
tasks, in parallel, by the offsets that its lease names.

What is written with `window.write` is computed when the handler has returned: tasks stage the
rows, and the ack that settles the window publishes them, in one transaction. A handler that
fails, a job that fails, a lease that is lost: nothing appears.

The jobs of a handler bear a tag, because somebody else has the window when the lease is lost,
and a job goes on for as long as nobody cancels it. Spark knows the tag by the thread that
starts a job, so a sync handler needs nothing, and an async one runs Spark with `window.run`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec
import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StringType, StructType, VariantType

from queen.client import tracing
from queen.client.streams.processing import Processing
from queen.client.streams.sync import SyncWindow
from queen.client.streams.window import LeasedWindow, Window
from queen.core.columns.headers import HEADERS, headers_text
from queen.core.frame import CONTENT_TYPE, encode_frame
from queen.errors import BadRequest
from queen.spark import register
from queen.spark.arrow.columns import CORRUPT, DATA, check_schema, default_schema
from queen.spark.arrow.typed import type_of
from queen.spark.broker import Broker, address_of
from queen.spark.launch.settings import check_classic, use_in_this_thread
from queen.spark.options import queue_option
from queen.spark.sink.row_frames import PARTITION, QUEUE, TRACE, TRANSACTION, layout_of
from queen.spark.source.planning import WindowRange, offsets_of, selection_of
from queen.spark.source.slices import SliceTask, read_slice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from queen.client.queen import Queen
    from queen.client.streams.consumer import ConsumerBuilder
    from queen.client.streams.messages import Leased

FrameHandler = Callable[[Any, "DataFrame"], Awaitable[Any] | Any]
T = TypeVar("T")
W = TypeVar("W", bound="_FrameWindow")
Self = TypeVar("Self", bound="_FrameWindow")

_log = logging.getLogger("queen.spark")

# As it is stored: compressed. Past this a window is read by tasks.
_LOCAL_BYTES = 8 * 1024 * 1024
# How often jobs of a window that was lost are cancelled, until its handler has ended.
_CANCEL_AGAIN_S = 0.5
# More tasks than one job has.
_TASKS_OF_A_WRITE = 1_000_000


class _FrameSettings(NamedTuple):
    """How windows become DataFrames."""

    spark: SparkSession
    # Where the broker is, as options of the source.
    options: dict[str, str]
    schema: StructType
    local_bytes: int

    @property
    def is_local_possible(self) -> bool:
        return not isinstance(self.schema[DATA].dataType, VariantType)


class _PendingWrite(NamedTuple):
    frame: DataFrame
    queue: str | None


def frame_processing(
    consumer: ConsumerBuilder[Any],
    kind: type[W],
    handler: FrameHandler,
    spark: SparkSession,
    schema: str | DataType | None,
    *,
    signals: bool,
    headers: bool = False,
) -> Processing[W]:
    """Return a run of a handler on windows as DataFrames; `consumer.stop()` knows of it."""
    check_classic(spark, "windows as DataFrames")
    register(spark)
    cluster = consumer._queen.cluster
    options = {"url": ",".join(cluster.urls)}
    if cluster.token:
        options["token"] = cluster.token
    columns = schema_of(schema if schema is not None else consumer._into, headers=headers)
    limit = _LOCAL_BYTES if consumer._inline_bytes is None else consumer._inline_bytes
    frames = _FrameSettings(spark, options, columns, limit)
    # Messages never come with the window: what is stored is quicker to fetch than to spell out.
    configured = consumer._with(
        kind=functools.partial(kind, frames=frames), inline_bytes=0, loads=False, into=None
    )
    run = FrameProcessing[W](configured, cast(Any, handler), signals=signals)
    consumer._started.add(run)
    return run


def schema_of(data: Any, *, headers: bool = False) -> StructType:
    """Return the columns of a window whose `data` is of a type: Spark's, or one of Python's.

    >>> schema_of("user string").simpleString().partition("data:")[2]
    'struct<user:string>,_corrupt:string>'
    """
    schema = default_schema({"headers": "true"} if headers else {})
    if data is None:
        return schema
    if isinstance(data, str):
        data = StructType.fromDDL(data)
    kind = data if isinstance(data, DataType) else type_of(data)
    schema[DATA].dataType = kind
    if not isinstance(kind, StringType):
        # A payload that does not fit would fail its window again and again.
        schema.add(CORRUPT, StringType())
    check_schema(schema, {})
    return schema


class _FrameWindow(LeasedWindow):
    """What a window is when its messages are a DataFrame."""

    def __init__(
        self,
        leased: Leased,
        queen: Queen,
        *,
        frames: _FrameSettings,
        owner: Any = None,
        into: Any = None,
    ) -> None:
        super().__init__(leased, queen, owner=owner, into=into)
        self._frames = frames
        # Jobs with this tag are cancelled when the lease is lost.
        self.tag = f"queen-window-{self.lease_id}"
        self._run_id = uuid.uuid4().hex
        self._writes: list[_PendingWrite] = []
        # What an ack names of them, once they are staged; None when there are no rows.
        self._sink: dict[str, Any] | None = None
        self._is_staged = False

    # ---- in ----

    def _read_frame(self) -> DataFrame:
        """Return the messages as a DataFrame."""
        frames = self._frames
        if self.bytes > frames.local_bytes or not frames.is_local_possible:
            reader = frames.spark.read.format("queen").schema(frames.schema)
            return reader.options(**frames.options, lease=self.lease_id).load()
        selection = selection_of({**frames.options, "lease": self.lease_id}, must_be_whole=False)
        held = [
            WindowRange(part.queue, part.partition_id, part.from_offset, part.to_offset)
            for part in self.ranges
        ]
        ranges = offsets_of(held)
        task = SliceTask(selection.address, ranges, 0)
        batches = list(read_slice(task, frames.schema)) if ranges else []
        if not batches:
            return frames.spark.createDataFrame([], frames.schema)
        return frames.spark.createDataFrame(pa.Table.from_batches(batches), frames.schema)

    # ---- out ----

    def write(
        self: Self, frame: DataFrame, queue: str | None = None, *, partition: str | None = None
    ) -> Self:
        """Write rows to a queue with the ack: all of them, once, or none.

        Columns are those of `format("queen")`: `data`, and if wanted `queue`, `partition`,
        `transactionId`, `traceId` and `headers`. Without a column `data`, all the others are its
        fields. Rows are computed when the handler has returned.
        """
        rows = _as_messages(frame)
        if partition is not None:
            rows = rows.withColumn(PARTITION, f.lit(partition))
        # Refused here, where the caller can see it.
        layout_of({} if queue is None else {"queue": queue_option(queue)}, rows.schema)
        self._writes.append(_PendingWrite(rows, queue))
        return self

    async def _results(self) -> dict[str, Any]:
        await self._stage()
        if self._sink is None:
            return await super()._results()
        if self._pushes:
            # Everything in one transaction.
            pushes = await self._call_in_thread(self._stage_pushes, self._sink)
            return {"sink": {**self._sink, "stages": [*self._sink["stages"], pushes]}}
        return {"sink": self._sink}

    async def _stage(self) -> None:
        """Compute what is written, and leave it with the broker for the ack."""
        if self._writes and not self._is_staged:
            self._sink = await self._call_in_thread(self._stage_writes)
            self._is_staged = True

    def _stage_writes(self) -> dict[str, Any] | None:
        reports: list[dict[str, Any] | None] = []
        with tempfile.TemporaryDirectory(prefix="queen-window-") as folder:
            for number, (rows, queue) in enumerate(self._writes):
                report_path = Path(folder) / str(number)
                options = {
                    **self._frames.options,
                    **({} if queue is None else {"queue": queue_option(queue)}),
                    # Rows belong to the trace in which they are computed.
                    **tracing.current(),
                    "transactionName": self.tag,
                    "stageRun": self._run_id,
                    "firstTask": str(number * _TASKS_OF_A_WRITE),
                    "stageTo": str(report_path),
                }
                rows.write.format("queen").options(**options).mode("append").save()
                reports.append(msgspec.json.decode(report_path.read_bytes()))
        bodies = [report for report in reports if report is not None]
        if not bodies:
            return None
        # All of them belong to one run, so to one epoch.
        stages = [stage for body in bodies for stage in body["stages"]]
        return {**bodies[0], "query": self.tag, "stages": stages}

    def _stage_pushes(self, sink: dict[str, Any]) -> dict[str, int]:
        """Stage what was pushed, behind what was written."""
        by_partition: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for item in self._pushes:
            if "delay" in item or "deliverAt" in item:
                raise BadRequest("what is written with the ack is for now: push later things apart")
            by_partition.setdefault((item["queue"], item["partition"]), []).append(item)
        body = b"".join(_pack_pushes(*key, items) for key, items in by_partition.items())
        task = len(self._writes) * _TASKS_OF_A_WRITE
        key = {**sink, "task": task, "attempt": 0}
        del key["query"], key["stages"]
        path = f"/api/v1/sink/{quote(self.tag, safe='')}/stage?{urlencode(key)}"
        Broker(address_of(self._frames.options)).call("POST", path, body, CONTENT_TYPE)
        return {"task": task, "attempt": 0, "messages": len(self._pushes)}

    # ---- jobs ----

    def _call_tagged(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function; the jobs it starts in this thread bear the tag of the window."""
        spark = self._frames.spark
        context = spark.sparkContext
        use_in_this_thread(spark)
        context.addJobTag(self.tag)
        try:
            return function(*arguments)
        finally:
            context.removeJobTag(self.tag)

    async def _call_in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread, and wait for its end even when cancelled."""
        call = asyncio.to_thread(self._call_tagged, function, *arguments)
        running = asyncio.ensure_future(call)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait((running,))
            running.exception()
            raise

    def _cancel(self) -> None:
        self._frames.spark.sparkContext.cancelJobsWithTag(self.tag)


class FrameWindow(_FrameWindow, Window):
    """A window whose messages are a DataFrame; else it is a `Window`."""

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call something that uses Spark in a thread: `rows = await window.run(frame.collect)`.

        Its jobs are cancelled when the lease is lost.
        """
        return await self._call_in_thread(function, *arguments)


class SyncFrameWindow(_FrameWindow, SyncWindow):
    """A window whose messages are a DataFrame; else it is a `SyncWindow`."""


class FrameProcessing(Processing[W]):
    """A handler at work on windows as DataFrames."""

    async def _handle(self, window: W) -> None:
        with tracing.computing(window.stream_name):
            frame = await window._call_in_thread(window._read_frame)
            timeout_s = self._consumer._rules.timeout_s
            if inspect.iscoroutinefunction(self._handler):
                await self._call_in_time(timeout_s, self._handler, window, frame)
            else:
                await self._call_in_time(
                    timeout_s, window._call_tagged, self._handler, window, frame
                )
            if not window.is_settled:
                await window._stage()

    async def _wait_for_end(self, window: W, handling: asyncio.Future[Exception | None]) -> None:
        # A handler may start the next job while this one is being cancelled.
        while not handling.done():
            await asyncio.to_thread(window._cancel)
            await asyncio.wait((handling,), timeout=_CANCEL_AGAIN_S)


def _as_messages(frame: DataFrame) -> DataFrame:
    """Return rows as messages: what is no column of a message is a field of its payload."""
    if DATA in frame.columns:
        return frame
    beside = (QUEUE, PARTITION, TRANSACTION, TRACE, HEADERS)
    outside = [name for name in beside if name in frame.columns]
    fields = [f.col(f"`{name}`") for name in frame.columns if name not in outside]
    return frame.select(f.struct(*fields).alias(DATA), *outside)


def _pack_pushes(queue: str, partition: str, items: list[dict[str, Any]]) -> bytes:
    """Return items of a push as a frame."""
    columns = {
        TRACE: [item.get(TRACE) for item in items],
        HEADERS: [headers_text(item.get(HEADERS)) for item in items],
    }
    return encode_frame(
        queue,
        partition,
        [item["transactionId"] for item in items],
        [bytes(item["payload"]) for item in items],
        {name: column for name, column in columns.items() if any(column)},
    )
