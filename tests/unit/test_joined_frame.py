"""Joined frames: they tell what the frames of their segments would have told."""

from __future__ import annotations

import json
import struct
from itertools import accumulate
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.core.frame import (
    CODEC_RAW,
    JOINED_VERSION,
    Frame,
    Stretch,
    compress,
    encode_body,
    pack_frame,
    segment_of,
    stored_frames,
    unpack_frames,
)
from queen.errors import InvalidFrame
from queen.wire.frames.joined_frame import (
    ACCEPT_ANY_ORDER,
    ACCEPT_JOINED,
    ANY_ORDER,
    JOINED,
    PLAIN,
    Accepted,
    FrameJoiner,
    JoinedFrame,
    LaidFrame,
    LoneMessages,
    StoredBody,
    StretchColumns,
    accepted_frames,
    is_small,
    pack_laid,
    received_frames,
)
from tests.frame_contents import told


class Row(NamedTuple):
    """A segment as it lies in the database."""

    stretch: Stretch
    codec: int
    body: bytes


def row(number: int, at_us: int, messages: list[tuple[str, Any, bool]], base: int) -> Row:
    ids = [name.encode() for name, _, _ in messages]
    payloads = [json.dumps(value).encode() for _, value, _ in messages]
    marks = [True if marked else None for _, _, marked in messages]
    body = encode_body(segment_of(ids, payloads, {"deleted": marks} if any(marks) else None))
    stretch = Stretch(f"pärtition-{number}", number, base, at_us, len(messages))
    return Row(stretch, *compress(body))


def as_frames(rows: list[Row]) -> bytes:
    return b"".join(
        pack_frame(
            Frame(
                "orders",
                stretch.partition,
                stretch.messages,
                codec,
                len(body) if codec == CODEC_RAW else _raw_size(body),
                body,
                stretch.base_offset,
                stretch.created_at_us,
                stretch.partition_id,
            )
        )
        for stretch, codec, body in rows
    )


def _raw_size(body: bytes) -> int:
    import zstandard

    return int(zstandard.frame_content_size(body))


def joined(rows: list[Row]) -> bytes:
    joiner = FrameJoiner("orders")
    for each in rows:
        joiner.add(*each)
    (frame,) = joiner.frames()
    assert joiner.frames() == []
    return frame


_messages = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=10),
        st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)
_rows = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2**50), _messages), min_size=1)


@given(_rows)
def test_nothing_is_lost_by_joining(segments: list[tuple[int, int, Any]]) -> None:
    bases = accumulate((len(messages) for _, _, messages in segments), initial=0)
    rows = [row(number, at, many, base) for (number, at, many), base in zip(segments, bases)]  # noqa: B905
    assert told(list(received_frames(joined(rows)))) == told(list(stored_frames(as_frames(rows))))


def test_joined_and_other_frames_stand_one_after_the_other() -> None:
    rows = [row(1, 5, [("a", 1, False)], 0), row(2, 6, [("b", 2, False)], 7)]
    data = joined(rows) + as_frames(rows) + joined(rows[:1])
    assert told(list(received_frames(data))) == told(list(stored_frames(as_frames(rows)))) * 2 + [
        *told(list(stored_frames(as_frames(rows[:1]))))
    ]


def test_who_has_not_asked_for_joined_frames_refuses_them() -> None:
    data = joined([row(1, 5, [("a", 1, False)], 0)])
    for read in (stored_frames, unpack_frames):
        with pytest.raises(InvalidFrame, match="version 2 is not known"):
            list(read(data))


def test_a_segment_that_is_not_what_it_should_be_is_not_taken() -> None:
    good = row(1, 5, [("a", 1, False)], 0)
    two = row(1, 6, [("b", 2, False), ("c", 3, False)], 1)
    # Its last id would end behind the column of ids.
    at = struct.calcsize("<IIII") + 8
    shifted = two.body[:at] + struct.pack("<i", 3) + two.body[at + 4 :]
    bad = [
        good._replace(body=good.body[:-1]),
        good._replace(body=b"short"),
        good._replace(stretch=good.stretch._replace(messages=2)),
        two._replace(body=shifted),
    ]
    joiner = FrameJoiner("orders")
    joiner.add(*good)
    for each in bad:
        with pytest.raises((InvalidFrame, struct.error)):
            joiner.add(*each)
    joiner.add(*two)
    (frame,) = joiner.frames()
    assert told(list(received_frames(frame))) == told(list(stored_frames(as_frames([good, two]))))


@pytest.mark.parametrize("at", range(0, 60, 4))
def test_a_table_that_lies_is_refused(at: int) -> None:
    rows = [row(1, 5, [("a", 1, False)], 0), row(2, 6, [("b", 2, False)], 7)]
    (frame,) = received_frames(joined(rows))
    body = frame.raw_body()
    lie = body[:at] + struct.pack("<I", 2**31 - 1) + body[at + 4 :]
    data = pack_frame(
        Frame("orders", "p", 2, CODEC_RAW, len(lie), lie, frame.base_offset), JOINED_VERSION
    )
    (read,) = received_frames(data)
    if at < 12 or 16 <= at < 32:
        with pytest.raises(InvalidFrame):
            read.parts()
    else:
        # Any number can be an offset or a time; the checksum is there for those.
        read.parts()


def lone(*rows: Row) -> LoneMessages:
    return LoneMessages(
        {each.stretch.partition_id: each.stretch.partition for each in rows},
        [each.stretch.partition_id for each in rows],
        [each.stretch.base_offset for each in rows],
        [each.stretch.created_at_us for each in rows],
        [each.body for each in rows],
    )


def test_lone_messages_are_joined_column_by_column() -> None:
    first = [row(1, 5, [("a", 1, False)], 0), row(2, 6, [("bé", "zwei", False)], 7)]
    two = row(1, 7, [("c", 3, True), ("d", 4, False)], 1)
    last = [row(3, 8, [("e", None, False)], 2)]
    joiner = FrameJoiner("orders")
    assert joiner.add_lone(lone(*first))
    joiner.add(*two)
    assert joiner.add_lone(lone(*last))
    (frame,) = joiner.frames()
    assert told(received_frames(frame)) == told(stored_frames(as_frames([*first, two, *last])))


def test_what_is_not_a_lone_message_is_not_taken_for_one() -> None:
    good = row(1, 5, [("a", 1, False)], 0)
    offsets = struct.calcsize("<IIII")
    others = [
        row(1, 6, [("b", 2, False), ("c", 3, False)], 1),
        row(1, 6, [("b", 2, True)], 1),
        good._replace(body=good.body + b"x"),
        good._replace(body=good.body[:-1]),
        *(
            good._replace(body=good.body[:at] + struct.pack("<i", 9) + good.body[at + 4 :])
            for at in range(offsets, offsets + 16, 4)
        ),
    ]
    joiner = FrameJoiner("orders")
    for other in others:
        assert not joiner.add_lone(lone(good, other))
    assert joiner.frames() == []


def test_when_a_frame_is_large_enough() -> None:
    joiner = FrameJoiner("orders")
    lone = row(1, 5, [("a", 1, False)], 0)
    added = 0
    while not joiner.is_full:
        joiner.add(*lone)
        added += 1
    assert 1000 < added <= 10_000
    assert len(told(list(received_frames(joiner.frames()[0])))) == added
    assert not joiner.is_full


# ---- as they lie ----


def laid(codec: int, body: bytes, *, goes_on: bool = False) -> bytes:
    """Two messages that were merged: at 5 µs and at 9, from offset 7 on."""
    columns = StretchColumns(
        {3: "p"},
        struct.pack("<2I", 1, 1),
        bytes(8),
        struct.pack("<2q", 7, 8),
        struct.pack("<2q", 5, 9),
    )
    stored = StoredBody(codec, body, 2)
    return pack_laid("orders", Stretch("p", 3, 7, 5, 1), columns, stored, goes_on=goes_on)


def merged_body(size: int) -> bytes:
    return encode_body(segment_of([b"a", b"b"], [b'"%s"' % (b"x" * size), b"2"]))


@pytest.mark.parametrize("size", [1, 5000], ids=["raw", "zstd"])
def test_what_is_merged_is_told_as_it_lies(size: int) -> None:
    body = merged_body(size)
    codec, stored = compress(body)
    (frame,) = received_frames(laid(codec, stored))
    first, second = told([frame])
    assert (first.partition, first.partition_id, first.offset, first.created_at_us) == (
        "p",
        3,
        7,
        5,
    )
    assert (second.offset, second.created_at_us, second.payload) == (8, 9, b"2")
    assert not frame.goes_on
    assert isinstance(frame, JoinedFrame)
    assert isinstance(frame, LaidFrame) is (codec != CODEC_RAW)
    assert next(received_frames(laid(codec, stored, goes_on=True))).goes_on


def test_who_has_not_asked_for_laid_frames_refuses_them() -> None:
    with pytest.raises(InvalidFrame, match="version 3 is not known"):
        list(stored_frames(laid(*compress(merged_body(5000)))))


def test_a_laid_body_that_is_not_what_it_should_be_is_refused() -> None:
    codec, stored = compress(merged_body(5000))
    for damaged in (stored[:-1], stored + b"x"):
        (frame,) = received_frames(laid(codec, damaged))
        with pytest.raises(InvalidFrame, match="does not decompress"):
            frame.parts()
    (frame,) = received_frames(laid(codec, stored))
    frame.raw_bytes += 1
    with pytest.raises(InvalidFrame, match="inflates to"):
        frame.parts()
    frame.body = frame.body[:10]
    for ask in (frame.parts, lambda: frame.goes_on):
        with pytest.raises(InvalidFrame, match="table of segments"):
            ask()


def test_large_segments_are_not_joined() -> None:
    assert is_small(*row(1, 5, [("a", 1, False)], 0)[1:])
    assert not is_small(CODEC_RAW, bytes(100_000))
    # Small as it is stored, large as it is read.
    assert not is_small(*compress(bytes(100_000)))


@pytest.mark.parametrize(
    ("accept", "accepted"),
    [
        (ACCEPT_JOINED.encode(), JOINED),
        (b"application/vnd.queen.segment; joined=1, */*", JOINED),
        (ACCEPT_ANY_ORDER.encode(), ANY_ORDER),
        (b"application/vnd.queen.segment; joined=1; order=any", ANY_ORDER),
        (b"application/vnd.queen.segment;order=any", PLAIN),
        (b"application/vnd.queen.segment", PLAIN),
        (b"*/*", PLAIN),
        (b"", PLAIN),
    ],
)
def test_who_accepts_joined_frames(accept: bytes, accepted: Accepted) -> None:
    assert accepted_frames(accept) == accepted
