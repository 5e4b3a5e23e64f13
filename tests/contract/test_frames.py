"""Frames: whole segments in and out, and nothing that lies."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
import zstandard

from queen.core.frame import (
    CODEC_RAW,
    CODEC_ZSTD,
    CONTENT_TYPE,
    HEADER_BYTES,
    Extras,
    Frame,
    encode_body,
    encode_frame,
    pack_frame,
    segment_of,
)
from tests.api import Api
from tests.contract.conftest import age, stored
from tests.contract.rawhttp import RawConnection, request

CRC_AT = 20


def numbered(
    queue: str, count: int, partition: str = "p", start: int = 0, extras: Extras | None = None
) -> bytes:
    numbers = range(start, start + count)
    ids = [f"t{n}" for n in numbers]
    return encode_frame(queue, partition, ids, [b'{"n":%d}' % n for n in numbers], extras)


def data_of(frame: Frame) -> list[Any]:
    return [json.loads(one) for one in frame.segment().payloads()]


def by_hand(
    queue: str,
    body: bytes,
    count: int = 1,
    *,
    partition: str = "p",
    codec: int = CODEC_RAW,
    raw_bytes: int | None = None,
) -> bytes:
    """Return a frame around any body, with a checksum that is right."""
    size = len(body) if raw_bytes is None else raw_bytes
    return pack_frame(Frame(queue, partition, count, codec, size, body))


def sealed(frame: bytes) -> bytes:
    """Return a frame that was tampered with, with the checksum made right again."""
    blank = frame[:CRC_AT] + bytes(4) + frame[CRC_AT + 4 :]
    return frame[:CRC_AT] + struct.pack("<I", zlib.crc32(blank)) + frame[CRC_AT + 4 :]


def body_by_hand(
    ids: bytes, id_offsets: list[int], data: bytes, offsets: list[int], extras: bytes = b""
) -> bytes:
    count = len(id_offsets) - 1
    header = struct.pack("<IIII", count, len(ids), len(data), len(extras))
    table = struct.pack(f"<{len(id_offsets)}i{len(offsets)}i", *id_offsets, *offsets)
    return header + table + ids + data + extras


# ---- push ----


def test_a_frame_is_pushed_as_a_whole(api: Api, queue: str) -> None:
    answer = api.push_frames(numbered(queue, 100))
    assert answer.status == 201
    (result,) = answer.json
    assert result["queue"] == queue
    assert (result["partition"], result["status"], result["count"]) == ("p", "queued", 100)
    assert result["baseOffset"] == 0
    messages = api.messages(queue, "p", batch=1000)
    assert [one["data"] for one in messages] == [{"n": n} for n in range(100)]
    assert [one["transactionId"] for one in messages] == [f"t{n}" for n in range(100)]
    assert {one["partitionId"] for one in messages} == {result["partitionId"]}


@pytest.mark.parametrize(
    "content_type", ["Application/Vnd.Queen.Segment", f"{CONTENT_TYPE}; version=1"]
)
def test_the_content_type_of_frames_is_read_as_http_says(
    api: Api, queue: str, content_type: str
) -> None:
    frame = numbered(queue, 1)
    answer = api.call("POST", "/api/v1/push", frame, {"Content-Type": content_type})
    assert answer.status == 201


def test_several_frames_are_answered_in_order(api: Api, queue: str) -> None:
    answer = api.push_frames(
        numbered(queue, 3)
        + numbered(f"{queue}.x", 2)
        + numbered(queue, 4, start=3)
        + numbered(queue, 1, "q")
    )
    assert answer.status == 201
    assert [(one["queue"], one["partition"], one["count"]) for one in answer.json] == [
        (queue, "p", 3),
        (f"{queue}.x", "p", 2),
        (queue, "p", 4),
        (queue, "q", 1),
    ]
    assert answer.json[2]["baseOffset"] == 3
    assert [one["n"] for one in api.data(queue, "p", batch=10)] == list(range(7))


def test_frames_and_json_go_to_the_same_partition(api: Api, queue: str) -> None:
    api.push({"queue": queue, "partition": "p", "payload": "json", "transactionId": "j"})
    api.push_frames(numbered(queue, 2))
    assert api.data(queue, "p", batch=10) == ["json", {"n": 0}, {"n": 1}]


def test_a_frame_without_a_partition_goes_to_default(api: Api, queue: str) -> None:
    assert api.push_frames(numbered(queue, 1, "")).json[0]["partition"] == "Default"
    assert len(api.messages(queue, "Default")) == 1


def test_trace_ids_travel_in_frames(api: Api, queue: str) -> None:
    traces = [None, str(uuid.uuid4()), None]
    assert api.push_frames(numbered(queue, 3, extras={"traceId": traces})).status == 201
    assert [one["traceId"] for one in api.messages(queue, batch=5)] == traces


def test_duplicates_inside_and_across_frames_are_stored_once(api: Api, queue: str) -> None:
    ids = ["a", "b", "a", "c"]
    frame = encode_frame(queue, "p", ids, [b"%d" % n for n in range(4)])
    (first,) = api.push_frames(frame).json
    assert (first["status"], first["count"], first["duplicates"]) == ("queued", 3, [2])
    (again,) = api.push_frames(frame).json
    assert (again["status"], again["count"]) == ("duplicate", 0)
    assert again["duplicates"] == [0, 1, 2, 3]
    mixed = encode_frame(queue, "p", ["x", "c", "y"], [b"10", b"11", b"12"])
    two = api.push_frames(mixed + encode_frame(queue, "p", ["y", "z"], [b"20", b"21"])).json
    assert [(one["count"], one["duplicates"]) for one in two] == [(2, [1]), (1, [0])]
    assert api.data(queue, batch=100) == [0, 1, 3, 10, 12, 21]


def test_a_frame_that_is_there_already_is_answered_with_where_it_is(api: Api, queue: str) -> None:
    frame = numbered(queue, 3)
    two = api.push_frames(frame + frame).json
    assert [part["status"] for part in two] == ["queued", "duplicate"]
    assert [part["baseOffset"] for part in [*two, *api.push_frames(frame).json]] == [0, 0, 0]


def test_where_each_message_is_when_some_were_there_before(api: Api, queue: str) -> None:
    (first,) = api.push_frames(encode_frame(queue, "p", ["a", "b"], [b"0", b"1"])).json
    assert "offsets" not in first
    mixed = encode_frame(queue, "p", ["c", "b", "d", "c"], [b"2", b"1", b"3", b"2"])
    (second,) = api.push_frames(mixed).json
    assert (second["duplicates"], second["offsets"]) == ([1, 3], [2, 1, 3, 2])
    by_id = {one["transactionId"]: one["offset"] for one in api.messages(queue, "p", batch=9)}
    assert by_id == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_an_answer_to_items_says_that_frames_are_taken(api: Api, queue: str) -> None:
    answer = api.push({"queue": queue, "payload": 1})
    assert CONTENT_TYPE in answer.headers["accept-post"]


def test_items_of_many_partitions_are_answered_in_order(api: Api, queue: str) -> None:
    items = [
        {"queue": queue, "partition": f"p{n % 7}", "payload": n, "transactionId": f"t{n % 9}"}
        for n in range(10)
    ]
    answer = api.push(*items, {"queue": queue, "partition": "p8", "payload": 0})
    assert answer.status == 201
    assert [told["index"] for told in answer.json] == list(range(11))
    assert [told["transaction_id"] for told in answer.json[:10]] == [f"t{n % 9}" for n in range(10)]
    for n in range(7):
        assert api.data(queue, f"p{n}", batch=9) == [n, n + 7][: 2 if n < 3 else 1]


def test_trace_ids_stay_with_their_messages_when_a_frame_has_duplicates(
    api: Api, queue: str
) -> None:
    traces = [str(uuid.uuid4()) for _ in range(4)]
    ids = ["a", "b", "a", "c"]
    api.push_frames(encode_frame(queue, "p", ids, [b"0"] * 4, {"traceId": traces}))
    got = [one["traceId"] for one in api.messages(queue, batch=5)]
    assert got == [traces[0], traces[1], traces[3]]


def test_a_frame_may_hold_ten_thousand_messages(api: Api, queue: str) -> None:
    api.push_frames(numbered(queue, 10_000))
    assert [one["n"] for one in api.data(queue, batch=10_000)] == list(range(10_000))


# ---- fetch ----


def test_a_frame_comes_back_with_the_bytes_it_was_pushed_with(api: Api, queue: str) -> None:
    small, large = numbered(queue, 2), numbered(queue, 500, start=2)
    api.push_frames(small + large)
    fetched = api.frames(queue, "p")
    body_at = HEADER_BYTES + len(queue) + len("p")
    assert [one.body for one in fetched] == [small[body_at:], large[body_at:]]
    assert {(one.queue, one.partition) for one in fetched} == {(queue, "p")}
    assert [one.codec for one in fetched] == [CODEC_RAW, CODEC_ZSTD]
    assert [one.base_offset for one in fetched] == [0, 2]
    assert api.fetch(queue).raw == api.fetch(queue, "p").raw
    assert b"".join(map(pack_frame, fetched)) == api.fetch(queue).raw


def test_what_was_pushed_as_json_is_fetched_as_frames(api: Api, queue: str) -> None:
    trace = str(uuid.uuid4())
    item = {"queue": queue, "payload": {"a": 1.0}, "transactionId": "t", "traceId": trace}
    api.push(item)
    (message,) = api.messages(queue)
    (frame,) = api.frames(queue)
    segment = frame.segment()
    assert segment.transaction_ids() == ["t"]
    assert segment.payloads() == [b'{"a": 1.0}']
    assert segment.column("traceId") == [trace]
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=frame.created_at_us)
    assert at == datetime.fromisoformat(message["createdAt"])


def test_fetched_frames_can_be_pushed_into_another_queue(api: Api, queue: str) -> None:
    api.push(*[{"queue": queue, "payload": {"n": n, "t": "x\ny"}} for n in range(50)])
    copies = [
        pack_frame(
            Frame(f"{queue}.copy", one.partition, one.count, one.codec, one.raw_bytes, one.body)
        )
        for one in api.frames(queue)
    ]
    assert api.push_frames(b"".join(copies)).status == 201
    assert api.data(f"{queue}.copy", batch=100) == api.data(queue, batch=100)


def test_fetched_frames_can_be_pushed_as_they_are(api: Api, queue: str) -> None:
    # Offset, time and partition in their headers are not looked at.
    api.push_frames(numbered(queue, 3))
    api.push_frames(numbered(queue, 2, start=3))
    again = api.push_frames(api.fetch(queue).raw)
    assert again.status == 201
    assert [one["status"] for one in again.json] == ["duplicate", "duplicate"]


def test_a_queue_is_fetched_in_order_of_time(api: Api, queue: str) -> None:
    for n in range(5):
        for partition in ("a", "b"):
            api.push_frames(numbered(queue, 2, partition, start=2 * n))
    frames = api.frames(queue)
    assert len(frames) == 10
    times = [one.created_at_us for one in frames]
    assert times == sorted(times)
    for partition in ("a", "b"):
        mine = [one for one in frames if one.partition == partition]
        assert [one.base_offset for one in mine] == [0, 2, 4, 6, 8]


def test_a_range_of_offsets_gives_the_segments_that_touch_it(api: Api, queue: str) -> None:
    for start in (0, 10, 20):
        api.push_frames(numbered(queue, 10, start=start))

    def bases(**query: int) -> list[int]:
        return [one.base_offset for one in api.frames(queue, "p", **query)]

    assert bases() == [0, 10, 20]
    assert bases(fromOffset=0, toOffset=1) == [0]
    assert bases(fromOffset=9) == [0, 10, 20]
    assert bases(fromOffset=10) == [10, 20]
    assert bases(fromOffset=11, toOffset=20) == [10]
    assert bases(fromOffset=11, toOffset=21) == [10, 20]
    assert bases(toOffset=10) == [0]
    assert bases(fromOffset=29) == [20]
    assert bases(toOffset=0) == []


def test_from_the_end_of_a_partition_on_there_is_nothing(api: Api, queue: str) -> None:
    api.push_frames(numbered(queue, 10))
    assert api.frames(queue, "p", fromOffset=10) == []
    assert api.frames(queue, "p", fromOffset=1_000_000) == []


async def test_a_range_of_time_gives_the_segments_written_in_it(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    for start in (0, 10):
        api.push_frames(numbered(queue, 10, start=start))
        await age(connection, queue, 3600)
    api.push_frames(numbered(queue, 10, start=20))
    times = [
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=one.created_at_us)
        for one in api.frames(queue)
    ]
    # From is inclusive, to is exclusive.
    for partition in (None, "p"):
        for query, expected in [
            ({}, [0, 10, 20]),
            ({"fromTime": times[0]}, [0, 10, 20]),
            ({"fromTime": times[1]}, [10, 20]),
            ({"fromTime": times[1], "toTime": times[2]}, [10]),
            ({"fromTime": times[0] + timedelta(microseconds=1)}, [10, 20]),
            ({"toTime": times[1] + timedelta(microseconds=1)}, [0, 10]),
            ({"fromTime": times[2] + timedelta(microseconds=1)}, []),
            ({"toTime": times[0]}, []),
            ({"fromTime": times[2], "toTime": times[1]}, []),
        ]:
            text = {name: at.isoformat() for name, at in query.items()}
            got = [one.base_offset for one in api.frames(queue, partition, **text)]
            assert got == expected, (partition, query)


def test_more_than_a_page_is_fetched_whole_and_once(api: Api, queue: str) -> None:
    count = 600
    api.push_frames(b"".join(numbered(queue, 2, start=2 * n) for n in range(count)))
    for partition in (None, "p"):
        frames = api.frames(queue, partition)
        assert [one.base_offset for one in frames] == list(range(0, 2 * count, 2))
    # Many partitions with one time.
    other = f"{queue}.x"
    api.push(*[{"queue": other, "partition": f"p{n}", "payload": n} for n in range(count)])
    frames = api.frames(other)
    assert sorted(n for one in frames for n in data_of(one)) == list(range(count))


def test_a_fetch_neither_leases_nor_acks(api: Api, queue: str) -> None:
    api.push_frames(numbered(queue, 3))
    leased = api.messages(queue, batch=2)
    assert api.frames(queue)[0].count == 3
    assert all(one["success"] for one in api.ack_batch(leased).json["results"])
    assert api.frames(queue)[0].count == 3


def test_an_empty_partition_is_fetched_as_nothing(api: Api, queue: str) -> None:
    api.configure(queue)
    assert api.frames(queue) == api.frames(queue, "Default") == []


def test_an_unknown_queue_or_partition_cannot_be_fetched(api: Api, queue: str) -> None:
    assert api.fetch(queue).status == 404
    assert api.fetch(queue, "p").status == 404
    api.configure(queue)
    answer = api.fetch(queue, "p")
    assert answer.status == 404
    assert answer.json["code"] == "not_found"


@pytest.mark.parametrize(
    "query",
    [
        "fromOffset=-1",
        "fromOffset=x",
        "toOffset=99999999999999999999",
        "fromTime=yesterday",
        "toTime=2026-02-30",
        "toTime=0001-01-01T00:00:00%2B14:00",
    ],
)
def test_a_range_that_makes_no_sense_is_refused(api: Api, queue: str, query: str) -> None:
    api.push_frames(numbered(queue, 1))
    answer = api.call("GET", f"/api/v1/fetch/queue/{queue}/partition/p?{query}")
    assert answer.status == 400
    assert query.partition("=")[0] in answer.json["error"]


def test_a_slow_reader_of_a_large_fetch_blocks_nobody(
    api: Api, queue: str, raw: RawConnection
) -> None:
    payload = json.dumps(uuid.uuid4().hex * 30_000).encode()
    for n in range(20):
        api.push_frames(by_hand(queue, encode_body(segment_of([b"t%d" % n], [payload]))))
    raw.send(request("GET", f"/api/v1/fetch/queue/{queue}"))
    api.push_many(f"{queue}.x", 1)
    assert len(api.messages(f"{queue}.x")) == 1
    answer = raw.answer()
    assert answer.status == 200
    assert len(answer.body) > 20 * len(payload)


def test_a_client_of_http_1_0_gets_the_frames_without_chunks(
    api: Api, queue: str, raw: RawConnection
) -> None:
    api.push_frames(numbered(queue, 3))
    raw.send(request("GET", f"/api/v1/fetch/queue/{queue}", version="1.0"))
    answer = raw.answer()
    assert answer.status == 200
    assert "transfer-encoding" not in answer.headers
    assert answer.body == api.fetch(queue).raw


# ---- what is refused ----


async def test_a_frame_cut_anywhere_is_refused(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    frame = numbered(queue, 2, extras={"traceId": [None, str(uuid.uuid4())]})
    for size in range(len(frame)):
        answer = api.push_frames(frame[:size])
        assert 400 <= answer.status < 500, (size, answer)
        assert answer.json["error"]
    assert await stored(connection, queue) == 0


async def test_a_second_frame_cut_anywhere_refuses_the_first_too(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    first, second = numbered(queue, 1), numbered(queue, 1, start=1)
    for size in range(1, len(second), 7):
        assert 400 <= api.push_frames(first + second[:size]).status < 500, size
    assert await stored(connection, queue) == 0


async def test_a_frame_with_any_bit_flipped_is_refused(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    frame = numbered(queue, 2)
    before = await connection.fetchval("select count(*) from queen.queues")
    for at in range(len(frame)):
        for bit in range(8):
            flipped = bytearray(frame)
            flipped[at] ^= 1 << bit
            answer = api.push_frames(bytes(flipped))
            assert 400 <= answer.status < 500, (at, bit, answer)
    assert await connection.fetchval("select count(*) from queen.queues") == before


@pytest.mark.parametrize("codec", [CODEC_RAW, CODEC_ZSTD])
def test_a_compressed_frame_with_a_flipped_byte_is_refused(
    api: Api, queue: str, codec: int
) -> None:
    body = encode_body(segment_of([b"t%d" % n for n in range(40)], [b"[1,2,3]"] * 40))
    sent = zstandard.compress(body) if codec == CODEC_ZSTD else body
    for at in range(0, len(sent), 3):
        # The checksum is right, the content is not what it was.
        damaged = sent[:at] + bytes([sent[at] ^ 0xFF]) + sent[at + 1 :]
        frame = by_hand(queue, damaged, 40, codec=codec, raw_bytes=len(body))
        answer = api.push_frames(frame)
        assert answer.status < 500, (at, answer)
        if answer.status == 201:
            assert answer.json[0]["count"] == 40 - len(answer.json[0].get("duplicates", []))


IDS, DATA = b"ab", b"1\n2\n"
GOOD = ([0, 1, 2], [0, 2, 4])


def lies() -> dict[str, Callable[[str], bytes]]:
    """Frames whose checksum is right and whose content is not what it claims."""

    def raw(
        ids: bytes = IDS,
        id_offsets: list[int] = GOOD[0],
        data: bytes = DATA,
        offsets: list[int] = GOOD[1],
        count: int = 2,
        extras: bytes = b"",
    ) -> Callable[[str], bytes]:
        body = body_by_hand(ids, id_offsets, data, offsets, extras)
        return lambda queue: by_hand(queue, body, count)

    def header(at: int, fmt: str, value: int) -> Callable[[str], bytes]:
        def make(queue: str) -> bytes:
            frame = bytearray(numbered(queue, 2))
            struct.pack_into(fmt, frame, at, value)
            return sealed(bytes(frame))

        return make

    good = body_by_hand(IDS, GOOD[0], DATA, GOOD[1])
    return {
        "other magic": header(0, "<I", 1),
        "version 0": header(4, "<B", 0),
        "version 2": header(4, "<B", 2),
        "codec 2": header(5, "<B", 2),
        "reserved bits": header(6, "<H", 1),
        "count 0 in the header": header(8, "<I", 0),
        "count too high in the header": header(8, "<I", 3),
        "count over the limit": header(8, "<I", 10_001),
        "count of four billion": header(8, "<I", 2**32 - 1),
        "no message at all": lambda queue: by_hand(
            queue, struct.pack("<IIIIii", 0, 0, 0, 0, 0, 0), 0
        ),
        "body shorter than its header": lambda queue: by_hand(queue, b"\0" * 8, 1),
        "count too high in the body": raw(id_offsets=[0, 1, 2, 2], offsets=[0, 2, 4, 4]),
        "count of four billion in the body": lambda queue: by_hand(
            queue, struct.pack("<I", 2**32 - 1) + good[4:], 2
        ),
        "sizes that wrap around": lambda queue: by_hand(
            queue, struct.pack("<IIII", 2, 2**32 - 1, 2**32 - 1, 2**32 - 1) + good[16:], 2
        ),
        "id offsets that do not start at 0": raw(id_offsets=[1, 1, 2]),
        "id offsets that go back": raw(id_offsets=[0, 3, 2]),
        "id offsets that are negative": raw(id_offsets=[0, -1, 2]),
        "id offsets beyond the ids": raw(id_offsets=[0, 1, 3]),
        "id offsets before the end": raw(id_offsets=[0, 1, 1]),
        "an empty id": raw(id_offsets=[0, 0, 2]),
        "an id that is too long": raw(ids=b"a" * 257, id_offsets=[0, 1, 257]),
        "an id that is not UTF-8": raw(ids=b"a\xff"),
        "an id cut inside a character": raw(ids="aü".encode(), id_offsets=[0, 2, 3]),
        "an id with a NUL": raw(ids=b"a\0"),
        "an id with a surrogate": raw(ids=b"a\xed\xa0\x80", id_offsets=[0, 1, 4]),
        "payload offsets that do not start at 0": raw(offsets=[1, 2, 4]),
        "payload offsets that go back": raw(offsets=[0, 5, 4]),
        "payload offsets beyond the data": raw(offsets=[0, 2, 5]),
        "payload offsets at other places": raw(offsets=[0, 1, 4]),
        "a payload without its newline": raw(data=b"1\n22"),
        "no newline at all": raw(data=b"1 22"),
        "one line with two values": raw(data=b"1 2\n"),
        "two values in one line and an empty line": raw(data=b"1 2\n\n", offsets=[0, 4, 5]),
        "an empty line": raw(data=b"\n1\n", offsets=[0, 1, 3]),
        "an empty payload": raw(data=b"12\n\n", offsets=[0, 3, 4]),
        "a value over two lines": raw(data=b"[1,\n2]\n", offsets=[0, 4, 7]),
        "a newline inside a string": raw(data=b'"a\nb"\n', offsets=[0, 3, 6]),
        "a carriage return for a newline": raw(data=b"1\r2\n"),
        "white space before a value": raw(data=b" 1\n2\n", offsets=[0, 3, 5]),
        "white space behind a value": raw(data=b"1 \n2\n", offsets=[0, 3, 5]),
        "a carriage return behind a value": raw(data=b"1\r\n2\n", offsets=[0, 3, 5]),
        "only white space": raw(data=b"  \n2\n", offsets=[0, 3, 5]),
        "words that are not JSON": raw(data=b"hello\n2\n", offsets=[0, 6, 8]),
        "NaN": raw(data=b"NaN\n2\n", offsets=[0, 4, 6]),
        "an unfinished value": raw(data=b'{"a":\n2\n', offsets=[0, 6, 8]),
        "a control character in a string": raw(data=b'"\x01"\n2\n', offsets=[0, 4, 6]),
        "an escape that is none": raw(data=b'"\\x"\n2\n', offsets=[0, 5, 7]),
        "a payload that is not UTF-8": raw(data=b'"\xff"\n2\n', offsets=[0, 4, 6]),
        "a payload with a NUL": raw(data=b'"\\u0000"\n2\n', offsets=[0, 9, 11]),
        "a payload with a lone surrogate": raw(data=b'"\\ud800"\n2\n', offsets=[0, 9, 11]),
        "a payload nested too deeply": raw(
            data=b"[" * 129 + b"]" * 129 + b"\n2\n", offsets=[0, 259, 261]
        ),
        "a payload nested very deeply": raw(
            data=b"[" * 200_000 + b"]" * 200_000 + b"\n2\n", offsets=[0, 400_001, 400_003]
        ),
        "extras that are not JSON": raw(extras=b"x"),
        "extras that are a list": raw(extras=b"[]"),
        "extras that are too short": raw(extras=b'{"traceId":[null]}'),
        "extras that are too long": raw(extras=b'{"traceId":[null,null,null]}'),
        "extras of another name": raw(extras=b'{"color":[null,null]}'),
        "a trace id that is a number": raw(extras=b'{"traceId":[null,1]}'),
        "a trace id that is not a UUID": raw(extras=b'{"traceId":[null,"x"]}'),
        "a trace id with a NUL": raw(extras=b'{"traceId":[null,"\\u0000"]}'),
        "bytes behind the last frame": lambda queue: numbered(queue, 1) + b"\0",
        "an empty queue name": lambda queue: numbered("", 1),
        "a queue name with a control character": lambda queue: numbered(f"{queue}\n", 1),
        "a queue name with a NUL": lambda queue: numbered(f"{queue}\0", 1),
        "a queue name that is too long": lambda queue: numbered(queue + "x" * 255, 1),
        "a partition name that is too long": lambda queue: numbered(queue, 1, "x" * 256),
        "a queue name that is not UTF-8": lambda queue: sealed(
            numbered(f"{queue}@", 1).replace(b"@", b"\xff")
        ),
        "a queue name that reaches into the partition's": header(24, "<H", 17),
        "a raw size that is not the body's": header(12, "<I", 10),
        "zstd that is none": lambda queue: by_hand(queue, good, 2, codec=CODEC_ZSTD),
        "zstd that is empty": lambda queue: by_hand(
            queue, zstandard.compress(b""), 2, codec=CODEC_ZSTD, raw_bytes=0
        ),
        "zstd that inflates to something else": lambda queue: by_hand(
            queue, zstandard.compress(good), 2, codec=CODEC_ZSTD, raw_bytes=len(good) + 1
        ),
        "zstd without its size": lambda queue: by_hand(
            queue,
            zstandard.ZstdCompressor(write_content_size=False).compress(good),
            2,
            codec=CODEC_ZSTD,
            raw_bytes=len(good),
        ),
        "two zstd frames": lambda queue: by_hand(
            queue,
            zstandard.compress(good) + zstandard.compress(good),
            2,
            codec=CODEC_ZSTD,
            raw_bytes=len(good),
        ),
        "zstd that is cut": lambda queue: by_hand(
            queue, zstandard.compress(good)[:-1], 2, codec=CODEC_ZSTD, raw_bytes=len(good)
        ),
    }


LIES = lies()


@pytest.mark.parametrize("lie", LIES)
def test_a_frame_that_lies_is_refused(api: Api, queue: str, lie: str) -> None:
    frame = LIES[lie](queue)
    answer = api.push_frames(numbered(queue, 1) + frame)
    assert answer.status == 400, answer
    assert answer.json["error"]
    assert api.push_frames(frame).status == 400 or lie == "bytes behind the last frame"
    # The good frame in front was not stored either, and the server goes on.
    assert api.pop(queue, "p", consumerGroup="g").status == 204
    assert api.push_frames(numbered(f"{queue}.good", 1)).status == 201


def test_the_good_frame_that_the_lies_are_made_of_is_good(api: Api, queue: str) -> None:
    body = body_by_hand(IDS, GOOD[0], DATA, GOOD[1], b'{"traceId":[null,null]}')
    assert api.push_frames(by_hand(queue, body, 2)).status == 201
    packed = by_hand(f"{queue}.z", zstandard.compress(body), 2, codec=1, raw_bytes=len(body))
    assert api.push_frames(packed).status == 201
    assert api.data(queue, batch=5) == api.data(f"{queue}.z", batch=5) == [1, 2]


def test_a_refusal_names_the_frame_and_the_reason(api: Api, queue: str) -> None:
    good, bad = numbered(queue, 1), LIES["a payload with a NUL"](queue)
    answer = api.push_frames(good + good + bad)
    assert answer.json["code"] == "invalid_frame"
    assert "frame 2" in answer.json["error"]
    assert "NUL" in answer.json["error"]


def test_a_checksum_that_is_wrong_is_refused(api: Api, queue: str) -> None:
    frame = numbered(queue, 2)
    assert sealed(frame) == frame
    answer = api.push_frames(frame[:CRC_AT] + b"\0\0\0\0" + frame[CRC_AT + 4 :])
    assert answer.status == 400
    assert "checksum" in answer.json["error"]


# ---- bombs ----


def bomb(inflated_bytes: int) -> bytes:
    """Return zstd that inflates to a valid body with two long strings."""
    payload = b'"' + b"a" * (inflated_bytes // 2) + b'"'
    return encode_body(segment_of([b"a", b"b"], [payload, payload]))


@pytest.mark.parametrize("claimed", [None, 100])
def test_a_frame_that_inflates_beyond_the_limit_is_refused(
    api: Api, queue: str, claimed: int | None
) -> None:
    body = bomb(40_000_000)
    packed = zstandard.compress(body)
    assert len(packed) < 10_000
    frame = by_hand(queue, packed, 2, codec=CODEC_ZSTD, raw_bytes=claimed or len(body))
    answer = api.push_frames(frame)
    assert answer.status in (400, 413)
    assert api.pop(queue).status == 204


def test_a_zstd_header_that_lies_about_its_size_is_refused(api: Api, queue: str) -> None:
    # The zstd frame says that it holds 1 MB, and inflates to 30.
    packed = bytearray(zstandard.compress(bomb(30_000_000)))
    # Magic, descriptor (single segment, size of four bytes), content size.
    assert packed[4] >> 6 == 2
    single = packed[4] >> 5 & 1
    at = 5 if single else 6
    struct.pack_into("<I", packed, at, 1_000_000)
    frame = by_hand(queue, bytes(packed), 2, codec=CODEC_ZSTD, raw_bytes=1_000_000)
    assert api.push_frames(frame).status == 400


def test_many_small_frames_that_inflate_to_much_together_are_refused(api: Api, queue: str) -> None:
    # Each is within its limit; a request of 100 kB must not take half a gigabyte of memory.
    body = bomb(31_000_000)
    frame = by_hand(queue, zstandard.compress(body), 2, codec=CODEC_ZSTD, raw_bytes=len(body))
    request_body = frame * 16
    assert len(request_body) < 200_000
    answer = api.push_frames(request_body)
    assert answer.status in (400, 413)
    assert api.pop(queue).status == 204
