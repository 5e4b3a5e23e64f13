"""Whether the columns of a segment that a stranger sent are what they claim to be.

All payloads are parsed by one call: the payload column is newline-delimited JSON. Joining
the values that the parser found must give the column back, and their lengths must be those
that the offsets say; then every slice is exactly one JSON value and its newline.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec

from queen.core.columns.headers import HEADERS, reason_against_text
from queen.core.frame import Segment
from queen.core.names import MAX_TRANSACTION_ID_BYTES, is_uuid
from queen.core.payload import (
    MAX_PAYLOAD_BYTES,
    is_plain,
    longest_is_shallow,
    reason_against_payload,
)
from queen.errors import InvalidFrame

_lines = msgspec.json.Decoder(msgspec.Raw)
_plus_newline = (1).__add__


def check_ids(segment: Segment) -> list[bytes]:
    """Return the transaction ids; raise `InvalidFrame` unless all of them can be stored."""
    offsets, total = segment.id_offsets, len(segment.ids)
    ids = segment.id_bytes()
    lengths = list(map(len, ids))
    # With no offset negative and no slice empty, each offset is larger than the one before.
    if offsets[0] != 0 or offsets[-1] != total or min(offsets) < 0 or min(lengths) == 0:
        raise InvalidFrame(f"transaction id offsets do not rise from 0 to {total}")
    if max(lengths) > MAX_TRANSACTION_ID_BYTES:
        raise InvalidFrame(f"a transaction id is longer than {MAX_TRANSACTION_ID_BYTES} bytes")
    if b"\0" in segment.ids:
        raise InvalidFrame("a transaction id has a NUL character")
    if not segment.ids.isascii():
        try:
            segment.transaction_ids()
        except UnicodeDecodeError:
            raise InvalidFrame("a transaction id is not valid UTF-8") from None
    return ids


def check_payloads(segment: Segment) -> None:
    """Raise `InvalidFrame` unless every payload, and what goes with it, can be stored."""
    data = segment.data
    try:
        values = _lines.decode_lines(data)
    except (msgspec.DecodeError, RecursionError):
        raise _first_bad(segment) from None
    if (
        len(values) != segment.count
        or data.count(b"\n") != segment.count
        or b"\n".join(values) + b"\n" != data
    ):
        raise InvalidFrame("the payloads are not one JSON value a line")
    lengths = list(map(len, values))
    offsets = array("i", accumulate(map(_plus_newline, lengths), initial=0))
    # Bytes compare at once, arrays element by element.
    if offsets.tobytes() != segment.payload_offsets.tobytes():
        raise InvalidFrame("payload offsets do not match the payloads")
    longest = max(lengths)
    small = longest <= MAX_PAYLOAD_BYTES and longest_is_shallow(longest)
    if not (small and is_plain(data)):
        _check_one_by_one(segment)
    _check_extras(segment)


def _first_bad(segment: Segment) -> InvalidFrame:
    """Find out which payload does not parse."""
    for index, payload in enumerate(segment.payloads()):
        try:
            _lines.decode(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            return InvalidFrame(f"message {index}: payload is not valid JSON: {error}")
    return InvalidFrame("payload offsets do not match the payloads")


def _check_one_by_one(segment: Segment) -> None:
    for index, payload in enumerate(segment.payloads()):
        reason = reason_against_payload(payload)
        if reason:
            raise InvalidFrame(f"message {index}: {reason}")


def _check_extras(segment: Segment) -> None:
    for name, column in segment.extras.items():
        if name == HEADERS:
            _check_headers(column)
            continue
        if name != "traceId":
            raise InvalidFrame(f"extras: column {name!r} is not known")
        if any(
            value is not None and not (isinstance(value, str) and is_uuid(value))
            for value in column
        ):
            raise InvalidFrame(f"extras: column {name!r} holds something that is not a UUID")


def _check_headers(column: Sequence[Any]) -> None:
    for index, text in enumerate(column):
        reason = None if text is None else reason_against_text(text)
        if reason:
            raise InvalidFrame(f"message {index}: {reason}")
