"""Entry ids: two unsigned 64-bit numbers, milliseconds and a sequence.

Inside, an id is one number of 128 bits, the milliseconds in its upper half: it compares,
sorts and bisects like any other number.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from queen.streambroker.replies import Failure

HALF = (1 << 64) - 1
MAX_ID = (1 << 128) - 1
INVALID = "ERR Invalid stream ID specified as stream command argument"

_MAX_TEXT = 127
# Fewer digits than this are always less than 2^64.
_SURE_DIGITS = 20
# As C reads numbers: leading spaces, a plus and zeros are accepted.
_NUMBER = re.compile(rb"[ \t\n\v\f\r]*\+?[0-9]+")


class Partial(NamedTuple):
    """An id as a producer may write it: without a sequence, the stream chooses one."""

    ms: int
    seq: int | None


def make_id(ms: int, seq: int) -> int:
    return ms << 64 | seq


def text_of(entry_id: int) -> bytes:
    return b"%d-%d" % (entry_id >> 64, entry_id & HALF)


def parse_id(text: bytes, missing_seq: int = 0) -> int:
    """Read `ms` or `ms-seq`; raises `Failure` for everything else."""
    ms, dash, seq = text.partition(b"-")
    if len(ms) < _SURE_DIGITS and len(seq) < _SURE_DIGITS and ms.isdigit() and seq.isdigit():
        return int(ms) << 64 | int(seq)
    if len(text) > _MAX_TEXT:
        raise Failure(INVALID)
    return make_id(_half(ms), _half(seq) if dash else missing_seq)


def parse_partial(text: bytes) -> Partial:
    """Read what may stand in an add: `ms`, `ms-seq` or `ms-*`."""
    if len(text) <= _MAX_TEXT and text.endswith(b"-*"):
        return Partial(_half(text[:-2]), None)
    entry_id = parse_id(text)
    return Partial(entry_id >> 64, entry_id & HALF)


def parse_bound(text: bytes, missing_seq: int) -> int:
    """Read an id, or `-` for the smallest and `+` for the greatest."""
    if text == b"-":
        return 0
    if text == b"+":
        return MAX_ID
    return parse_id(text, missing_seq)


def parse_start(text: bytes) -> int:
    """Read where a range begins; `(` leaves its own id out."""
    if text.startswith(b"(") and len(text) > 1:
        entry_id = parse_id(text[1:])
        if entry_id == MAX_ID:
            raise Failure("ERR invalid start ID for the interval")
        return entry_id + 1
    return parse_bound(text, 0)


def parse_end(text: bytes) -> int:
    """Read where a range ends; `(` leaves its own id out."""
    if text.startswith(b"(") and len(text) > 1:
        entry_id = parse_id(text[1:], HALF)
        if entry_id == 0:
            raise Failure("ERR invalid end ID for the interval")
        return entry_id - 1
    return parse_bound(text, HALF)


def _half(text: bytes) -> int:
    if not _NUMBER.fullmatch(text):
        raise Failure(INVALID)
    number = int(text)
    if number > HALF:
        raise Failure(INVALID)
    return number
