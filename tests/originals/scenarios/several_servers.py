"""A client that knows two servers of one database."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.originals.scene import Scene

_POLL_MS = 300
_STRATEGIES = ("round-robin", "session", "affinity")


async def every_strategy_works(scene: Scene) -> None:
    for strategy in _STRATEGIES:
        name = f"{scene.name}-{strategy}"
        async with scene.Queen({"urls": scene.urls, "load_balancing_strategy": strategy}) as queen:
            for n in range(6):
                await queen.queue(name).push({"n": n})
            seen: list[int] = []

            async def handle(message: Any, seen: list[int] = seen) -> None:
                seen.append(message["data"]["n"])

            # Popped at one server, acknowledged at the other.
            call = queen.queue(name).group("g").batch(1).limit(6).timeout_millis(_POLL_MS)
            await call.consume(handle)
        assert seen == [0, 1, 2, 3, 4, 5], (strategy, seen)


async def a_server_that_is_not_there_is_passed_over(scene: Scene) -> None:
    """The second address is dead."""
    for strategy in _STRATEGIES:
        name = f"{scene.name}-{strategy}"
        async with scene.Queen(
            {"urls": scene.urls[::-1], "load_balancing_strategy": strategy}
        ) as queen:
            for n in range(4):
                (result,) = await queen.queue(name).push({"n": n})
                assert result["status"] == "queued", result
            messages = await queen.queue(name).batch(10).wait(False).pop()
            assert [one["data"]["n"] for one in messages] == [0, 1, 2, 3], (strategy, messages)
            assert (await queen.ack(messages))["success"]


async def a_server_that_stops_is_left_for_the_other(scene: Scene) -> None:
    """The second server ends while a consumer waits at it, as in a rolling upgrade."""
    config = {"urls": scene.urls[::-1], "load_balancing_strategy": "round-robin"}
    async with scene.Queen(config) as queen:
        await queen.queue(scene.name).push([{"n": n} for n in range(5)])
        seen: list[int] = []
        done = asyncio.Event()

        async def handle(message: Any) -> None:
            seen.append(message["data"]["n"])
            if len(seen) == 5:
                await scene.pause()
                await queen.queue(scene.name).push([{"n": n} for n in range(5, 10)])
            if len(set(seen)) == 10:
                done.set()

        call = queen.queue(scene.name).group("g").concurrency(3).batch(1)
        await call.timeout_millis(2000).consume(handle, signal=done)
    assert sorted(seen) == list(range(10)), seen
