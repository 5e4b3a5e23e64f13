"""Replay: the end of an answer is the end of what is stored only if it is still there."""

from __future__ import annotations

import asyncio
import os

import msgspec
import pytest

from queen import Queen
from queen.core.frame import Frame, encode_frame, pack_frame, unpack_frames
from queen.errors import HistoryGone, NotFound, QueenError, Unreachable
from tests.client.fake import CLOSE, Fake, answer

NOTHING = answer("200 OK", b"")
GONE = answer("404 Not Found", b'{"error":"Partition not found","code":"not_found"}')
# Several pages, and more than sockets and buffers take in while nobody reads.
SEGMENTS, SEGMENT_BYTES = 600, 100_000


async def test_a_queue_that_is_deleted_while_it_is_read(queen: Queen, queue: str) -> None:
    async def push(number: int) -> None:
        # What does not compress.
        await queen.queue(queue).partition(f"p{number}").push(os.urandom(SEGMENT_BYTES).hex())

    for first in range(0, SEGMENTS, 50):
        await asyncio.gather(*map(push, range(first, first + 50)))
    seen = 0
    with pytest.raises(QueenError, match="was deleted while it was read"):
        async for _ in queen.queue(queue).replay():
            seen += 1
            if seen == 1:
                await queen.queue(queue).delete()
    assert 0 < seen < SEGMENTS


@pytest.mark.parametrize("partition", [None, "p"])
async def test_an_end_is_no_end_when_nothing_is_there_any_more(partition: str | None) -> None:
    fake = Fake([NOTHING, GONE])
    async with fake.running(), Queen(fake.url, retry_s=0) as queen:
        asked = queen.queue("q") if partition is None else queen.queue("q").partition(partition)
        with pytest.raises(NotFound, match="queue 'q' was deleted while it was read"):
            _ = [one async for one in asked.replay()]


async def test_a_broken_answer_of_what_is_gone_says_so() -> None:
    started = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"
    for check, kind in ((GONE, NotFound), (NOTHING, Unreachable), (CLOSE, Unreachable)):
        fake = Fake([started, check, CLOSE], closes=True)
        async with fake.running(), Queen(fake.url, retry_s=0, timeout_s=5) as queen:
            with pytest.raises(QueenError) as caught:
                _ = [one async for one in queen.queue("q").replay()]
        assert type(caught.value) is kind


def segment(base_offset: int, count: int) -> bytes:
    """Return a frame as a server sends it."""
    ids = [str(base_offset + number) for number in range(count)]
    body = encode_frame("q", "p", ids, [b"1"] * count)
    (frame,) = unpack_frames(body)
    return pack_frame(
        Frame("q", "p", count, frame.codec, frame.raw_bytes, frame.body, base_offset, 0, 7)
    )


def window(lost: int) -> bytes:
    leased = {
        "id": "w",
        "leaseId": "lease",
        "key": "k",
        "start": "2026-03-01T12:00:00Z",
        "end": "2026-03-01T12:01:00Z",
        "leaseTimeoutMs": 60_000,
        "count": 10,
        "lost": lost,
        "messages": "ref",
        "ranges": [{"queue": "q", "partition": "p", "from": 10, "to": 20}],
    }
    return answer("200 OK", msgspec.json.encode({"window": leased}))


@pytest.mark.parametrize(
    ("sent", "lost", "missing"),
    [
        (segment(5, 20), 0, 0),
        (segment(8, 7) + segment(15, 5), 0, 0),
        (segment(13, 7), 3, 0),
        (segment(13, 7), 0, 3),
        (segment(8, 7), 0, 5),
        (b"", 0, 10),
    ],
)
async def test_a_large_window_is_whole_or_an_error(sent: bytes, lost: int, missing: int) -> None:
    fake = Fake([window(lost), answer("200 OK", sent)])
    async with fake.running(), Queen(fake.url, retry_s=0) as queen:
        polled = queen.consumer("s", "g").poll_window()
        if missing:
            with pytest.raises(HistoryGone, match=f"{missing} messages of the window"):
                await polled
        else:
            found = await polled
            assert found is not None
            assert found.size == 10 - lost
