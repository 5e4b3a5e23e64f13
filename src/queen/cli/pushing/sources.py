"""Where pushed messages come from: arguments, NDJSON, JSON, CSV or Parquet, a block at a time.

A block is as much as one request holds, and never more than two are in memory; a JSON array is read
as a whole, up to a bound. What cannot be
a message is set aside with its line number, and the lines around it go on.
"""

from __future__ import annotations

import csv
import os
import select
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeVar

import msgspec

from queen.cli.exits import USAGE, fail
from queen.client.payloads import encode_payload
from queen.client.queues.messages import Message
from queen.core.names import reason_against_name, reason_against_transaction_id

_BLOCK_MESSAGES = 5000
_LARGEST_ARRAY_BYTES = 256 * 1024 * 1024
_BLOCK_BYTES = 4 * 1024 * 1024
# The server takes no payload that is longer.
_LONGEST_LINE_BYTES = 16 * 1024 * 1024
# A producer that writes a line now and then sees it stored now and then.
_PAUSE_S = 0.05
_LOOK_EVERY_S = 0.5

# Some editors begin a file with it; it is no part of its text.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_json = msgspec.json.Decoder()

T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield items in lists of at most so many."""
    left = iter(items)
    while many := list(islice(left, size)):
        yield many


class Line(NamedTuple):
    number: int
    message: Message


class Bad(NamedTuple):
    number: int
    reason: str


class Block(NamedTuple):
    lines: list[Line]
    bad: list[Bad]
    # How much of the file has been read.
    position: int


class Shape(NamedTuple):
    """How a row becomes a message."""

    partition: str | None
    partition_by: str | None
    id_by: str | None
    delay: float | None
    headers: Mapping[str, str] = {}

    def message(self, value: Any, payload: Any) -> Message:
        """Return the message; raise `ValueError` with the reason why it cannot be one."""
        partition, name = self.partition, None
        if self.partition_by is not None:
            partition = _field(value, self.partition_by)
            _refuse(reason_against_name("partition", partition))
        if self.id_by is not None:
            name = _field(value, self.id_by)
            _refuse(reason_against_transaction_id(name))
        return Message(
            payload,
            transaction_id=name,
            partition=partition,
            delay=self.delay,
            headers=self.headers,
        )


def _field(value: Any, name: str) -> str:
    field = value.get(name) if isinstance(value, dict) else None
    if isinstance(field, bool) or not isinstance(field, str | int):
        raise ValueError(f"field {name!r} is missing, or neither a text nor a whole number")
    return str(field)


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise ValueError(reason)


class Source(Protocol):
    # Bytes, where that is known.
    total: int | None

    def blocks(self) -> Iterator[Block]: ...

    def stop(self) -> None: ...


def source_of(file: IO[bytes], kind: str, shape: Shape) -> Source:
    """Return what reads a file of this kind."""
    kinds: dict[str, type[_Reader]] = {
        "csv": Csv,
        "json": Json,
        "ndjson": Ndjson,
        "parquet": Parquet,
    }
    return kinds[kind](file, shape)


def kind_of(path: Path) -> str:
    """Return what a file is, by its ending."""
    kinds = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet", ".json": "json"}
    return kinds.get(path.suffix, "ndjson")


class Arguments:
    """Payloads from the command line; the first is number 1."""

    total: int | None = None

    def __init__(self, texts: Iterable[str], shape: Shape) -> None:
        self._texts = list(texts)
        self._shape = shape

    def blocks(self) -> Iterator[Block]:
        rows = ((number, text.encode()) for number, text in enumerate(self._texts, 1))
        yield _block(rows, self._shape, 0)

    def stop(self) -> None:
        """There is nothing to wait for."""


class _Reader:
    def __init__(self, file: IO[bytes], shape: Shape) -> None:
        self._file = file
        self._shape = shape
        self._is_stopped = False
        size = os.fstat(file.fileno()).st_size
        self.total: int | None = size or None

    def stop(self) -> None:
        """Wait no longer for a line that may never come."""
        self._is_stopped = True

    def blocks(self) -> Iterator[Block]:
        raise NotImplementedError


class Ndjson(_Reader):
    """One JSON value on each line; empty lines are skipped."""

    def blocks(self) -> Iterator[Block]:
        number, position = 1, 0
        for text in self._texts():
            position += len(text)
            lines = text.split(b"\n")
            if number == 1:
                lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
            if not lines[-1]:
                lines.pop()
            for many in batched(lines, _BLOCK_MESSAGES):
                yield _block(enumerate(many, number), self._shape, position)
                number += len(many)

    def _texts(self) -> Iterator[bytes]:
        """Yield whole lines, as many as are there."""
        rest = bytearray()
        while part := self._read():
            rest += part
            if len(rest) < _BLOCK_BYTES and self._has_more(_PAUSE_S):
                continue
            end = rest.rfind(b"\n") + 1
            if end:
                yield bytes(rest[:end])
                del rest[:end]
            elif len(rest) > 2 * _LONGEST_LINE_BYTES:
                # It is refused for its length anyway; what has come of it is enough to say so.
                del rest[_LONGEST_LINE_BYTES + 1 :]
        if rest:
            yield bytes(rest)

    def _read(self) -> bytes:
        while not self._is_stopped:
            if self._has_more(_LOOK_EVERY_S):
                return os.read(self._file.fileno(), _BLOCK_BYTES)
        return b""

    def _has_more(self, wait_s: float) -> bool:
        return bool(select.select([self._file], [], [], wait_s)[0])


class Json(Ndjson):
    """A JSON array, whose items are the messages; the first is number 1. What begins otherwise, or
    has more behind the array, is NDJSON after all."""

    def blocks(self) -> Iterator[Block]:
        text = self._whole_text()
        try:
            items = msgspec.json.decode(text, type=list[msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            yield from self._as_lines(text)
            return
        for many in batched(enumerate(items, 1), _BLOCK_MESSAGES):
            rows = ((number, bytes(item)) for number, item in many)
            yield _block(rows, self._shape, len(text) if self.total else 0)

    def _whole_text(self) -> bytes:
        """Return all of it; an array has no end before its last byte."""
        parts = bytearray()
        while part := self._read():
            parts += part
            if len(parts) > _LARGEST_ARRAY_BYTES:
                fail(USAGE, "more than 256 MB in one JSON value: write NDJSON, one on each line")
        return bytes(parts.removeprefix(_BYTE_ORDER_MARK))

    def _as_lines(self, text: bytes) -> Iterator[Block]:
        """One value that fills several lines is one message; else each line is."""
        try:
            msgspec.json.decode(text)
        except msgspec.DecodeError:
            lines = text.split(b"\n")
        else:
            lines = [text]
        for many in batched(enumerate(lines, 1), _BLOCK_MESSAGES):
            yield _block(many, self._shape, len(text) if self.total else 0)


class Csv(_Reader):
    """A head and rows; every value is a text."""

    def blocks(self) -> Iterator[Block]:
        # What is not UTF-8 is kept until its row is known, and refused there.
        text = os.fdopen(
            os.dup(self._file.fileno()), encoding="utf-8-sig", errors="surrogateescape", newline=""
        )
        with text:
            reader = csv.DictReader(text)
            for many in batched(_csv_rows(reader), _BLOCK_MESSAGES):
                yield _block_of_rows(many, self._shape, self._position())

    def _position(self) -> int:
        return os.lseek(self._file.fileno(), 0, os.SEEK_CUR) if self.total else 0


def _csv_rows(reader: csv.DictReader[str]) -> Iterator[tuple[int, Any]]:
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield reader.line_num, ValueError(str(error))
            continue
        if None in row or None in row.values():
            expected = len(reader.fieldnames or ())
            yield reader.line_num, ValueError(f"it has not the {expected} fields of the head")
        else:
            yield reader.line_num, row


class Parquet(_Reader):
    """The rows of a Parquet file; the first is number 1."""

    def __init__(self, file: IO[bytes], shape: Shape) -> None:
        super().__init__(file, shape)
        # How far a row is from the end of the file is not known.
        self.total = None

    def blocks(self) -> Iterator[Block]:
        try:
            from pyarrow import ArrowException, parquet
        except ImportError:
            fail(USAGE, "reading Parquet needs pyarrow: pip install pyarrow")
        number = 1
        try:
            for batch in parquet.ParquetFile(self._file).iter_batches(batch_size=_BLOCK_MESSAGES):
                rows = batch.to_pylist()
                yield _block_of_rows(enumerate(rows, number), self._shape, 0)
                number += len(rows)
        except ArrowException as error:
            fail(USAGE, f"this is not a Parquet file: {error}")


def _block(rows: Iterable[tuple[int, bytes]], shape: Shape, position: int) -> Block:
    """Make messages of JSON texts, which are sent as they are."""
    lines: list[Line] = []
    bad: list[Bad] = []
    for number, row in rows:
        text = row.strip()
        if not text:
            continue
        try:
            if len(text) > _LONGEST_LINE_BYTES:
                raise ValueError(f"it is longer than {_LONGEST_LINE_BYTES} bytes")
            value = _json.decode(text)
            # A payload is one line of a frame: one that has several is written anew.
            payload = msgspec.Raw(encode_payload(value) if b"\n" in text else text)
            lines.append(Line(number, shape.message(value, payload)))
        except msgspec.DecodeError as error:
            bad.append(Bad(number, f"it is not JSON: {error}"))
        except (ValueError, RecursionError) as error:
            bad.append(Bad(number, str(error)))
    return Block(lines, bad, position)


def _block_of_rows(rows: Iterable[tuple[int, Any]], shape: Shape, position: int) -> Block:
    """Make messages of rows that are not JSON yet; one that could not be read is its error."""
    lines: list[Line] = []
    bad: list[Bad] = []
    for number, row in rows:
        try:
            if isinstance(row, ValueError):
                raise row
            message = shape.message(row, msgspec.Raw(encode_payload(row)))
        except UnicodeEncodeError:
            bad.append(Bad(number, "it is not UTF-8"))
        except (ValueError, TypeError) as error:
            bad.append(Bad(number, str(error)))
        else:
            lines.append(Line(number, message))
    return Block(lines, bad, position)
