"""Whether the columns of a segment that a stranger sent are what they claim to be.

All payloads are parsed by one call. That is sound because of three facts checked together:
the parser finds exactly one value per message, each value is exactly as long as its slice,
and each slice ends with a newline that is not part of a value. A value can neither begin
nor end with a newline, so no shifted reading of the same bytes passes all three.
"""

from __future__ import annotations

import msgspec
import numpy as np

from queen.core.frame import Segment
from queen.core.names import MAX_TRANSACTION_ID_BYTES
from queen.core.payload import (
    MAX_PAYLOAD_BYTES,
    is_plain,
    longest_is_shallow,
    reason_against_payload,
)
from queen.errors import InvalidFrame

_lines = msgspec.json.Decoder(msgspec.Raw)
_NEWLINE = 10


def check_segment(segment: Segment) -> None:
    """Raise `InvalidFrame` unless every id and every payload can be stored as it is."""
    _check_ids(segment)
    _check_payloads(segment)
    _check_extras(segment)


def _lengths(offsets: np.ndarray, total: int, column: str) -> np.ndarray:
    lengths = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != total or (lengths <= 0).any():
        raise InvalidFrame(f"{column} offsets do not rise from 0 to {total}")
    return lengths


def _check_ids(segment: Segment) -> None:
    offsets = np.frombuffer(segment.id_offsets, dtype=np.int32)
    lengths = _lengths(offsets, len(segment.ids), "transaction id")
    if lengths.max() > MAX_TRANSACTION_ID_BYTES:
        raise InvalidFrame(f"a transaction id is longer than {MAX_TRANSACTION_ID_BYTES} bytes")
    if b"\0" in segment.ids:
        raise InvalidFrame("a transaction id has a NUL character")
    if not segment.ids.isascii():
        try:
            segment.transaction_ids()
        except UnicodeDecodeError:
            raise InvalidFrame("a transaction id is not valid UTF-8") from None


def _check_payloads(segment: Segment) -> None:
    offsets = np.frombuffer(segment.payload_offsets, dtype=np.int32)
    lengths = _lengths(offsets, len(segment.data), "payload")
    ends = np.frombuffer(segment.data, dtype=np.uint8)[offsets[1:] - 1]
    if (ends != _NEWLINE).any() or segment.data.count(b"\n") != segment.count:
        raise InvalidFrame("a payload does not end with exactly one newline")
    try:
        values = _lines.decode_lines(segment.data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidFrame(f"a payload is not valid JSON: {error}") from None
    found = np.fromiter(map(len, values), dtype=np.int32, count=len(values))
    if len(found) != segment.count or (found != lengths - 1).any():
        raise InvalidFrame("payload offsets do not match the payloads")
    longest = int(lengths.max())
    if (
        longest > MAX_PAYLOAD_BYTES
        or not longest_is_shallow((longest,))
        or not is_plain(segment.data)
    ):
        _check_one_by_one(segment)


def _check_one_by_one(segment: Segment) -> None:
    for index, payload in enumerate(segment.payloads()):
        reason = reason_against_payload(payload)
        if reason:
            raise InvalidFrame(f"message {index}: {reason}")


def _check_extras(segment: Segment) -> None:
    for name, column in segment.extras.items():
        if name != "traceId":
            raise InvalidFrame(f"extras: column {name!r} is not known")
        if not all(value is None or isinstance(value, str) for value in column):
            raise InvalidFrame(f"extras: column {name!r} holds something that is not text")
