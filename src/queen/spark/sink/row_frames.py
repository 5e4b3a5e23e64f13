"""From rows to frames: which queue and partition each row goes to, and as what.

Rows are collected until there are many, so that each partition gets large segments, then sorted
by partition without changing their order inside one. Columns stay columns all the way: the
buffers of an Arrow string column are what the body of a frame consists of.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, IntegralType, MapType, StringType, StructType

from queen.core.columns.framecheck import check_ids, check_payloads
from queen.core.columns.headers import (
    HEADERS,
    TRACEPARENT,
    TRACESTATE,
    headers_text,
    text_with_trace,
    trace_headers,
)
from queen.core.frame import MAX_MESSAGES, Frame, Segment, compress, encode_body, pack_frame
from queen.core.names import DEFAULT_PARTITION, MAX_TRANSACTION_ID_BYTES, reason_against_name
from queen.errors import InvalidFrame
from queen.spark.arrow.columns import HEADERS_TYPE
from queen.spark.options import queue_names
from queen.spark.sink.json_text import Column, check_type, json_texts

if TYPE_CHECKING:
    from numpy.typing import NDArray


DATA, QUEUE, PARTITION = "data", "queue", "partition"
TRANSACTION, TRACE = "transactionId", "traceId"
# Of pipelines. A payload as it is, instead of `data`; and the id of a message that is set aside,
# for which the text is the reason.
TEXT, DEAD_LETTER = "_text", "_deadLetter"
_COLUMNS = (DATA, QUEUE, PARTITION, TRANSACTION, TRACE, HEADERS)
_OWN_COLUMNS = (TEXT, DEAD_LETTER)
# Rows that are sorted together, and the largest frame that is made of them.
_COLLECT_ROWS = 200_000
_COLLECT_BYTES = 32 * 1024 * 1024
_FRAME_BYTES = 4 * 1024 * 1024
_JSON, _TEXT = "json", "text"


class Layout(NamedTuple):
    """What the columns of a DataFrame mean; checked before anything runs."""

    data: DataType
    # How a data column of strings is meant.
    data_format: str
    default_queue: str | None
    # The trace that rows belong to which have none of their own, as headers.
    trace: Mapping[str, str] = {}


def layout_of(options: dict[str, str], schema: StructType) -> Layout:
    """Return how rows become messages, or raise `ValueError` with what to change."""
    unknown = [name for name in schema.names if name not in (*_COLUMNS, *_OWN_COLUMNS)]
    if unknown:
        raise ValueError(
            f"column {unknown[0]!r} is not written to a queue: select {', '.join(_COLUMNS)}, "
            "or make one column of several with struct(…).alias('data')"
        )
    if DATA not in schema.names:
        raise ValueError("there is no column 'data', which holds the payload of a message")
    for name in (QUEUE, PARTITION, TRANSACTION, TRACE):
        if name in schema.names:
            _check_text(name, schema[name].dataType)
    if HEADERS in schema.names:
        _check_headers(schema[HEADERS].dataType)
    default = _one_queue(options.get("queue", ""))
    if default is None and QUEUE not in schema.names:
        raise ValueError("no queue to write to: give option queue, or a column 'queue'")
    data_format = options.get("dataformat", _JSON).lower()
    if data_format not in (_JSON, _TEXT):
        raise ValueError(f"option dataFormat is {data_format!r}; it is 'json' or 'text'")
    kind = schema[DATA].dataType
    check_type(kind, DATA)
    trace = trace_headers(options.get(TRACEPARENT, ""), options.get(TRACESTATE, ""))
    return Layout(kind, data_format, default, trace)


def _one_queue(text: str) -> str | None:
    """Return the queue that an option names. It is written as for a read, which may have many."""
    names = queue_names(text.strip())
    if len(names) > 1:
        raise ValueError(
            f"option queue: {text!r} names {len(names)} queues, and rows go to one: add a column "
            "'queue' that says for each row which, or write a name with commas as a JSON list"
        )
    return names[0] if names else None


def _check_text(name: str, kind: DataType) -> None:
    if isinstance(kind, StringType) or (name == PARTITION and isinstance(kind, IntegralType)):
        return
    raise ValueError(f"column {name!r} must be a string, not {kind.simpleString()}")


def _check_headers(kind: DataType) -> None:
    is_map = isinstance(kind, MapType) and isinstance(kind.keyType, StringType)
    if not (is_map and isinstance(kind.valueType, StringType)):  # type: ignore[attr-defined]
        right = HEADERS_TYPE.simpleString()
        raise ValueError(f"column 'headers' must be {right}, not {kind.simpleString()}")


class RowFrame(NamedTuple):
    """One frame, and which rows of the task it holds."""

    packed: bytes
    segment: Segment
    rows: NDArray[np.int64]
    # Whether a producer chose some of the transaction ids.
    has_own_ids: bool


def frames_of(
    batches: Iterable[pa.RecordBatch], layout: Layout, id_prefix: str
) -> Iterator[RowFrame]:
    """Yield the rows of a task as frames; those of one partition in their order."""
    first_row = 0
    for table in _collect(batches):
        yield from _RowBatch(table, layout, id_prefix, first_row).frames()
        first_row += table.num_rows


def _collect(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of many rows, but not of too many bytes."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for part in _split_batch(batch):
            if waiting and (rows >= _COLLECT_ROWS or size + part.nbytes > _COLLECT_BYTES):
                yield _concatenate(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(part)
            rows += part.num_rows
            size += part.nbytes
    if rows:
        yield _concatenate(waiting)


def _split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halve a batch of very large rows until its parts are small enough."""
    if batch.nbytes <= _COLLECT_BYTES or batch.num_rows <= 1:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _split_batch(batch.slice(0, middle))
    yield from _split_batch(batch.slice(middle))


def _concatenate(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class _RowBatch:
    """Some rows of a task on their way into frames."""

    def __init__(
        self, batch: pa.RecordBatch, layout: Layout, id_prefix: str, first_row: int
    ) -> None:
        self._batch = batch
        self._layout = layout
        self._first_row = first_row
        self._count = batch.num_rows
        self._numbers = np.arange(first_row, first_row + self._count, dtype=np.int64)
        self._id_prefix = id_prefix

    def frames(self) -> Iterator[RowFrame]:
        texts = pc.binary_join_element_wise(self._payloads(), pa.scalar("\n"), "")
        has_own_ids, ids = self._ids()
        traces, headers = self._column(TRACE), self._headers()
        order, runs = self._partition_runs()
        texts, ids = texts.take(order), ids.take(order)
        if traces is not None:
            traces = traces.take(order)
        if headers is not None:
            headers = [headers[at] for at in order.to_pylist()]
        id_buffers, text_buffers = _StringBuffers(ids), _StringBuffers(texts)
        ends = _with_headers(text_buffers.offsets, headers)
        rows = self._numbers[np.asarray(order)]
        for queue, partition, start, stop in runs:
            for low, high in _frame_spans(ends, start, stop):
                segment = _segment(id_buffers, text_buffers, traces, low, high)
                if headers is not None and any(headers[low:high]):
                    segment.extras = {**segment.extras, HEADERS: headers[low:high]}
                packed = _pack(queue, partition, segment)
                yield RowFrame(packed, segment, rows[low:high], has_own_ids)

    def _column(self, name: str) -> Column | None:
        """Return a column of texts that has a value somewhere."""
        if name not in self._batch.schema.names:
            return None
        column = pc.cast(self._batch.column(name), pa.string())
        return None if column.null_count == self._count else column

    def _headers(self) -> list[str | None] | None:
        """Return the headers of all rows as they are stored; None when no row has any."""
        trace = self._layout.trace
        maps: list[Any] = [None] * self._count
        if HEADERS in self._batch.schema.names:
            maps = self._batch.column(HEADERS).to_pylist()
        elif not trace:
            return None
        texts = [headers_text(dict(pairs)) if pairs else None for pairs in maps]
        if trace:
            texts = [text_with_trace(text, trace) for text in texts]
        return texts if any(texts) else None

    def _payloads(self) -> Column:
        column, texts = self._batch.column(DATA), self._column(TEXT)
        if isinstance(self._layout.data, StringType) and self._layout.data_format == _JSON:
            payloads = _json_lines(column)
        else:
            payloads = json_texts(column, self._layout.data)
        return payloads if texts is None else pc.if_else(pc.is_valid(texts), texts, payloads)

    def _ids(self) -> tuple[bool, Column]:
        """Return whether the producer chose some of the transaction ids, and all of them."""
        own = self._column(TRANSACTION)
        if own is not None:
            self._check_ids(own)
            if own.null_count == 0:
                return True, own
        generated = pc.binary_join_element_wise(
            pa.scalar(self._id_prefix), pc.cast(pa.array(self._numbers), pa.string()), ""
        )
        return (False, generated) if own is None else (True, pc.coalesce(own, generated))

    def _check_ids(self, ids: Column) -> None:
        sizes = pc.fill_null(pc.binary_length(ids), 1)
        for wrong, why in (
            (pc.equal(sizes, 0), "is empty"),
            (pc.greater(sizes, MAX_TRANSACTION_ID_BYTES), "is longer than 255 bytes"),
        ):
            self._refuse(wrong, f"transactionId {why}")

    def _refuse(self, wrong: Column, reason: str) -> None:
        """Raise with the first row that is wrong, if one is."""
        rows = np.flatnonzero(np.asarray(wrong))
        if len(rows):
            raise ValueError(f"row {self._first_row + int(rows[0])}: {reason}")

    def _partition_runs(self) -> tuple[Column, list[tuple[str, str, int, int]]]:
        """Return an order that brings rows of a partition together, and where each begins."""
        queues, queue_of = self._queues()
        partitions, partition_of = self._encode_values(PARTITION, DEFAULT_PARTITION)
        run_of = queue_of.astype(np.int64) * len(partitions) + partition_of
        order = np.argsort(run_of, kind="stable")
        sorted_runs = run_of[order]
        starts = np.flatnonzero(np.diff(sorted_runs, prepend=-1))
        runs = []
        for start, stop in zip(starts, [*starts[1:], self._count], strict=True):
            queue, partition = divmod(int(sorted_runs[start]), len(partitions))
            runs.append((queues[queue], partitions[partition], int(start), int(stop)))
        return pa.array(order), runs

    def _queues(self) -> tuple[list[str], NDArray[np.int64]]:
        default = self._layout.default_queue
        column = self._column(QUEUE)
        if default is None:
            missing = pc.is_null(column) if column is not None else pa.array([True])
            self._refuse(missing, "its queue is null, and option queue gives no other")
        return self._encode_values(QUEUE, default)

    def _encode_values(self, name: str, default: str | None) -> tuple[list[str], NDArray[np.int64]]:
        """Return the different values of a column, and which of them each row has."""
        column = self._column(name)
        if column is None:
            assert default is not None
            _check_name(name, default)
            return [default], np.zeros(self._count, dtype=np.int64)
        if default is not None:
            column = pc.fill_null(column, default)
        encoded = column.dictionary_encode()
        values: list[str] = encoded.dictionary.to_pylist()
        for value in values:
            _check_name(name, value)
        return values, np.asarray(encoded.indices).astype(np.int64)


def _check_name(kind: str, name: str) -> None:
    reason = reason_against_name(kind, name)
    if reason:
        raise ValueError(f"column or option {kind}: {reason}")


def _json_lines(column: Column) -> Column:
    """Return JSON texts on one line each; a null is the JSON null."""
    texts = pc.fill_null(pc.cast(column, pa.string()), "null")
    for line_break in ("\n", "\r"):
        if pc.any(pc.match_substring(texts, line_break)).as_py():
            # Between tokens it is white space. Inside a string neither is JSON, and is refused.
            texts = pc.replace_substring(texts, line_break, "\t")
    return pc.ascii_trim(texts, " \t")


class _StringBuffers:
    """The buffers of a string column that begins at its first value."""

    def __init__(self, column: Column) -> None:
        if column.offset:
            column = pa.concat_arrays([column])
        _, offsets, data = column.buffers()
        assert offsets is not None
        self.offsets = np.frombuffer(offsets, dtype=np.int32)[: len(column) + 1]
        self.data = memoryview(data) if data is not None else memoryview(b"")

    def cut(self, low: int, high: int) -> tuple[array[int], bytes]:
        offsets = self.offsets[low : high + 1]
        relative = array("i", (offsets - offsets[0]).astype("<i4").tobytes())
        return relative, bytes(self.data[offsets[0] : offsets[-1]])


def _with_headers(
    offsets: NDArray[np.int32], headers: list[str | None] | None
) -> NDArray[np.int64]:
    """Return where rows end when their headers are counted too."""
    ends = offsets.astype(np.int64)
    if headers is not None:
        ends[1:] += np.cumsum([len(text or "") for text in headers])
    return ends


def _frame_spans(offsets: NDArray[np.int64], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield spans of rows, each small enough for one frame."""
    while start < stop:
        full = int(np.searchsorted(offsets, offsets[start] + _FRAME_BYTES, side="right")) - 1
        end = min(stop, start + MAX_MESSAGES, max(full, start + 1))
        yield start, end
        start = end


def _segment(
    id_buffers: _StringBuffers,
    text_buffers: _StringBuffers,
    traces: Column | None,
    low: int,
    high: int,
) -> Segment:
    id_offsets, ids = id_buffers.cut(low, high)
    payload_offsets, data = text_buffers.cut(low, high)
    extras: dict[str, list[Any]] = {}
    if traces is not None:
        values = traces.slice(low, high - low).to_pylist()
        extras = {TRACE: values} if any(values) else {}
    return Segment(high - low, id_offsets, payload_offsets, ids, data, extras)


def _pack(queue: str, partition: str, segment: Segment) -> bytes:
    body = encode_body(segment)
    codec, stored = compress(body)
    return pack_frame(Frame(queue, partition, segment.count, codec, len(body), stored))


def reason_with_row(frames: Iterable[RowFrame]) -> str | None:
    """Return which row of some frames cannot be a message, and why; None if none is wrong."""
    for frame in frames:
        for at in range(frame.segment.count):
            message = _single_message(frame.segment, at)
            try:
                check_ids(message)
                check_payloads(message)
            except InvalidFrame as error:
                reason = error.message.removeprefix("message 0: ")
                return f"row {frame.rows[at]}: {reason}"
    return None


def _single_message(segment: Segment, at: int) -> Segment:
    ids = segment.ids[segment.id_offsets[at] : segment.id_offsets[at + 1]]
    data = segment.data[segment.payload_offsets[at] : segment.payload_offsets[at + 1]]
    extras = {name: [column[at]] for name, column in segment.extras.items()}
    return Segment(1, array("i", (0, len(ids))), array("i", (0, len(data))), ids, data, extras)
