"""What is read in bulk comes in pages that are bounded in bytes, and skips nothing."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from queen.core.frame import stored_frames
from queen.service import catalog
from queen.service.broker import Broker, Limits
from queen.service.catalog import Partition, Queue
from queen.service.consume.feeds import Grant, Pop
from queen.service.log.append import Append
from queen.service.read import fetch
from queen.service.read.sealed_reads import OffsetRange
from queen.service.streams.content import PagePosition, WindowSpan
from queen.wire.frames.joined_frame import JOINED, received_frames
from tests.frame_contents import told

_SEGMENT_BYTES = 1024 * 1024
_SEGMENTS = 24
# A page of two megabytes, and the segment that goes beyond it.
_MOST_BYTES = 4 * 1024 * 1024


@pytest.fixture
async def broker(dsn: str) -> AsyncIterator[Broker]:
    started = await Broker.start(dsn, Limits(dedup_hashes=100_000, connections=3))
    yield started
    await started.stop()


class Statements:
    """Counts the statements that a broker runs, by their names."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counted: Counter[str] = Counter()
        send = broker.database._send

        async def counting(name: str, *rest: Any) -> Any:
            self.counted[name] += 1
            return await send(name, *rest)

        monkeypatch.setattr(broker.database, "_send", counting)

    @property
    def total(self) -> int:
        return sum(self.counted.values())


async def _push(broker: Broker, queue: str, partition: str, *payloads: bytes) -> Partition:
    ids = [uuid.uuid4().hex.encode() for _ in payloads]
    append = Append(queue, partition, ids, payloads, sum(map(len, payloads)))
    await broker.pusher.push([append])
    assert append.target is not None
    return append.target


def _random(size: int) -> bytes:
    """A payload that does not become smaller."""
    return b'"' + os.urandom(size // 2).hex().encode() + b'"'


@pytest.fixture
async def large(broker: Broker, queue: str) -> Partition:
    """A partition of large segments."""
    for _ in range(_SEGMENTS):
        partition = await _push(broker, queue, "p", _random(2 * _SEGMENT_BYTES))
    return partition


async def test_pages_of_a_fetch_are_bounded_in_bytes(broker: Broker, large: Partition) -> None:
    fetcher = broker.fetcher
    for pages in (
        fetcher.partition(large),
        fetcher.queue(large.queue),
        fetcher.ranges([OffsetRange(large, 0, 2**62)]),
    ):
        read = [page async for page in pages]
        assert max(map(len, read)) < _MOST_BYTES
        offsets = [frame.base_offset for page in read for frame in stored_frames(page)]
        assert offsets == list(range(_SEGMENTS))


async def test_the_next_page_is_read_when_it_is_asked_for(
    broker: Broker, large: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = Statements(broker, monkeypatch)
    pages = broker.fetcher.queue(large.queue)
    await anext(pages)
    for _ in range(10):
        await broker.database.fetchval("now")
    assert statements.counted["fetch_queue"] == 1
    await anext(pages)
    assert statements.counted["fetch_queue"] == 2
    await pages.aclose()


async def test_a_page_of_a_window_is_bounded_in_bytes(broker: Broker, large: Partition) -> None:
    spans, place, offsets = [WindowSpan(large.id, 0, _SEGMENTS)], PagePosition(0, 0), []
    while True:
        found, following = await broker.content.page(spans, place, 10_000)
        assert sum(piece.stored.segment.size_bytes for piece, _ in found) < 16 * 1024 * 1024
        offsets += [piece.stored.base_offset + at for piece, places in found for at in places]
        if following is None:
            break
        place = following
    assert offsets == list(range(_SEGMENTS))


async def test_a_window_that_is_too_large_is_not_read_to_find_that_out(
    broker: Broker, large: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = broker.database.fetch
    rows: list[Any] = []

    async def noting(name: str, *args: Any) -> Any:
        found = await fetch(name, *args)
        rows.extend(found if name == "window_segments" else ())
        return found

    monkeypatch.setattr(broker.database, "fetch", noting)
    spans = [WindowSpan(large.id, 0, _SEGMENTS)]
    assert await broker.content.parts(spans, 4 * 1024 * 1024) is None
    assert len(rows) == 1


async def test_a_list_of_messages_reads_a_few_segments_at_a_time(
    broker: Broker, large: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, sizes = broker.database.fetch, []

    async def noting(name: str, *args: Any) -> Any:
        found = await fetch(name, *args)
        if name == "read_spans":
            sizes.append(sum(len(row["body"]) for row in found))
        return found

    monkeypatch.setattr(broker.database, "fetch", noting)
    listed = await broker.browser.newest(large.queue, limit=200)
    assert [one.offset for one in listed] == list(reversed(range(_SEGMENTS)))
    assert max(sizes) < _MOST_BYTES
    assert not any(one.payload for one in listed)
    one = await broker.browser.at(large, 3)
    assert one is not None
    assert len(one.payload) > _SEGMENT_BYTES


async def test_partitions_that_were_forgotten_are_fetched_too(
    broker: Broker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To remember one is to forget another.
    monkeypatch.setattr(catalog, "_MAX_PARTITIONS", 10)
    for n in range(30):
        await _push(broker, queue, f"p{n}", b"%d" % n)
    found = await broker.catalog.queue(queue)
    assert found is not None
    frames = [frame async for page in broker.fetcher.queue(found) for frame in stored_frames(page)]
    assert [frame.partition for frame in frames] == [f"p{n}" for n in range(30)]


@pytest.mark.parametrize("rows", [1, 2, 7, 1000])
async def test_pages_of_joined_frames_skip_nothing(
    broker: Broker, queue: str, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    for number in range(40):
        payloads = [b"%d" % number] * (1 + number % 3 // 2)
        partition = await _push(broker, queue, f"p{number % 3}", *payloads)
    plain = [page async for page in broker.fetcher.queue(partition.queue)]
    monkeypatch.setattr(fetch, "_SLICE_ROWS", rows)
    joined = [page async for page in broker.fetcher.queue(partition.queue, accepted=JOINED)]
    assert len(joined) == -(-40 // rows)
    assert told(received_frames(b"".join(joined))) == told(stored_frames(b"".join(plain)))
    one = [page async for page in broker.fetcher.partition(partition, accepted=JOINED)]
    assert told(received_frames(b"".join(one))) == [
        message
        for message in told(stored_frames(b"".join(plain)))
        if message.partition == partition.name
    ]


# ---- many queues at once ----


async def _pop(broker: Broker, queues: list[Queue], group: str) -> list[Grant]:
    return await broker.popper.pop(queues, Pop(group, 10), 1.0)


@pytest.fixture
async def many(
    broker: Broker, queue: str, connection: asyncpg.Connection
) -> AsyncIterator[list[Queue]]:
    """Queues with nothing in them, but for one message in the last."""
    names = [f"{queue}.{n:03}" for n in range(300)]
    await broker.database.execute("ensure_queues", names, [queue] * 300, [""] * 300, None)
    await _push(broker, names[-1], "p", b"1")
    yield await broker.catalog.queues_by_label(queue, "")
    # So many would make counting dear for the tests behind this one.
    mine = "(select id from queen.queues where namespace = $1)"
    for table in ("segments", "groups", "partitions"):
        await connection.execute(f"delete from queen.{table} where queue_id in {mine}", queue)
    await connection.execute("delete from queen.queues where namespace = $1", queue)


async def test_a_pop_from_many_queues_asks_few_questions(
    broker: Broker, many: list[Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = Statements(broker, monkeypatch)
    (grant,) = await _pop(broker, many, "g")
    assert grant.partition.queue is many[-1]
    first_contact = statements.total
    assert await _pop(broker, many, "g") == []
    # The server asks for itself too, once a second.
    assert first_contact < 50
    assert statements.total - first_contact < 50


async def test_a_pop_from_many_queues_finds_what_nobody_told(
    broker: Broker, many: list[Queue], dsn: str
) -> None:
    """The sweep goes through more partitions than it looks at together, and past empty ones."""
    target = many[150]
    for n in range(230):
        await _push(broker, target.name, f"p{n}", b"1")
    other = await Broker.start(dsn, Limits(dedup_hashes=100_000, connections=3))
    try:
        queues = await other.catalog.queues_by_label(target.namespace, "")
        for _ in range(231):
            (grant,) = await _pop(other, queues, "g")
            assert grant.partition.queue.id in (target.id, many[-1].id)
        assert await _pop(other, queues, "g") == []
    finally:
        await other.stop()


async def test_a_pop_from_many_queues_keeps_their_order(broker: Broker, many: list[Queue]) -> None:
    assert await _pop(broker, many, "g") != []
    for at in (250, 20, 120):
        await _push(broker, many[at].name, "p", b"1")
    # In whatever order they are asked for, as a priority would.
    asked = list(reversed(many))
    found = [(await _pop(broker, asked, "h"))[0].partition.queue for _ in range(4)]
    assert [many.index(one) for one in found] == [299, 250, 120, 20]
