"""The format: what goes in comes out, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.errors import PayloadTooLarge
from queen.spool.disk.files import NO_LIMIT
from queen.spool.disk.format import (
    HEADER_BYTES,
    MAX_BODY_BYTES,
    STOP_DAMAGED,
    STOP_END,
    STOP_GAP,
    STOP_LIMIT,
    STOP_MORE,
    Parsed,
    Record,
    key_of,
    pack_end,
    pack_header,
    pack_records,
    parse_records,
    unpack_header,
)
from queen.spool.entries import Entry

_SPOOL = b"0123456789abcdef"
_KEY = key_of(_SPOOL, 7)


def packed(bodies: list[bytes], seq: int = 1, kind: int = 1, flags: int = 0) -> bytes:
    parts: list[bytes] = []
    pack_records(parts, _KEY, seq, 99, kind, flags, bodies)
    return b"".join(parts)


def parsed(
    data: bytes,
    *,
    next_seq: int = 1,
    after: int = 0,
    below: int = NO_LIMIT,
    max_records: int = 1000,
    max_bytes: int = 1 << 30,
) -> tuple[list[Record], Parsed]:
    records: list[Record] = []
    result = parse_records(
        data,
        0,
        _KEY,
        records,
        next_seq=next_seq,
        after=after,
        below=below,
        max_records=max_records,
        max_bytes=max_bytes,
    )
    return records, result


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 255), st.integers(0, 255))
def test_records_come_back_as_they_were(bodies: list[bytes], kind: int, flags: int) -> None:
    data = packed(bodies, 5, kind, flags)
    records, result = parsed(data, next_seq=5)
    assert records == [Record(5 + i, kind, flags, 99, body) for i, body in enumerate(bodies)]
    assert result == Parsed(len(data), STOP_MORE, 5 + len(bodies))


def test_a_header_says_what_it_was_given() -> None:
    data = pack_header(7, 50, 123, _SPOOL)
    assert len(data) == HEADER_BYTES
    header = unpack_header(data)
    assert header is not None
    assert (header.number, header.first_seq, header.created_ms, header.spool) == (
        7,
        50,
        123,
        _SPOOL,
    )
    assert unpack_header(data[:-1]) is None


def test_reading_stops_at_the_end_at_gaps_and_at_limits() -> None:
    data = packed([b"a", b"bb"]) + pack_end(_KEY, 3, 99)
    assert parsed(data)[1].stop == STOP_END
    records, result = parsed(packed([b"a"]) + packed([b"c"], 3))
    assert [record.seq for record in records] == [1]
    assert (result.stop, result.next_seq) == (STOP_GAP, 3)
    assert parsed(data, max_records=1)[1].stop == STOP_LIMIT
    assert len(parsed(data, max_bytes=2)[0]) == 1
    assert len(parsed(data, max_bytes=0)[0]) == 1, "one comes whatever its size"
    assert len(parsed(data, max_bytes=3)[0]) == 2


def test_records_outside_of_what_is_asked_for_are_passed_over() -> None:
    data = packed([b"a", b"b", b"c", b"d"])
    assert [record.body for record in parsed(data, after=2)[0]] == [b"c", b"d"]
    records, result = parsed(data, below=3)
    assert [record.body for record in records] == [b"a", b"b"]
    assert result.stop == STOP_END
    # A block of the same file in a wrong place brings nothing twice.
    assert [record.seq for record in parsed(data + packed([b"b"], 2))[0]] == [1, 2, 3, 4]


@pytest.mark.parametrize("other", [key_of(_SPOOL, 8), key_of(b"x" * 16, 7)])
def test_records_of_another_file_are_not_records(other: tuple[int, int]) -> None:
    parts: list[bytes] = []
    pack_records(parts, type(_KEY)(*other), 1, 99, 1, 0, [b"stale"])
    assert parsed(b"".join(parts))[1].stop == STOP_DAMAGED
    # Nor if the mark is the same by accident.
    parts = []
    pack_records(parts, type(_KEY)(_KEY.mark, other[1]), 1, 99, 1, 0, [b"stale"])
    assert parsed(b"".join(parts))[1].stop == STOP_DAMAGED


def test_a_body_has_a_limit() -> None:
    with pytest.raises(PayloadTooLarge):
        Entry([bytes(MAX_BODY_BYTES + 1)], 1, 0, False)
