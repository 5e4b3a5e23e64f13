"""The segment format: what goes in comes out, what lies is refused."""

from __future__ import annotations

import contextlib
import json
import struct
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from queen.core.columns.framecheck import check_ids, check_payloads
from queen.core.frame import (
    MAX_RAW_BYTES,
    Frame,
    Segment,
    decode_body,
    encode_body,
    encode_frame,
    pack_frame,
    segment_of,
    unpack_frames,
)
from queen.errors import InvalidFrame, PayloadTooLarge

_ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
_payloads = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def checked(data: bytes) -> list[Segment]:
    segments = [frame.segment() for frame in unpack_frames(data)]
    for segment in segments:
        check_ids(segment)
        check_payloads(segment)
    return segments


@given(st.lists(st.tuples(_ids, _payloads), min_size=1, max_size=30))
def test_messages_survive_a_frame(messages: list[tuple[str, object]]) -> None:
    ids = [one for one, _ in messages]
    payloads = [json.dumps(value, ensure_ascii=False).encode() for _, value in messages]
    if any(b"\\u0000" in one for one in payloads):
        return
    (segment,) = checked(encode_frame("orders", "p", ids, payloads))
    assert segment.transaction_ids() == ids
    assert [json.loads(one) for one in segment.payloads()] == [value for _, value in messages]


@given(st.lists(_ids, min_size=1, max_size=12), st.data())
def test_a_part_of_a_segment_is_a_segment(ids: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(ids)))
    stop = data.draw(st.integers(start, len(ids)))
    payloads = [b"%d" % 10**at for at in range(len(ids))]
    numbers = list(range(len(ids)))
    whole = segment_of([name.encode() for name in ids], payloads, {"n": numbers})
    part = decode_body(encode_body(whole.cut(start, stop)))
    assert part.transaction_ids() == ids[start:stop]
    assert part.payloads() == payloads[start:stop]
    assert part.column("n") == numbers[start:stop]


def test_several_frames_stand_one_after_the_other() -> None:
    data = encode_frame("a", "p", ["1"], [b"1"]) + encode_frame("b", "q", ["2"], [b"2"])
    assert [(one.queue, one.partition) for one in unpack_frames(data)] == [("a", "p"), ("b", "q")]


def test_a_pretty_printed_payload_becomes_one_line() -> None:
    (segment,) = checked(encode_frame("a", "p", ["1"], [b'{\n  "a": 1\r\n}']))
    assert segment.data.count(b"\n") == 1
    assert json.loads(segment.payloads()[0]) == {"a": 1}


def test_every_truncation_is_refused() -> None:
    data = encode_frame("orders", "p", ["one", "two"], [b'{"a": 1}', b"[2]"])
    for length in range(1, len(data)):
        with pytest.raises(InvalidFrame):
            checked(data[:length])


def test_every_flipped_bit_is_noticed() -> None:
    data = encode_frame("q", "p", ["one", "two"], [b'{"a": 1}', b"[2]"])
    for position in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[position] ^= 1 << bit
            with pytest.raises((InvalidFrame, PayloadTooLarge)):
                checked(bytes(broken))


def lying(body: bytes, count: int = 1, codec: int = 0, raw: int | None = None) -> bytes:
    """Return a frame whose checksum is right and whose content is not."""
    return pack_frame(Frame("q", "p", count, codec, len(body) if raw is None else raw, body))


def body_of(ids: list[bytes], data: bytes, payload_offsets: list[int]) -> bytes:
    count = len(ids)
    id_offsets = [0]
    for one in ids:
        id_offsets.append(id_offsets[-1] + len(one))
    joined = b"".join(ids)
    header = struct.pack("<IIII", count, len(joined), len(data), 0)
    tables = struct.pack(f"<{2 * (count + 1)}i", *id_offsets, *payload_offsets)
    return header + tables + joined + data


@pytest.mark.parametrize(
    ("data", "offsets"),
    [
        (b"1\nx\n", [0, 2, 4]),
        (b"1 2\n", [0, 2, 4]),
        (b"1\n2\n", [0, 3, 4]),
        (b"1\n2\n", [0, 2, 3]),
        (b"1\n2\n", [1, 2, 4]),
        (b"1\n\n\n2", [0, 2, 5]),
        (b' {"a":\n1}\n2', [0, 6, 11]),
        (b"1\n2 ", [0, 2, 4]),
        (b"1\n2\n", [0, -1, 4]),
        (b"{}{}", [0, 2, 4]),
        (b'"\xff"\n2\n', [0, 4, 6]),
        (b'"\\ud800"\n2\n', [0, 9, 11]),
        (b'"\\u0000"\n2\n', [0, 9, 11]),
        (b"NaN\n2\n", [0, 4, 6]),
    ],
)
def test_payloads_that_are_not_one_value_a_slice_are_refused(
    data: bytes, offsets: list[int]
) -> None:
    with pytest.raises(InvalidFrame):
        checked(lying(body_of([b"a", b"b"], data, offsets), count=2))


def test_a_count_that_lies_is_refused() -> None:
    body = encode_body(segment_of([b"a", b"b"], [b"1", b"2"]))
    with pytest.raises(InvalidFrame, match="holds 2"):
        checked(lying(body, count=3))


def test_a_bomb_is_refused_before_it_inflates() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(MAX_RAW_BYTES + 1))
    with pytest.raises(PayloadTooLarge):
        checked(lying(bomb, codec=1, raw=MAX_RAW_BYTES + 1))
    with pytest.raises(InvalidFrame, match="inflates"):
        checked(lying(bomb, codec=1, raw=100))


def test_unknown_versions_and_codecs_are_refused() -> None:
    good = bytearray(encode_frame("q", "p", ["1"], [b"1"]))
    for position, value in ((4, 2), (5, 9), (0, 0)):
        bad = bytearray(good)
        bad[position] = value
        with pytest.raises(InvalidFrame):
            checked(bytes(bad))


@given(st.binary(max_size=200))
def test_noise_is_refused_with_our_error(noise: bytes) -> None:
    data = lying(noise, raw=len(noise)) if noise else b""
    with contextlib.suppress(InvalidFrame):
        checked(data)


def test_the_drawn_layout_is_the_layout() -> None:
    body = encode_body(segment_of([b"ab", b"c"], [b"1", b"22"]))
    assert body == (
        struct.pack("<IIII", 2, 3, 5, 0)
        + struct.pack("<6i", 0, 2, 3, 0, 2, 5)
        + b"abc"
        + b"1\n22\n"
    )
    frame = pack_frame(Frame("q", "p", 2, 0, len(body), body))
    assert frame[:4] == b"QSEG"
    (crc,) = struct.unpack_from("<I", frame, 20)
    assert crc == zlib.crc32(frame[:20] + bytes(4) + frame[24:])
    assert decode_body(body).payloads() == [b"1", b"22"]


@pytest.mark.parametrize("count", [1, 2, 7, 1000, 1001])
@pytest.mark.parametrize("ids", ["even", "uneven"])
def test_parts_of_a_segment_are_cut_out_as_the_whole(count: int, ids: str) -> None:
    names = [b"t%04d" % at if ids == "even" else b"t%d" % at for at in range(count)]
    payloads = [b'{"n":%d}' % at for at in range(count)]
    segment = decode_body(encode_body(segment_of(names, payloads)))
    assert segment.id_bytes() == names
    assert segment.payloads() == payloads
    for start, stop in [(0, 1), (count // 2, count), (1, count), (count, count)]:
        assert segment.id_bytes(start, stop) == names[start:stop]
        assert segment.payloads(start, stop) == payloads[start:stop]


def test_ids_of_other_lengths_are_not_taken_for_even_ones() -> None:
    # Together they are as long as four ids of three bytes.
    names = [b"a", b"bbbbb", b"cc", b"dddd"]
    assert segment_of(names, [b"1"] * 4).id_bytes() == names


def test_payloads_with_line_breaks_are_cut_by_their_offsets() -> None:
    payloads = [b"[1,\n2]", b"3", b"[\n]"]
    assert segment_of([b"a", b"b", b"c"], payloads).payloads() == payloads
