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
    ACCEPT_JOINED,
    FrameJoiner,
    LoneMessages,
    accepts_joined,
    is_small,
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


def test_large_segments_are_not_joined() -> None:
    assert is_small(*row(1, 5, [("a", 1, False)], 0)[1:])
    assert not is_small(CODEC_RAW, bytes(100_000))
    # Small as it is stored, large as it is read.
    assert not is_small(*compress(bytes(100_000)))


@pytest.mark.parametrize(
    ("accept", "is_accepted"),
    [
        (ACCEPT_JOINED.encode(), True),
        (b"application/vnd.queen.segment; joined=1, */*", True),
        (b"application/vnd.queen.segment", False),
        (b"*/*", False),
        (b"", False),
    ],
)
def test_who_accepts_joined_frames(accept: bytes, is_accepted: bool) -> None:
    assert accepts_joined(accept) is is_accepted
