"""Segments to Arrow record batches, many at a time and never message by message.

A segment already lies as Arrow wants it: offsets and bytes. So segments are joined, column by
column, until there is enough for a batch, and each column is made by a handful of calls
however many messages it has. Only the columns in the schema are made.

Messages that a reader is not shown are the exception: a segment that holds one is taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, VariantType, VariantVal

from queen.core.frame import Frame, Segment, segment_of
from queen.core.ids import message_id, message_prefix
from queen.core.visibility import DELETED, ONLY_GROUP
from queen.errors import BadRequest
from queen.spark.arrow.columns import CORRUPT, DATA, RAW, SEALED, is_raw, unfit_reason
from queen.spark.arrow.documents import lines_of, parse_documents

if TYPE_CHECKING:
    from queen.spark.source.slices import WindowLabel

# Enough for the fixed cost of a batch not to count, and little enough for memory.
_BATCH_ROWS = 20_000
_BATCH_BYTES = 8 * 1024 * 1024

_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_NIBBLES = np.arange(44, -4, -4, dtype=np.int64)
_ID_BYTES = 36

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class SegmentPart(NamedTuple):
    """The messages of a segment that a reader is shown, and where they stand."""

    queue: str
    partition: str
    partition_id: int
    created_at_us: int
    base_offset: int
    segment: Segment
    # Of each message, when they do not follow each other.
    offsets: Sequence[int] | None = None
    # The window that they are read for; the same messages may be read for several.
    window: WindowLabel | None = None


def segment_part(
    frame: Frame,
    low: int = 0,
    high: int = 2**62,
    window: WindowLabel | None = None,
    group: str | None = None,
) -> SegmentPart:
    """Return the messages of a frame that a reader of [low, high) is shown, as a group or none."""
    segment, base = frame.segment(), frame.base_offset
    offsets: list[int] | None = None
    deleted, only = segment.column(DELETED), segment.column(ONLY_GROUP)
    if deleted or only or base < low or base + segment.count > high:
        # A copy for one group has its original in the log, and is for nobody else.
        kept = [
            at
            for at in range(max(low - base, 0), min(high - base, segment.count))
            if not (deleted and deleted[at]) and not (only and only[at] not in (None, group))
        ]
        if len(kept) < segment.count:
            segment, offsets = _pick(segment, kept), [base + at for at in kept]
    names = (frame.queue, frame.partition, frame.partition_id)
    return SegmentPart(*names, frame.created_at_us, base, segment, offsets, window)


def _pick(segment: Segment, kept: list[int]) -> Segment:
    ids, payloads = segment.id_bytes(), segment.payloads()
    extras = {name: [column[at] for at in kept] for name, column in segment.extras.items()}
    return segment_of([ids[at] for at in kept], [payloads[at] for at in kept], extras)


class Assembler:
    """Collects parts of segments, and makes batches of them."""

    def __init__(self, schema: StructType, *, notes_unfit: bool = False) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._data_kind = schema[DATA].dataType if DATA in schema.names else None
        self._names = schema.names
        self._parts: list[SegmentPart] = []
        self._rows = self._bytes = 0
        self._notes_unfit = notes_unfit
        # Ids of messages whose payloads did not fit, if somebody wants to know, and why.
        self.unfit: list[str] = []
        self.unfit_reason = "" if self._data_kind is None else unfit_reason(self._data_kind)

    def add(self, part: SegmentPart) -> Iterator[pa.RecordBatch]:
        """Take a part; yield a batch when there is enough for one."""
        if part.segment.count:
            self._parts.append(part)
            self._rows += part.segment.count
            self._bytes += len(part.segment.data)
            if self._rows >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
                yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left."""
        if self._parts:
            yield self._batch(_JoinedParts(self._parts))
            self._parts, self._rows, self._bytes = [], 0, 0

    def marker(self, sealed_us: int) -> pa.RecordBatch:
        """Return the row that says how far everything is sealed."""
        columns = [
            pa.array([sealed_us], pa.int64()).cast(field.type)
            if field.name == SEALED
            else pa.nulls(1, field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _batch(self, joined: _JoinedParts) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        for name in self._names:
            if name not in (DATA, CORRUPT):
                columns[name] = _MAKERS[name](joined)
        if self._data_kind is not None:
            columns[DATA], unfit = self._data(joined)
            self._keep_unfit(joined, unfit, columns)
        elif CORRUPT in self._names:
            columns[CORRUPT] = pa.nulls(joined.count, pa.string())
        return pa.RecordBatch.from_arrays(
            [columns[field.name] for field in self._schema], schema=self._schema
        )

    def _data(self, joined: _JoinedParts) -> tuple[pa.Array, list[int]]:
        kind = self._schema.field(DATA).type
        if self._data_kind is not None and is_raw(self._data_kind):
            return joined.payloads(kind), []
        lines, offsets = joined.lines()
        if isinstance(self._data_kind, VariantType):
            return _variants(lines_of(lines, offsets), kind)
        return parse_documents(lines, offsets, kind)

    def _keep_unfit(
        self, joined: _JoinedParts, unfit: list[int], columns: dict[str, pa.Array]
    ) -> None:
        """Keep the payloads that do not fit; raise when there is no column for them."""
        if CORRUPT in self._names:
            values: list[bytes | None] = [None] * joined.count
            if unfit:
                payloads = lines_of(*joined.lines())
                for at in unfit:
                    values[at] = payloads[at]
                self._note_unfit(joined.places(unfit))
            columns[CORRUPT] = pa.array(values, pa.binary()).cast(pa.string())
        elif unfit:
            ((part, offset),) = joined.places(unfit[:1])
            raise BadRequest(
                f"{len(unfit)} payload(s) are not what the schema of data says, the first at "
                f"offset {offset} of partition {part.partition!r} of queue {part.queue!r}: "
                "add a column `_corrupt STRING` to the schema, and they are kept there"
            )

    def _note_unfit(self, places: list[tuple[SegmentPart, int]]) -> None:
        if self._notes_unfit:
            self.unfit += [message_id(part.partition_id, offset) for part, offset in places]


class _JoinedParts:
    """Parts of segments, one after the other."""

    def __init__(self, parts: list[SegmentPart]) -> None:
        self.parts = parts
        self.counts = np.array([part.segment.count for part in parts], dtype=np.int64)
        self.count = int(self.counts.sum())
        self._lines: tuple[bytes, Any] | None = None

    def lines(self) -> tuple[bytes, Any]:
        """Return all payloads, a newline behind each, and where they begin."""
        if self._lines is None:
            data = b"".join([part.segment.data for part in self.parts])
            tables = [part.segment.payload_offsets for part in self.parts]
            self._lines = (data, self._joined_offsets(tables))
        return self._lines

    def payloads(self, kind: pa.DataType) -> pa.Array:
        """Return payloads as they are. No payload has a newline inside."""
        data, offsets = self.lines()
        without_newlines = offsets - np.arange(self.count + 1, dtype=np.int32)
        return _texts(data.translate(None, b"\n"), without_newlines, kind)

    def transaction_ids(self) -> pa.Array:
        ids = b"".join([part.segment.ids for part in self.parts])
        return _texts(ids, self._joined_offsets([part.segment.id_offsets for part in self.parts]))

    def _joined_offsets(self, tables: Sequence[Any]) -> Any:
        """Return the offsets of all parts as one table."""
        lengths = np.diff(np.frombuffer(b"".join(tables), dtype=np.int32))
        if len(tables) > 1:
            # Between two tables stands the step from the end of one to the start of the next.
            lengths = np.delete(lengths, np.cumsum(self.counts[:-1] + 1) - 1)
        joined = np.zeros(self.count + 1, dtype=np.int32)
        np.cumsum(lengths, out=joined[1:])
        return joined

    def offsets(self) -> Numbers:
        ends = np.cumsum(self.counts)
        bases = np.array([part.base_offset for part in self.parts], dtype=np.int64)
        offsets = np.arange(self.count, dtype=np.int64)
        offsets += np.repeat(bases - (ends - self.counts), self.counts)
        for part, end in zip(self.parts, ends.tolist(), strict=True):
            if part.offsets is not None:
                offsets[end - part.segment.count : end] = part.offsets
        return offsets

    def ids(self) -> pa.Array:
        """Return message ids: the partition's prefix, and the offset in hexadecimal."""
        prefixes = b"".join([message_prefix(part.partition_id).encode() for part in self.parts])
        table = np.empty((self.count, _ID_BYTES), dtype=np.uint8)
        width = _ID_BYTES - len(_NIBBLES)
        heads = np.frombuffer(prefixes, dtype=np.uint8).reshape(len(self.parts), width)
        table[:, :width] = np.repeat(heads, self.counts, axis=0)
        table[:, width:] = _HEX[(self.offsets()[:, None] >> _NIBBLES) & 15]
        offsets = np.arange(self.count + 1, dtype=np.int32) * _ID_BYTES
        return _texts(table.tobytes(), offsets)

    def times(self, of: Callable[[SegmentPart], int]) -> pa.Array:
        """Return an instant that all messages of a part share."""
        at = np.array([of(part) for part in self.parts], dtype=np.int64)
        return pa.array(np.repeat(at, self.counts)).cast(pa.timestamp("us", tz="UTC"))

    def names(self, of: Callable[[SegmentPart], str]) -> pa.Array:
        """Return a name that all messages of a part share."""
        numbers: dict[str, int] = {}
        codes = [numbers.setdefault(of(part), len(numbers)) for part in self.parts]
        indices = np.repeat(np.array(codes, dtype=np.int32), self.counts)
        names = pa.array(list(numbers), pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(indices), names).dictionary_decode()

    def trace_ids(self) -> pa.Array:
        columns = [part.segment.column("traceId") for part in self.parts]
        if not any(columns):
            return pa.nulls(self.count, pa.string())
        values: list[str | None] = []
        for part, column in zip(self.parts, columns, strict=True):
            values += column or [None] * part.segment.count
        return pa.array(values, pa.string())

    def places(self, at: Sequence[int]) -> list[tuple[SegmentPart, int]]:
        """Return the parts and the offsets of some messages."""
        numbers = np.searchsorted(np.cumsum(self.counts), at, side="right").tolist()
        offsets = self.offsets()[list(at)].tolist()
        return [
            (self.parts[number], offset) for number, offset in zip(numbers, offsets, strict=True)
        ]


_MAKERS: dict[str, Callable[[_JoinedParts], pa.Array]] = {
    "queue": lambda joined: joined.names(lambda part: part.queue),
    "partition": lambda joined: joined.names(lambda part: part.partition),
    "offset": lambda joined: pa.array(joined.offsets()),
    "id": lambda joined: joined.ids(),
    "transactionId": lambda joined: joined.transaction_ids(),
    "traceId": lambda joined: joined.trace_ids(),
    "createdAt": lambda joined: joined.times(lambda part: part.created_at_us),
    "windowStart": lambda joined: joined.times(lambda part: _window_of(part).start_us),
    "windowEnd": lambda joined: joined.times(lambda part: _window_of(part).end_us),
    "key": lambda joined: joined.names(lambda part: _window_of(part).key),
    SEALED: lambda joined: pa.nulls(joined.count, pa.timestamp("us", tz="UTC")),
    RAW: lambda joined: joined.payloads(pa.string()),
}


def _window_of(part: SegmentPart) -> WindowLabel:
    assert part.window is not None
    return part.window


def _texts(data: bytes, offsets: Any, kind: pa.DataType | None = None) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind or pa.string(), len(offsets) - 1, buffers)


def _variants(payloads: list[bytes], kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Return payloads as Spark's VARIANT, each by itself: there is no quicker way in Python."""
    unfit: list[int] = []
    values: list[dict[str, bytes] | None] = []
    for at, payload in enumerate(payloads):
        try:
            value = VariantVal.parseJson(payload.decode())
        except Exception:  # Whatever it is that the parser does not take.
            unfit.append(at)
            values.append(None)
        else:
            values.append({"value": bytes(value.value), "metadata": bytes(value.metadata)})
    return pa.array(values, kind), unfit
