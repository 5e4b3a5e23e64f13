"""The streaming SDK of the client: operators in the client, state and results in the broker.

What a query has to find is computed again in plain Python, from the messages of its source.
"""

from __future__ import annotations

import importlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from tests.originals.scene import Scene
from tests.waiting import spend_async, until_async

_SECOND_MS = 1000
_FLUSH_MS = 150
_PARTITIONS = ("a", "b", "c")


def _streams() -> Any:
    """The SDK, which only the environment of the client has."""
    return importlib.import_module("queen.streams")


def _from(scene: Scene, suffix: str = "") -> Any:
    return _streams().Stream.from_(scene.queue(suffix))


@asynccontextmanager
async def _running(scene: Scene, stream: Any, name: str, **options: Any) -> AsyncIterator[Any]:
    quick = {"max_wait_millis": 200, **options}
    runner = await stream.run(f"{scene.name}-{name}", scene.urls[0], **quick)
    try:
        yield runner
    finally:
        await runner.stop()


async def _until(holds: Callable[[], bool]) -> None:
    async def look() -> bool:
        return holds()

    await until_async(look)


async def _take(scene: Scene, suffix: str = "", wait: bool = True, **how: Any) -> list[Any]:
    """Pop from all partitions, and acknowledge."""
    call = scene.queue(suffix).batch(1000).partitions(10).wait(wait).timeout_millis(500)
    messages: list[Any] = await (call.group(how["group"]) if how else call).pop()
    if messages:
        answer = await scene.queen.ack(messages, True, how)
        assert answer["success"], answer
    return messages


async def _results(scene: Scene, suffix: str, count: int) -> list[Any]:
    """Wait for so many results, and take those that are there beside them."""
    found: list[Any] = []
    while len(found) < count:
        found += await _take(scene, suffix)
    return [one["data"] for one in found + await _take(scene, suffix, wait=False)]


async def _messages(scene: Scene) -> list[Any]:
    """Everything that is in the source, read by somebody else."""
    found: list[Any] = []
    while messages := await _take(scene, wait=False, group="oracle"):
        found += messages
    return found


def _counted(stream: Any) -> Any:
    """Count and add up, and say of which partition and window that is."""
    added = stream.aggregate({"count": lambda _: 1, "sum": lambda data: data["n"]})
    return added.map(
        lambda value, ctx: {
            "of": ctx["partition"],
            "start": ctx["windowStart"],
            "count": value["count"],
            "sum": value["sum"],
        }
    )


def _row(result: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(result[name] for name in ("of", "start", "count", "sum"))


def _oracle(
    messages: Iterable[dict[str, Any]], size_ms: int, slide_ms: int
) -> list[tuple[Any, ...]]:
    """Return what windows over messages hold, by the time that the broker gave them."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for one in messages:
        at = datetime.fromisoformat(one["createdAt"].replace("Z", "+00:00"))
        at_ms = int(at.timestamp()) * 1000 + at.microsecond // 1000
        start = at_ms // slide_ms * slide_ms
        while start > at_ms - size_ms:
            found[one["partition"], start].append(one["data"]["n"])
            start -= slide_ms
    return sorted((of, start, len(n), sum(n)) for (of, start), n in found.items())


async def _push(scene: Scene, numbers: Iterable[int]) -> None:
    for name in _PARTITIONS:
        await scene.queue().partition(name).push([{"n": n} for n in numbers])


# ---- without state ----


async def map_filter_and_flat_map_into_partitions(scene: Scene) -> None:
    stream = (
        _from(scene)
        .map(lambda message: message["data"]["n"])
        .filter(lambda message: message["data"]["n"] % 2 == 0)
        .flat_map(lambda message: [message["data"]["n"], -message["data"]["n"]])
        .to(scene.queue("-out"), partition=lambda n: f"p{abs(n) % 4}")
    )
    async with _running(scene, stream, "flat") as runner:
        await scene.queue().push([{"n": n} for n in range(1, 9)])
        found = await _results(scene, "-out", 8)
        assert runner.metrics()["errorsTotal"] == 0
    expected = Counter(sign * n for n in (2, 4, 6, 8) for sign in (1, -1))
    assert Counter(one["value"] for one in found) == expected, found


async def results_keep_the_partition_and_its_order(scene: Scene) -> None:
    stream = _from(scene).map(lambda message: message["data"]).to(scene.queue("-out"))
    async with _running(scene, stream, "copy", batch_size=7):
        await _push(scene, range(40))
        found: dict[str, list[int]] = defaultdict(list)
        while sum(map(len, found.values())) < 120:
            for one in await _take(scene, "-out"):
                found[one["partition"]].append(one["data"]["n"])
    assert dict(found) == {name: list(range(40)) for name in _PARTITIONS}


async def foreach_sees_everything_and_a_failure_again(scene: Scene) -> None:
    await scene.queue().config({"leaseTime": 1}).create()
    seen: list[int] = []
    errors: list[Exception] = []

    def effect(value: dict[str, int]) -> None:
        seen.append(value["n"])
        if value["n"] == 2 and seen.count(2) == 1:
            raise ValueError("once")

    stream = _from(scene).map(lambda message: message["data"]).foreach(effect)
    failed = {"on_error": lambda error, _: errors.append(error)}
    async with _running(scene, stream, "each", **failed) as runner:
        await scene.queue().push([{"n": n} for n in range(4)])
        await _until(lambda: runner.metrics()["messagesTotal"] == 4)
    assert seen == [0, 1, 2, 0, 1, 2, 3], seen
    assert [str(error) for error in errors] == ["once"]


# ---- windows ----


async def tumbling_windows_hold_each_message_once(scene: Scene) -> None:
    stream = _from(scene).window_tumbling(seconds=1, idle_flush_ms=_FLUSH_MS)
    async with _running(scene, _counted(stream).to(scene.queue("-out")), "tumb") as runner:
        for start in range(0, 60, 10):
            await _push(scene, range(start, start + 10))
            await spend_async(0.2)
        expected = _oracle(await _messages(scene), _SECOND_MS, _SECOND_MS)
        found = sorted(map(_row, await _results(scene, "-out", len(expected))))
        assert runner.metrics()["errorsTotal"] == 0
    assert found == expected, (found, expected)


async def sliding_windows_overlap(scene: Scene) -> None:
    stream = _from(scene).window_sliding(size=1, slide=0.5, idle_flush_ms=_FLUSH_MS)
    async with _running(scene, _counted(stream).to(scene.queue("-out")), "slide") as runner:
        for start in range(0, 40, 10):
            await _push(scene, range(start, start + 10))
            await spend_async(0.2)
        expected = _oracle(await _messages(scene), _SECOND_MS, _SECOND_MS // 2)
        found = sorted(map(_row, await _results(scene, "-out", len(expected))))
        assert runner.metrics()["errorsTotal"] == 0
    assert found == expected, (found, expected)


async def cron_windows_begin_on_the_second(scene: Scene) -> None:
    stream = _from(scene).window_cron(every="second", idle_flush_ms=_FLUSH_MS)
    async with _running(scene, _counted(stream).to(scene.queue("-out")), "cron"):
        await _push(scene, range(30))
        expected = _oracle(await _messages(scene), _SECOND_MS, _SECOND_MS)
        found = sorted(map(_row, await _results(scene, "-out", len(expected))))
    assert found == expected, (found, expected)


async def sessions_end_when_nothing_comes(scene: Scene) -> None:
    stream = (
        _from(scene)
        .key_by(lambda message: message["data"]["k"])
        .window_session(gap=0.3, idle_flush_ms=_FLUSH_MS)
        .reduce(lambda acc, data: [*acc, data["n"]], initial=[])
        .map(lambda acc, ctx: {"k": ctx["key"], "n": acc})
        .to(scene.queue("-out"))
    )
    async with _running(scene, stream, "sess") as runner:
        for n in range(3):
            # One session each: the next one begins when this one has its result.
            await scene.queue().push([{"k": key, "n": n} for key in ("x", "y", "x")])
            found = await _results(scene, "-out", 2)
            rows = sorted((one["k"], one["n"]) for one in found)
            assert rows == [("x", [n, n]), ("y", [n])], rows
        assert runner.metrics()["errorsTotal"] == 0


# ---- event time ----


def _timed(scene: Scene, on_late: str) -> Any:
    """Windows of ten seconds by a time in the message, which may come five seconds late."""
    stream = _from(scene).window_tumbling(
        seconds=10,
        event_time=lambda message: message["data"]["t"] * 1000,
        allowed_lateness=5,
        on_late=on_late,
        idle_flush_ms=_FLUSH_MS,
    )
    return _counted(stream).to(scene.queue("-out"))


async def _push_times(scene: Scene, runner: Any, *times: int) -> None:
    """Push messages of these times, and wait until they are counted."""
    before = runner.metrics()["messagesTotal"]
    await scene.queue().push([{"t": t, "n": t} for t in times])
    await _until(lambda: bool(runner.metrics()["messagesTotal"] == before + len(times)))


async def late_events_are_dropped_and_counted(scene: Scene) -> None:
    async with _running(scene, _timed(scene, "drop"), "late") as runner:
        await _push_times(scene, runner, 1, 12)
        # Late, but not too late: the window is open until 15 has been seen.
        await _push_times(scene, runner, 8)
        await _push_times(scene, runner, 17)
        await _push_times(scene, runner, 5, 16)
        assert runner.metrics()["lateEventsTotal"] == 1
        await _push_times(scene, runner, 99)
        found = await _results(scene, "-out", 2)
    rows = sorted((one["start"], one["count"], one["sum"]) for one in found)
    assert rows == [(0, 2, 9), (10_000, 3, 45)], rows


async def late_events_can_be_included(scene: Scene) -> None:
    async with _running(scene, _timed(scene, "include"), "late") as runner:
        await _push_times(scene, runner, 1, 17)
        await _push_times(scene, runner, 5)
        assert runner.metrics()["lateEventsTotal"] == 0
        found = await _results(scene, "-out", 2)
    # A window that was closed has a second result with what came later.
    assert sorted((one["start"], one["sum"]) for one in found) == [(0, 1), (0, 5)]


# ---- gates ----


async def a_gate_holds_back_and_keeps_the_order(scene: Scene) -> None:
    await scene.queue().config({"leaseTime": 1}).create()
    gate = importlib.import_module("queen.streams.helpers").token_bucket_gate(4, 100)
    stream = _from(scene).gate(gate).to(scene.queue("-out"))
    async with _running(scene, stream, "gate") as runner:
        started = time.monotonic()
        await scene.queue().push([{"n": n} for n in range(7)])
        found = await _results(scene, "-out", 7)
        # What the gate has not let through comes again when the lease is over.
        assert time.monotonic() - started > 0.8
        metrics = runner.metrics()
    assert [one["n"] for one in found] == list(range(7)), found
    assert (metrics["gateAllowsTotal"], metrics["gateDenialsTotal"]) == (7, 3), metrics
    assert metrics["errorsTotal"] == 0, metrics


# ---- definitions ----


async def a_changed_definition_needs_a_reset(scene: Scene) -> None:
    register = importlib.import_module("queen.streams.runtime.register")

    def stream(seconds: int) -> Any:
        return _counted(_from(scene).window_tumbling(seconds=seconds)).to(scene.queue("-out"))

    async with _running(scene, stream(60), "q") as runner:
        await _push(scene, [1])
        await _until(lambda: bool(runner.metrics()["messagesTotal"] == len(_PARTITIONS)))
        first = runner.metrics()["serverQueryId"]
    async with _running(scene, stream(60), "q") as runner:
        assert runner.metrics()["serverQueryId"] == first
    try:
        await stream(30).run(f"{scene.name}-q", scene.urls[0])
    except register.StreamsConfigHashMismatch as error:
        assert "config_hash mismatch" in str(error), error
    else:
        raise AssertionError("the definition was taken")
    async with _running(scene, stream(30), "q", reset=True) as runner:
        assert runner.metrics()["serverQueryId"] != first


# ---- crashes ----


def _session_oracle(events: list[tuple[str, int, int]], gap_ms: int) -> list[tuple[Any, ...]]:
    """Return key, first time, count and sum of every session but the last of each key."""
    found: list[tuple[Any, ...]] = []
    by_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for key, at, n in events:
        by_key[key].append((at, n))
    for key, timed in by_key.items():
        session = [timed[0]]
        for at, n in timed[1:]:
            if at - session[-1][0] > gap_ms:
                found.append((key, session[0][0], len(session), sum(m for _, m in session)))
                session = []
            session.append((at, n))
    return sorted(found)


def _sessions(scene: Scene) -> Any:
    return (
        _counted(
            _from(scene)
            .key_by(lambda message: message["data"]["k"])
            .window_session(
                gap=1, event_time=lambda message: message["data"]["t"], idle_flush_ms=_FLUSH_MS
            )
        )
        .map(lambda value, ctx: {**value, "of": ctx["key"]})
        .to(scene.queue("-sess"))
    )


class _Producer:
    """Pushes numbered events to each partition, in bursts with gaps between.

    Each partition has one key. With several the SDK may leave a session behind that it has
    closed, when the last of a batch ends with the batch, and close it again in the next.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._number = 0
        self.events: list[tuple[str, int, int]] = []

    async def push(self, count: int) -> None:
        for name in _PARTITIONS:
            items = []
            for number in range(self._number, self._number + count):
                # Every seventh event comes two seconds after the one before, in its own time.
                at = number * 100 + number // 7 * 2000
                self.events.append((name, at, number))
                items.append({"k": name, "t": at, "n": number})
            await self._scene.queue().partition(name).push(items)
        self._number += count

    async def end(self) -> None:
        """Push what closes every session that is still open."""
        self._number += 10_000
        await self.push(1)


async def queries_outlast_a_server_that_is_killed(scene: Scene) -> None:
    await scene.queue().config({"leaseTime": 2}).create()
    tumbling = _from(scene).window_tumbling(seconds=1, idle_flush_ms=_FLUSH_MS)
    sliding = _from(scene).window_sliding(size=2, slide=1, idle_flush_ms=_FLUSH_MS)
    small = {"batch_size": 20, "max_partitions": 2}
    async with (
        _running(scene, _counted(tumbling).to(scene.queue("-tumb")), "tumb", **small) as first,
        _running(scene, _counted(sliding).to(scene.queue("-slide")), "slide", **small) as second,
        _running(scene, _sessions(scene), "sess", **small) as third,
    ):
        runners = (first, second, third)
        producer = _Producer(scene)
        await producer.push(20)
        await _until(lambda: all(one.metrics()["messagesTotal"] >= 60 for one in runners))
        # More than can be done before the server is gone.
        await producer.push(100)
        await _until(lambda: any(one.metrics()["messagesTotal"] > 100 for one in runners))
        await scene.pause()
        await producer.push(30)
        await producer.end()
        messages = await _messages(scene)
        expected = {
            "-tumb": _oracle(messages, _SECOND_MS, _SECOND_MS),
            "-slide": _oracle(messages, 2 * _SECOND_MS, _SECOND_MS),
            "-sess": _session_oracle(producer.events, _SECOND_MS),
        }
        assert len(messages) == len(producer.events)
        for suffix, rows in expected.items():
            found = sorted(map(_row, await _results(scene, suffix, len(rows))))
            assert found == rows, (suffix, _differences(found, rows))


def _differences(found: list[Any], expected: list[Any]) -> dict[str, Any]:
    one, other = Counter(found), Counter(expected)
    return {"too much": dict(one - other), "missing": dict(other - one)}
