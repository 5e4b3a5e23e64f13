"""Messages are gathered in the client and pushed together."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.originals.scene import Scene


async def a_flush_loses_nothing(scene: Scene) -> None:
    buffer = {"message_count": 100, "time_millis": 60_000}
    for n in range(250):
        answer = await scene.queue().buffer(buffer).push({"n": n})
        assert answer == {"buffered": True, "count": 1}, answer
    await scene.queue().flush_buffer()
    stats = scene.queen.get_buffer_stats()
    assert stats["totalBufferedMessages"] == 0, stats
    assert [one["n"] for one in await scene.drain()] == list(range(250))


async def what_waits_is_counted_and_flushed(scene: Scene) -> None:
    buffer = {"message_count": 1000, "time_millis": 60_000}
    await scene.queue().buffer(buffer).push([{"n": n} for n in range(7)])
    assert scene.queen.get_buffer_stats()["totalBufferedMessages"] == 7
    assert await scene.queue().wait(False).pop() == []
    await scene.queen.flush_all_buffers()
    assert len(await scene.drain()) == 7


async def a_full_buffer_and_a_timer_flush_by_themselves(scene: Scene) -> None:
    for suffix, buffer in (
        ("-full", {"message_count": 5, "time_millis": 60_000}),
        ("-timer", {"message_count": 1000, "time_millis": 100}),
    ):
        await scene.queue(suffix).buffer(buffer).push([{"n": n} for n in range(5)])
        messages: list[Any] = []
        async with asyncio.timeout(20):
            while len(messages) < 5:
                messages += await scene.queue(suffix).batch(5).timeout_millis(2000).pop()
        assert [one["data"]["n"] for one in messages] == [0, 1, 2, 3, 4]


async def closing_flushes(scene: Scene) -> None:
    async with scene.Queen(scene.urls[0]) as other:
        buffer = {"message_count": 1000, "time_millis": 60_000}
        await other.queue(scene.name).buffer(buffer).push([{"n": n} for n in range(3)])
    assert len(await scene.drain()) == 3
