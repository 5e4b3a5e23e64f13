"""Pushes that wait in the spool of the server: the six cases of QoS 0.

The published clients have no call for `bufferMs` and `bufferMax`, and none for a pop that the
server acks. Such requests are made by hand, over their own connection; all else is theirs.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.originals.scene import Scene

_SOON = {"bufferMs": 50, "bufferMax": 100}


async def pushes_are_buffered_and_stored(scene: Scene) -> None:
    results = await _push(scene, [{"n": n} for n in range(10)])
    assert [one["status"] for one in results] == ["buffered"] * 10, results
    assert await _collect(scene, 10) == list(range(10))


async def they_are_acked_by_the_server(scene: Scene) -> None:
    await _push(scene, [{"n": n} for n in range(5)])
    assert await _take(scene, 5) == list(range(5))
    assert await scene.queue().batch(10).wait(False).pop() == []


async def every_group_gets_them_and_acks_by_itself(scene: Scene) -> None:
    await _push(scene, [{"n": n} for n in range(5)])
    for group in ("dashboard", "analytics"):
        query = f"consumerGroup={group}&subscriptionMode=all"
        assert await _take(scene, 5, query) == list(range(5))


async def they_keep_their_order(scene: Scene) -> None:
    for n in range(60):
        await _push(scene, [{"n": n}])
    assert await _collect(scene, 60) == list(range(60))


async def other_pushes_go_behind_them(scene: Scene) -> None:
    await _push(scene, [{"n": 0}, {"n": 1}], bufferMs=2000, bufferMax=1000)
    answer = await scene.queue().push({"n": 2})
    assert answer, answer
    await _push(scene, [{"n": 3}])
    assert await _collect(scene, 4) == [0, 1, 2, 3]


async def a_payload_may_hold_many_events(scene: Scene) -> None:
    await _push(scene, [{"n": 0, "events": [{"at": at} for at in range(100)]}])
    messages: list[Any] = []
    async with asyncio.timeout(20):
        while not messages:
            messages = await scene.queue().timeout_millis(2000).pop()
    assert len(messages[0]["data"]["events"]) == 100


async def _push(scene: Scene, payloads: list[Any], **how: Any) -> Any:
    items = [{"queue": scene.name, "payload": payload} for payload in payloads]
    body = {"items": items, **_SOON, **how}
    return await scene.queen._http_client.post("/api/v1/push", body)


async def _collect(scene: Scene, count: int) -> list[int]:
    """Pop and ack until so many came; return their numbers."""
    numbers: list[int] = []
    async with asyncio.timeout(20):
        while len(numbers) < count:
            numbers += [one["n"] for one in await scene.drain()]
    return numbers


async def _take(scene: Scene, count: int, query: str = "") -> list[int]:
    """The same with `autoAck`."""
    path = f"/api/v1/pop/queue/{scene.name}?batch=100&autoAck=true&wait=true&timeout=2000&{query}"
    numbers: list[int] = []
    async with asyncio.timeout(20):
        while len(numbers) < count:
            answer = await scene.queen._http_client.get(path)
            numbers += [one["data"]["n"] for one in (answer or {}).get("messages", [])]
    return numbers
