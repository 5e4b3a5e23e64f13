"""Segments to Arrow record batches, many at a time and never message by message.

A segment already lies as Arrow wants it: offsets and bytes. So segments are joined, column by
column, until there is enough for a batch, and each column is made by a handful of calls
however many messages it has. Only the columns in the schema are made.

Messages that a reader is not shown are the exception: a segment that holds one is taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, VariantType, VariantVal

from queen.core.columns.headers import HEADERS, headers_bytes, headers_of
from queen.core.frame import Segment, Stretch, Stretches, segment_of
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

_HEADERS_TYPE = pa.map_(pa.string(), pa.string())

_Value = TypeVar("_Value")
Numbers = np.ndarray[Any, np.dtype[np.int64]]


class SegmentPart(NamedTuple):
    """Messages of a frame that a reader is shown, and where they stand."""

    queue: str
    segment: Segment
    stretches: Stretches
    # Of each message, when they do not follow each other.
    offsets: Sequence[int] | None = None
    # The window that they are read for; the same messages may be read for several.
    window: WindowLabel | None = None


ALL_OFFSETS = (0, 2**62)


def segment_part(
    queue: str,
    segment: Segment,
    stretches: Stretches,
    offsets: tuple[int, int] = ALL_OFFSETS,
    window: WindowLabel | None = None,
    group: str | None = None,
) -> SegmentPart:
    """Return the messages of a frame that a reader of some offsets is shown, as a group or none."""
    low, high = offsets
    end = stretches.base_offsets[-1] + stretches.counts[-1]
    is_whole = low <= stretches.base_offsets[0] and end <= high
    deleted, only = segment.column(DELETED), segment.column(ONLY_GROUP)
    if is_whole and deleted is None and only is None:
        return SegmentPart(queue, segment, stretches, None, window)
    all_kept: list[int] = []
    places: list[int] = []
    shown: list[Stretch] = []
    first = 0
    for stretch in stretches.rows():
        base, count = stretch.base_offset, stretch.messages
        # A copy for one group has its original in the log, and is for nobody else.
        kept = [
            at
            for at in range(first + max(low - base, 0), first + min(high - base, count))
            if not (deleted and deleted[at]) and not (only and only[at] not in (None, group))
        ]
        if kept:
            shown.append(stretch._replace(messages=len(kept)))
            places += [base + at - first for at in kept]
            all_kept += kept
        first += count
    if len(all_kept) < segment.count:
        segment = _pick(segment, all_kept)
    columns = Stretches._make(zip(*shown, strict=True)) if shown else _NOTHING
    return SegmentPart(queue, segment, columns, places, window)


_NOTHING = Stretches((), (), (), (), ())


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
            self._bytes += len(part.segment.data) + headers_bytes(
                part.segment.column(HEADERS) or ()
            )
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
            (first,) = joined.places(unfit[:1])
            raise BadRequest(
                f"{len(unfit)} payload(s) are not what the schema of data says, the first at "
                f"offset {first.offset} of partition {first.partition!r} of queue {first.queue!r}: "
                "add a column `_corrupt STRING` to the schema, and they are kept there"
            )

    def _note_unfit(self, places: list[_Place]) -> None:
        if self._notes_unfit:
            self.unfit += [message_id(place.partition_id, place.offset) for place in places]


class _Place(NamedTuple):
    """Where a message stands."""

    queue: str
    partition: str
    partition_id: int
    offset: int


class _JoinedParts:
    """Parts of segments, one after the other."""

    def __init__(self, parts: list[SegmentPart]) -> None:
        self.parts = parts
        self.count = sum(part.segment.count for part in parts)
        self._lines: tuple[bytes, Any] | None = None

    def _of_stretches(self, of: Callable[[Stretches], Sequence[_Value]]) -> list[_Value]:
        """Return a column of what was stored together."""
        return [value for part in self.parts for value in of(part.stretches)]

    def _counts(self) -> Numbers:
        return np.array(self._of_stretches(lambda stretches: stretches.counts), dtype=np.int64)

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
            sizes = np.array([len(table) for table in tables[:-1]], dtype=np.int64)
            lengths = np.delete(lengths, np.cumsum(sizes) - 1)
        joined = np.zeros(self.count + 1, dtype=np.int32)
        np.cumsum(lengths, out=joined[1:])
        return joined

    def offsets(self) -> Numbers:
        counts = self._counts()
        bases = np.array(self._of_stretches(lambda stretches: stretches.base_offsets), np.int64)
        offsets = np.arange(self.count, dtype=np.int64)
        offsets += np.repeat(bases - (np.cumsum(counts) - counts), counts)
        start = 0
        for part in self.parts:
            end = start + part.segment.count
            if part.offsets is not None:
                offsets[start:end] = part.offsets
            start = end
        return offsets

    def ids(self) -> pa.Array:
        """Return message ids: the partition's prefix, and the offset in hexadecimal."""
        numbers = self._of_stretches(lambda stretches: stretches.partition_ids)
        prefixes = b"".join([message_prefix(number).encode() for number in numbers])
        table = np.empty((self.count, _ID_BYTES), dtype=np.uint8)
        width = _ID_BYTES - len(_NIBBLES)
        heads = np.frombuffer(prefixes, dtype=np.uint8).reshape(len(numbers), width)
        table[:, :width] = np.repeat(heads, self._counts(), axis=0)
        table[:, width:] = _HEX[(self.offsets()[:, None] >> _NIBBLES) & 15]
        offsets = np.arange(self.count + 1, dtype=np.int32) * _ID_BYTES
        return _texts(table.tobytes(), offsets)

    def created_at(self) -> pa.Array:
        """Return when messages were stored."""
        times = self._of_stretches(lambda stretches: stretches.times_us)
        return _instants(times, self._counts())

    def partitions(self) -> pa.Array:
        """Return the names of their partitions."""
        return _names(self._of_stretches(lambda stretches: stretches.partitions), self._counts())

    def times(self, of: Callable[[SegmentPart], int]) -> pa.Array:
        """Return an instant that all messages of a part share."""
        return _instants([of(part) for part in self.parts], self._part_counts())

    def names(self, of: Callable[[SegmentPart], str]) -> pa.Array:
        """Return a name that all messages of a part share."""
        return _names([of(part) for part in self.parts], self._part_counts())

    def _part_counts(self) -> Numbers:
        return np.array([part.segment.count for part in self.parts], dtype=np.int64)

    def trace_ids(self) -> pa.Array:
        columns = [part.segment.column("traceId") for part in self.parts]
        if not any(columns):
            return pa.nulls(self.count, pa.string())
        values: list[str | None] = []
        for part, column in zip(self.parts, columns, strict=True):
            values += column or [None] * part.segment.count
        return pa.array(values, pa.string())

    def headers(self) -> pa.Array:
        columns = [part.segment.column(HEADERS) for part in self.parts]
        if not any(columns):
            return pa.nulls(self.count, _HEADERS_TYPE)
        values: list[list[tuple[str, str]] | None] = []
        for part, column in zip(self.parts, columns, strict=True):
            for text in column or [None] * part.segment.count:
                values.append(list(headers_of(text).items()) if text else None)
        return pa.array(values, _HEADERS_TYPE)

    def places(self, at: Sequence[int]) -> list[_Place]:
        """Return where some messages stand."""
        stretches = [(part.queue, row) for part in self.parts for row in part.stretches.rows()]
        numbers = np.searchsorted(np.cumsum(self._counts()), at, side="right").tolist()
        offsets = self.offsets()[list(at)].tolist()
        rows = [stretches[number] for number in numbers]
        return [
            _Place(queue, row.partition, row.partition_id, offset)
            for (queue, row), offset in zip(rows, offsets, strict=True)
        ]


_MAKERS: dict[str, Callable[[_JoinedParts], pa.Array]] = {
    "queue": lambda joined: joined.names(lambda part: part.queue),
    "partition": lambda joined: joined.partitions(),
    "offset": lambda joined: pa.array(joined.offsets()),
    "id": lambda joined: joined.ids(),
    "transactionId": lambda joined: joined.transaction_ids(),
    "traceId": lambda joined: joined.trace_ids(),
    HEADERS: lambda joined: joined.headers(),
    "createdAt": lambda joined: joined.created_at(),
    "windowStart": lambda joined: joined.times(lambda part: _window_of(part).start_us),
    "windowEnd": lambda joined: joined.times(lambda part: _window_of(part).end_us),
    "key": lambda joined: joined.names(lambda part: _window_of(part).key),
    SEALED: lambda joined: pa.nulls(joined.count, pa.timestamp("us", tz="UTC")),
    RAW: lambda joined: joined.payloads(pa.string()),
}


def _window_of(part: SegmentPart) -> WindowLabel:
    assert part.window is not None
    return part.window


def _instants(times_us: Sequence[int], counts: Numbers) -> pa.Array:
    """Return times, each for so many messages."""
    at = np.repeat(np.array(times_us, dtype=np.int64), counts)
    return pa.array(at).cast(pa.timestamp("us", tz="UTC"))


def _names(names: Sequence[str], counts: Numbers) -> pa.Array:
    """Return names, each for so many messages."""
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(name, len(numbers)) for name in names]
    indices = np.repeat(np.array(codes, dtype=np.int32), counts)
    column = pa.array(list(numbers), pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(indices), column).dictionary_decode()


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
