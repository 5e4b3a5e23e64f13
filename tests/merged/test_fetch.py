"""`fetch` tells the same of merged segments, from and to every place."""

from __future__ import annotations

import random
import uuid
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from queen.core.frame import CODEC_MERGED, Frame, compress, encode_body, stored_segment
from queen.errors import QueenError
from queen.wire.frames.joined_frame import ANY_ORDER, JOINED, PLAIN
from tests.api import Api
from tests.frame_contents import Told, told
from tests.merged import merging
from tests.merged.answers import ask_frames, fetch_path, read, same
from tests.merged.conftest import Merge, Write, rows_of
from tests.merged.history import History, text_of


async def test_something_is_merged(
    write: Write, merging_dsn: str, connection: asyncpg.Connection
) -> None:
    """The one test that fails while nothing is."""
    history = await write(partitions=2, stretches=400, gaps_us=[1000], large=0)
    rows = await rows_of(connection, history.queue)
    replaced = await merging.merge_all(merging_dsn)
    left = await rows_of(connection, history.queue)
    assert replaced > 300, f"{replaced} rows were merged"
    assert left < rows / 10, f"{left} of {rows} rows are left"


async def test_merging_again_finds_nothing(history: History, merging_dsn: str) -> None:
    assert history.stored
    await merging.merge_all(merging_dsn)
    assert await merging.merge_all(merging_dsn) == 0


async def test_a_queue_is_read_as_it_was_written(api: Api, history: History, merge: Merge) -> None:
    path = fetch_path(history.queue)
    before = read(api, path)
    same(before["messages"], history.messages(), "before")
    await merge(history.queue)
    same(read(api, path), before, path)


async def test_a_queue_is_read_from_and_to_every_time(
    api: Api, history: History, merge: Merge, rng: random.Random
) -> None:
    times = [text_of(at) for at in history.boundaries(rng, 12)]
    ranges = [{"fromTime": at} for at in times] + [{"toTime": at} for at in times]
    for _ in range(20):
        low, high = sorted(rng.sample(times, 2))
        ranges.append({"fromTime": low, "toTime": high})
    # An instant alone: what was written in one microsecond.
    ranges += [{"fromTime": a, "toTime": b} for a, b in pairwise(times)]
    paths = [fetch_path(history.queue, **each) for each in ranges]
    before = {path: read(api, path) for path in paths}
    await merge(history.queue)
    for path in paths:
        same(read(api, path), before[path], path)


async def test_a_partition_is_read_from_and_to_every_offset(
    api: Api, history: History, merge: Merge, rng: random.Random
) -> None:
    paths = []
    for name in history.partitions:
        head = len(history.of(name))
        paths.append(fetch_path(history.queue, name))
        for _ in range(10):
            low, high = sorted(rng.choices(range(head + 2), k=2))
            paths.append(fetch_path(history.queue, name, fromOffset=low, toOffset=high))
            paths.append(fetch_path(history.queue, name, fromOffset=low))
            paths.append(fetch_path(history.queue, name, fromOffset=low, toOffset=low + 1))
    before = {path: read(api, path) for path in paths}
    await merge(history.queue)
    for path in paths:
        same(read(api, path), before[path], path)


async def test_a_partition_is_read_from_and_to_every_time(
    api: Api, history: History, merge: Merge, rng: random.Random
) -> None:
    times = [text_of(at) for at in history.boundaries(rng, 12)]
    name = next(iter(history.partitions))
    ranges: list[dict[str, Any]] = [{"fromTime": at} for at in times]
    ranges += [{"toTime": at} for at in times]
    ranges += [{"fromTime": a, "toTime": b} for a, b in pairwise(times)]
    for _ in range(10):
        low, high = sorted(rng.sample(times, 2))
        offset = rng.randrange(len(history.of(name)))
        ranges.append({"fromTime": low, "toTime": high, "fromOffset": offset})
        ranges.append({"fromTime": low, "toOffset": offset})
    paths = [fetch_path(history.queue, name, **each) for each in ranges]
    before = {path: read(api, path) for path in paths}
    await merge(history.queue)
    for path in paths:
        same(read(api, path), before[path], path)


async def test_a_long_history_is_read_the_same(
    api: Api, write: Write, merge: Merge, rng: random.Random
) -> None:
    """More than a page, and more than one row holds when it is merged."""
    history = await write(
        partitions=3, stretches=3000, lists=2, large=0, gaps_us=[0, 1000, 20_000, 400_000]
    )
    times = [text_of(at) for at in history.boundaries(rng, 3)]
    paths = [fetch_path(history.queue), *(fetch_path(history.queue, fromTime=at) for at in times)]
    for name in history.partitions:
        middle = len(history.of(name)) // 2
        paths.append(fetch_path(history.queue, name, fromOffset=middle, toTime=times[-4]))
    before = {path: read(api, path) for path in paths}
    same(before[paths[0]]["messages"], history.messages(), "before")
    await merge(history.queue)
    for path in paths:
        same(read(api, path), before[path], path)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
async def test_what_clients_have_pushed_is_read_the_same(
    api: Api, queue: str, merge: Merge, rng: random.Random, encrypted: bool
) -> None:
    """Real pushes, with everything that producers send; then some more behind what was merged."""
    api.configure(queue, encryptionEnabled=encrypted)
    push_all_kinds(api, queue, rng, 60)
    path = fetch_path(queue)
    before = read(api, path)
    # Queues that are encrypted may be left as they are.
    await merge(queue, must=not encrypted)
    same(read(api, path), before, path)
    push_all_kinds(api, queue, rng, 20)
    more = read(api, path)
    count = len(before["messages"])
    same(more["messages"][:count], before["messages"], "what was there before")
    await merge(queue, must=not encrypted)
    same(read(api, path), more, "merged again")


@pytest.mark.parametrize("column", ["id_offsets", "payload_offsets"])
@pytest.mark.parametrize("wrong", [10**9, -5, 0])
async def test_a_merged_row_that_is_damaged_does_no_harm_to_its_neighbours(
    api: Api, write: Write, merge: Merge, connection: asyncpg.Connection, column: str, wrong: int
) -> None:
    history = await write(partitions=3, stretches=300, gaps_us=[1000], large=0, lists=0, rare=False)
    await merge(history.queue)
    row = await connection.fetchrow(
        "select s.* from queen.segments s join queen.queues q on q.id = s.queue_id"
        " where q.name = $1 and s.codec & 16 <> 0 order by length(s.body) desc limit 1",
        history.queue,
    )
    assert row is not None
    segment = stored_segment(row["codec"] & ~CODEC_MERGED, row["body"])
    getattr(segment, column)[20] = wrong
    codec, body = compress(encode_body(segment))
    await connection.execute(
        "update queen.segments set codec = $3, body = $4"
        " where partition_id = $1 and base_offset = $2",
        row["partition_id"],
        row["base_offset"],
        codec | CODEC_MERGED,
        body,
    )

    partition, low, high = row["partition_id"], row["base_offset"], row["end_offset"]

    def is_elsewhere(message: Told) -> bool:
        return message.partition_id != partition or not low <= message.offset < high

    wanted = [message for message in history.messages() if is_elsewhere(message)]
    for accepted in (PLAIN, JOINED, ANY_ORDER):
        frames = ask_frames(api, fetch_path(history.queue), accepted=accepted)
        whole = [message for frame in frames for message in told_or_none(frame)]
        found = sorted(filter(is_elsewhere, whole), key=_place)
        same(found, wanted, str(accepted))


def _place(message: Told) -> tuple[int, int, int]:
    return message.created_at_us, message.partition_id, message.offset


def told_or_none(frame: Frame) -> list[Told]:
    """Return what a frame tells; nothing when it is damaged."""
    try:
        return told([frame])
    except QueenError:
        return []


def push_all_kinds(api: Api, queue: str, rng: random.Random, requests: int) -> list[Any]:
    """Push messages as producers do; return what was answered."""
    answers: list[Any] = []
    for number in range(requests):
        spread = rng.sample(["a", "b", "ü"], rng.choice([1, 1, 1, 2, 3]))
        items = ",".join(
            _item(rng, queue, rng.choice(spread), number)
            for _ in range(rng.choice([1, 1, 1, 2, 5]))
        )
        answer = api.call("POST", "/api/v1/push", f'{{"items": [{items}]}}'.encode())
        assert answer.status == 201, answer.raw
        answers += answer.json
    return answers


def _item(rng: random.Random, queue: str, partition: str, number: int) -> str:
    payload = rng.choice(
        [
            f'{{"n": {number}}}',
            f'{{\n  "n": {number},\r\n\t"text": "line\\nbreak \\u00fc ü \\ud83c\\udf81 🎁"\n}}',
            f'[{number}, 1e3, -0.0, 12345678901234567890, null, true, "\\\\ \\" \\/"]',
            '""',
            "null",
            f'"{"x" * rng.choice([10, 700, 20_000])}"',
        ]
    )
    more = ""
    if rng.random() < 0.5:
        more += f', "transactionId": "order/{uuid.UUID(int=rng.getrandbits(128))} ü"'
    if rng.random() < 0.2:
        more += f', "traceId": "{uuid.UUID(int=rng.getrandbits(128))}"'
    if rng.random() < 0.2:
        more += ', "headers": {"source": "Geschäft", "n": "1"}'
    return f'{{"queue": "{queue}", "partition": "{partition}", "payload": {payload}{more}}}'
