"""Writing DataFrames into queues, each row once: the writers that Spark calls.

    task ──▶ stage   its rows, under (sink, batch, run, task, attempt)
    driver ─▶ commit  names the stages of the attempts that count; the broker publishes them in
                      one transaction that also records the batch

Tasks that fail leave stages that nobody names. A batch that Spark repeats after a crash is
recorded already, and stays as it is. A second driver with the same checkpoint opens the sink
again, which fences the first. What a sink is called is the name that the user gave it, or the id
of the streaming query. The driver's side of Spark does not tell a writer which query it works
for, only tasks know; so tasks open the sink, and what they learn travels to the driver in their
messages. See `queen.service.sinks.sinks` for the broker's side.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from queen.core.names import reason_against_name
from queen.errors import QueenError
from queen.spark.broker import address_of
from queen.spark.options import Use, check_company, check_options
from queen.spark.sink.row_frames import Layout, layout_of
from queen.spark.sink.staging import (
    BrokerAccess,
    SinkBatch,
    abort_stages,
    commit_stages,
    stage_rows,
    stages_body,
    stages_with_rows,
    task_context,
)

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_NAME_BYTES = 160
# A full queue or a database that is restarted may need some time.
_RETRY_S = 60.0


def batch_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return what writes a DataFrame once."""
    check_options(options, Use.BATCH_WRITE)
    check_company(options, "transactionBatch", "transactionName")
    if overwrite:
        raise ValueError("a queue cannot be overwritten: write with mode('append')")
    name = _transaction_name(options)
    number = options.get("transactionbatch", "0")
    if not number.isdecimal():
        raise ValueError(f"option transactionBatch is {number!r}, not a whole number")
    if "stageto" in options:
        return _staging_writer(options, schema)
    own = uuid.uuid4().hex
    # Without a name it is a sink of its own, which nobody will ever ask for again.
    batch = SinkBatch(name or own, own, int(number), once=name is None)
    return QueenWriter(_access_of(options), layout_of(options, schema), batch)


def stream_writer(
    options: dict[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """Return what writes each micro-batch of a query."""
    check_options(options, Use.STREAM_WRITE)
    if overwrite:
        raise ValueError("a queue takes rows as they are: use output mode append")
    access, layout = _access_of(options), layout_of(options, schema)
    return QueenStreamWriter(access, layout, _transaction_name(options))


def _access_of(options: dict[str, str]) -> BrokerAccess:
    given = options.get("retryseconds", str(_RETRY_S))
    if not given.replace(".", "", 1).isdecimal():
        raise ValueError(f"option retrySeconds is {given!r}, not a number")
    return BrokerAccess(address_of(options), float(given), options.get("deadlettersof", ""))


def _transaction_name(options: dict[str, str]) -> str | None:
    name = options.get("transactionname") or None
    if name is not None:
        reason = reason_against_name("option", name)
        if reason is None and len(name.encode()) > _MAX_NAME_BYTES:
            reason = f"it is longer than {_MAX_NAME_BYTES} bytes"
        if reason:
            raise ValueError(f"option transactionName: {reason}")
    return name


class QueenWriter(DataSourceArrowWriter):
    """Writes a DataFrame in one batch. The names of its methods are Spark's."""

    def __init__(self, access: BrokerAccess, layout: Layout, batch: SinkBatch) -> None:
        self._access = access
        self._layout = layout
        self._batch = batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage_rows(self._access, self._layout, self._batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_stages(self._access, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_stages(self._access, messages)


class StagingWriter(QueenWriter):
    """Writes a DataFrame as far as the broker, and leaves it to somebody else to publish it.

    The driver's side of Spark is a process beside the program that asked, so what was staged is
    told in a file: the body of a commit, or of the ack of a window.
    """

    def __init__(
        self,
        access: BrokerAccess,
        layout: Layout,
        batch: SinkBatch,
        first_task: int,
        report_path: str,
    ) -> None:
        super().__init__(access, layout, batch)
        self._first_task = first_task
        self._report_path = report_path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage_rows(self._access, self._layout, self._batch, iterator, self._first_task)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        stages = stages_with_rows(messages)
        body = stages_body(stages) if stages else None
        Path(self._report_path).write_bytes(msgspec.json.encode(body))


def _staging_writer(options: dict[str, str], schema: StructType) -> StagingWriter:
    batch = SinkBatch(options["transactionname"], options["stagerun"], 0, once=True)
    access, layout = _access_of(options), layout_of(options, schema)
    return StagingWriter(access, layout, batch, int(options["firsttask"]), options["stageto"])


class QueenStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query. The names of its methods are Spark's."""

    def __init__(self, access: BrokerAccess, layout: Layout, name: str | None) -> None:
        self._access = access
        self._layout = layout
        self._name = name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = task_context()
        query_id = context.getLocalProperty("sql.streaming.queryId")
        run = context.getLocalProperty("spark.jobGroup.id")
        number = context.getLocalProperty("streaming.sql.batchId")
        if query_id is None or run is None or number is None:
            raise QueenError("Spark does not say which query this is; is it a streaming query?")
        batch = SinkBatch(self._name or query_id, run, int(number))
        return stage_rows(self._access, self._layout, batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit_stages(self._access, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        abort_stages(self._access, messages)
