"""What somebody found who had read nothing but the docs."""

from __future__ import annotations

import asyncio
import random

import pytest

from queen.service.broker import Broker
from queen.service.entries.executor import EntryExecutor
from queen.streambroker.replies import NO_ARRAY, Failure, Pairs
from tests.entries.test_log import entries_of, run
from tests.waiting import spend_async

MAX = (1 << 63) - 1


async def test_a_claiming_read_waits_no_longer_than_it_says(
    here: EntryExecutor, key: bytes
) -> None:
    await run(here, "XADD", key, "1-0", "n", 1)
    await run(here, "XGROUP", "CREATE", key, "g", "0")
    await run(here, "XREADGROUP", "GROUP", "g", "a", "STREAMS", key, ">")
    command = ("XREADGROUP", "GROUP", "g", "b", "CLAIM", 3_600_000, "BLOCK", 50)
    async with asyncio.timeout(30):
        assert await run(here, *command, "STREAMS", key, ">") is NO_ARRAY


@pytest.mark.parametrize("options", [(), ("NOACK",)], ids=["ack", "no ack"])
async def test_nothing_is_swallowed_when_a_wait_ends_as_something_comes(
    here: EntryExecutor, there: EntryExecutor, key: bytes, options: tuple[str, ...]
) -> None:
    await run(here, "XGROUP", "CREATE", key, "g", "$", "MKSTREAM")
    block_ms, rng = 20, random.Random(key)
    added, seen = [], []
    for _ in range(40):
        read = ("XREADGROUP", "GROUP", "g", "c", *options, "BLOCK", str(block_ms), "STREAMS")
        reading = asyncio.create_task(run(here, *read, key, ">"))
        await spend_async(block_ms / 1000 + rng.uniform(-0.006, 0.002))
        added.append(await run(there, "XADD", key, "*", "n", 1))
        answer = await reading
        seen += [] if answer is NO_ARRAY else [entry[0] for entry in entries_of(answer)]
    rest = await run(here, "XREADGROUP", "GROUP", "g", "c", *options, "STREAMS", key, ">")
    seen += [] if rest is NO_ARRAY else [entry[0] for entry in entries_of(rest)]
    assert seen == added


async def test_json_that_is_nested_too_deeply_is_text(here: EntryExecutor, key: bytes) -> None:
    deep = b"[" * 5000 + b"]" * 5000
    replies = await asyncio.gather(
        run(here, "XADD", key, "*", "data", deep),
        *[run(here, "XADD", key, "*", "data", "1") for _ in range(20)],
    )
    assert all(isinstance(reply, bytes) for reply in replies)
    entries = await run(here, "XRANGE", key, "-", "+", "COUNT", 1)
    assert entries == [[replies[0], [b"data", deep]]]


async def test_a_pipeline_may_make_many_streams(
    here: EntryExecutor, broker: Broker, key: bytes
) -> None:
    adds = [[b"XADD", b"%s-%d" % (key, number), b"*", b"n", b"1"] for number in range(300)]
    statements = 0
    send = broker.hot._send

    async def count(*arguments: object) -> object:
        nonlocal statements
        statements += 1
        return await send(*arguments)  # type: ignore[arg-type]

    broker.hot._send = count  # type: ignore[method-assign,assignment]
    try:
        replies = await here.execute(adds)
    finally:
        del broker.hot._send
    assert all(isinstance(reply, bytes) for reply in replies)
    # Not so many for each of them.
    assert statements < 100


async def test_numbers_stay_within_what_clients_read(here: EntryExecutor, key: bytes) -> None:
    await run(here, "XADD", key, "1-1", "n", 1)
    await run(here, "XSETID", key, "1-1", "ENTRIESADDED", MAX, "MAXDELETEDID", "0-0")
    await run(here, "XADD", key, "2-1", "n", 1)
    figures = await run(here, "XINFO", "STREAM", key)
    assert isinstance(figures, Pairs)
    assert MAX in figures.items
    await run(here, "XGROUP", "CREATE", key, "g", "0")
    await run(here, "XREADGROUP", "GROUP", "g", "c", "STREAMS", key, ">")
    await run(here, "XCLAIM", key, "g", "c", 0, "1-1", "RETRYCOUNT", MAX, "JUSTID")
    await run(here, "XCLAIM", key, "g", "c", 0, "1-1")
    rows = await run(here, "XPENDING", key, "g", "-", "+", 1)
    assert isinstance(rows, list)
    assert rows[0][3] == MAX  # type: ignore[index]


async def test_waits_without_an_end_are_refused(here: EntryExecutor, key: bytes) -> None:
    reply = await run(here, "XREAD", "BLOCK", MAX, "STREAMS", key, "$")
    assert reply == Failure("ERR timeout is out of range")
