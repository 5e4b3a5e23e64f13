"""Windows over merged segments are those that they would have been."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queen.core.frame import CONTENT_TYPE
from tests.api import Api
from tests.contract.test_streams import Streams, values
from tests.merged.answers import same, told_of, without
from tests.merged.conftest import Merge, Write
from tests.merged.history import History
from tests.waiting import until

# Of each lease and of each stream. How many bytes a message is told to have is no promise.
_OWN = ("id", "leaseId", "leaseExpiresAt", "stream", "consumerGroup", "bytes")
_KINDS: dict[str, dict[str, Any]] = {
    "tumbling": {"window_duration_ms": 60_000},
    "tumbling by key": {"window_duration_ms": 5_000, "partitioned": True},
    "sliding": {"window_type": "sliding", "window_duration_ms": 60_000, "window_slide_ms": 20_000},
    "sessions": {"window_type": "session", "window_gap_ms": 6_000},
    "sessions by key": {"window_type": "session", "window_gap_ms": 2_000, "partitioned": True},
    "counts": {"window_type": "count", "window_size_count": 10},
    "counts by key": {
        "window_type": "count",
        "window_size_count": 7,
        "window_slide_count": 3,
        "partitioned": True,
    },
}
_EACH = pytest.mark.parametrize("kind", list(_KINDS))
WriteBoth = Callable[..., Awaitable[list[History]]]


@pytest.fixture
def streams(api: Api, queue: str) -> Iterator[Streams]:
    made = Streams(api, f"{queue}-")
    yield made
    listed = api.call("GET", "/api/v1/resources/streams").json["streams"]
    for stream in listed:
        if stream["name"].startswith(made.prefix):
            api.call("DELETE", f"/api/v1/resources/streams/{stream['name']}")


@pytest.fixture
def write_both(write: Write, streams: Streams) -> WriteBoth:
    """Write two queues whose messages lie among each other."""

    async def run(**shape: Any) -> list[History]:
        return [await write(streams.prefix + name, **shape) for name in ("q", "r")]

    return run


def define(streams: Streams, name: str, kind: str) -> None:
    streams.define(name, "q", "r", **_KINDS[kind], max_in_flight=1, window_lease_timeout_ms=300_000)


def wait_until_planned(streams: Streams, name: str, histories: list[History]) -> None:
    """Wait until everything that was written is in a window that is closed, or never will be."""
    last = max(one.at for history in histories for one in history.stored)

    def is_planned() -> bool:
        planned = streams.get(name=name)["plannedUntil"]
        return planned is not None and datetime.fromisoformat(planned) > last + timedelta(minutes=3)

    until(is_planned)


def take(streams: Streams, name: str, group: str = "g", *, limit: int = 10_000) -> list[Any]:
    """Take windows and acknowledge them until none is left."""
    found: list[Any] = []
    while len(found) < limit and (window := streams.poll(name, group, timeout=0)) is not None:
        assert streams.ack(window).status == 200
        assert window["count"] == len(window["messages"])
        found.append(window)
    return found


def in_order(windows: list[Any]) -> list[Any]:
    """Return windows in the order of their keys, and of time for each."""
    kept = without(windows, *_OWN)
    for window, plain in zip(windows, kept, strict=True):
        for message, told in zip(window["messages"], plain["messages"], strict=True):
            told["id"] = message["id"]
    return sorted(kept, key=lambda one: (one["key"], one["start"], one["end"], str(one["ranges"])))


@_EACH
async def test_windows_are_the_same(
    streams: Streams, write_both: WriteBoth, merge: Merge, kind: str
) -> None:
    """Planned and read before, planned before and read after, and planned and read after."""
    histories = await write_both(stretches=80, large=1)
    for name in ("before", "between"):
        define(streams, name, kind)
    for name in ("before", "between"):
        wait_until_planned(streams, name, histories)
    some = take(streams, "between", limit=3)
    held = streams.poll("between")
    wanted = take(streams, "before")
    assert sum(window["count"] for window in wanted) > 0
    if kind.startswith(("tumbling", "sessions")):
        shown = [part for history in histories for part in history.shown("g").values()]
        count = sum(map(len, shown))
        assert sum(window["count"] for window in wanted) == count
    await merge(histories[0].queue)
    if held is not None:
        assert streams.ack(held).status == 200
        some.append(held)
    same(in_order(some + take(streams, "between")), in_order(wanted), "planned before")
    same(in_order(take(streams, "before", "late")), in_order(wanted), "a group that comes later")
    define(streams, "after", kind)
    wait_until_planned(streams, "after", histories)
    same(in_order(take(streams, "after")), in_order(wanted), "planned after")


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "sessions"])
async def test_groups_go_back_to_a_time_and_get_the_same_again(
    streams: Streams, write_both: WriteBoth, merge: Merge, kind: str
) -> None:
    histories = await write_both(stretches=60, large=0)
    define(streams, "s", kind)
    wait_until_planned(streams, "s", histories)
    wanted = take(streams, "s")
    await merge(histories[0].queue)
    for at in sorted({window["start"] for window in wanted})[:: max(len(wanted) // 5, 1)]:
        streams.seek(at)
        later = [window for window in wanted if window["start"] >= at]
        found = [window for window in take(streams, "s") if window["start"] >= at]
        same(in_order(found), in_order(later), f"from {at} on")
    streams.seek("beginning")
    same(in_order(take(streams, "s")), in_order(wanted), "from the beginning on")


async def test_large_windows_are_paged_across_the_merge(
    streams: Streams, write_both: WriteBoth, merge: Merge
) -> None:
    histories = await write_both(stretches=80)
    streams.define("day", "q", "r", window_type="session", window_gap_ms=600_000)
    wait_until_planned(streams, "day", histories)
    window = streams.poll("day", maxInlineBytes=0)
    assert window["messages"] == "ref"
    path = f"/api/v1/stream/messages?leaseId={window['leaseId']}"
    frames = {"accept": CONTENT_TYPE}
    before = told_of(streams.api.call("GET", path, None, frames).raw)
    assert len(before) == window["count"]

    def page(after: str) -> Any:
        answer = streams.api.call("GET", f"{path}&limit=7&after={after}")
        assert answer.status == 200, answer.raw
        return answer.json

    def rest(after: str | None) -> list[Any]:
        found = []
        while after is not None:
            told = page(after)
            found += told["messages"]
            after = told["next"]
        return found

    wanted = rest("")
    # Counted with those that this group is not shown.
    shown = [part for history in histories for part in history.shown("g").values()]
    assert len(wanted) == sum(map(len, shown)) <= window["count"]
    found, after = [], ""
    for _ in range(5):
        told = page(after)
        found += told["messages"]
        after = told["next"]
    await merge(histories[0].queue)
    same(found + rest(after), wanted, "pages across the merge")
    same(rest(""), wanted, "pages after the merge")
    now = told_of(streams.api.call("GET", path, None, frames).raw)
    same(now, before, "frames of a window")


async def test_lists_of_windows_are_the_same(
    streams: Streams, write_both: WriteBoth, merge: Merge
) -> None:
    histories = await write_both(stretches=60)
    define(streams, "s", "tumbling")
    wait_until_planned(streams, "s", histories)
    take(streams, "s", limit=3)
    held = streams.poll()
    assert held is not None
    paths = ("/windows?group=g", "/ranges?limit=1000", "/dead")

    def answers() -> dict[str, Any]:
        return {path: without(streams.get(path), "bytes") for path in paths}

    before = answers()
    await merge(histories[0].queue)
    same(answers(), before, "lists")


_OPEN = {
    "sessions": {"window_type": "session", "window_gap_ms": 1000, "partitioned": True},
    "counts": _KINDS["counts by key"],
    "tumbling": {"window_duration_ms": 1000},
}


@pytest.mark.parametrize("kind", list(_OPEN))
async def test_windows_that_were_open_close_as_they_would_have(
    streams: Streams, write_both: WriteBoth, merge: Merge, kind: str
) -> None:
    """What has been gathered before the merge goes on after it, with what comes then."""
    gaps = [1000, 30_000, 200_000]
    histories = await write_both(
        stretches=40, gaps_us=gaps, large=0, rest=timedelta(0), partitions=2
    )
    streams.define("open", "q", "r", **_OPEN[kind])
    until(lambda: streams.get(name="open")["plannedUntil"] is not None)
    await merge(histories[0].queue)
    for number in range(4):
        streams.push("q", number, partition="p1")
        streams.push("r", number, partition="new")
    pushed_at = datetime.now(UTC)
    streams.define("whole", "q", "r", **_OPEN[kind])

    def are_planned() -> bool:
        ends = [streams.get(name=name)["plannedUntil"] for name in ("open", "whole")]
        return all(
            end and datetime.fromisoformat(end) > pushed_at + timedelta(seconds=2) for end in ends
        )

    until(are_planned)
    found, wanted = take(streams, "open"), take(streams, "whole")
    assert any(3 in values(window) for window in wanted) or kind.startswith("counts")
    same(in_order(found), in_order(wanted), "windows that were open")
