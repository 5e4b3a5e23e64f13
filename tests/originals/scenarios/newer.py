"""What only brokers newer than the one we are compatible with have: refused, and at once."""

from __future__ import annotations

import time
from typing import Any

from tests.originals.scene import Scene, only


async def _error(call: Any) -> Exception:
    started = time.monotonic()
    try:
        await call
    except Exception as error:
        assert time.monotonic() - started < 2.5, "the refusal was tried again"
        return error
    raise AssertionError("it was not refused")


def _status(error: Exception) -> int:
    return int(error.response.status_code)  # type: ignore[attr-defined]


@only("2.6.0")
async def keys_locks_timers_and_ephemeral_queues(scene: Scene) -> None:
    queen = scene.queen
    for call in (
        queen.kv.get("ns", "key"),
        queen.lock("daily", ttl_seconds=5).acquire(),
        queen.timer(scene.name).key("k").payload({"n": 1}).after_ms(10).schedule(),
        queen.admin.get_queue_depth(scene.name),
        scene.queue().fetch("Default"),
        scene.queue().changed_since(),
    ):
        assert _status(await _error(call)) == 404
    error = await _error(queen.ephemeral.push(scene.name, [{"n": 1}]))
    assert error.code == "ephemeral_unsupported", error  # type: ignore[attr-defined]


@only("2.6.0")
async def a_transaction_with_a_gate_does_not_go_without_it(scene: Scene) -> None:
    gated = scene.queen.transaction().once("ns", "key", forever=True)
    error = await _error(gated.queue(scene.name).push({"n": 1}).commit())
    assert _status(error) == 400 and "kv" in str(error), error
    timed = scene.queen.transaction().timer(scene.name).key("k").payload(1).after_ms(9).schedule()
    error = await _error(timed.queue(scene.name).push({"n": 1}).commit())
    assert _status(error) == 400 and "timers" in str(error), error
    assert await scene.drain() == []


@only("2.6.0")
async def conflation(scene: Scene) -> None:
    await scene.queue().push([{"n": 1}, {"n": 2}])
    error = await _error(scene.queue().group("g").conflation().wait(False).pop())
    assert "conflation" in str(error), error


@only("2.6.0")
async def a_binary_push(scene: Scene) -> None:
    async with scene.Queen(scene.urls[0], binary_push=True) as queen:
        error = await _error(queen.queue(scene.name).push({"n": 1}))
    assert _status(error) == 415, error
    assert await scene.drain() == []
