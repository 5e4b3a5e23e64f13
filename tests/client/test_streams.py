"""Streams: defined, shown, explained, moved and deleted through the client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queen import Queen
from queen.errors import BadRequest, NotFound, StreamDiffers


async def test_a_stream_is_defined_shown_and_deleted(queen: Queen, queue: str) -> None:
    stream = (
        queen.stream(queue, "shop")
        .sources([queue, f"{queue}-b"])
        .partitioned()
        .sliding_time(60, slide=10)
        .grace_period(timedelta(seconds=5))
        .lease_timeout(7)
        .retry_limit(2)
        .retry_delay(0.5)
        .max_in_flight(4)
        .emit_empty()
    )
    defined = await stream.define()
    assert (defined["created"], defined["name"]) == (True, queue)
    assert (await stream.define())["created"] is False
    shown = await stream.show()
    expected = {
        "id": defined["stream_id"],
        "namespace": "shop",
        "partitioned": True,
        "windowType": "sliding",
        "windowDurationMs": 60_000,
        "windowSlideMs": 10_000,
        "windowGracePeriodMs": 5_000,
        "windowLeaseTimeoutMs": 7_000,
        "retryLimit": 2,
        "retryDelayMs": 500,
        "maxInFlight": 4,
        "emitEmpty": True,
    }
    assert {name: shown[name] for name in expected} == expected
    assert sorted(shown["sourceQueues"]) == sorted([queue, f"{queue}-b"])
    listed = await queen.admin.streams(limit=1000)
    assert queue in [one["name"] for one in listed["streams"]]
    assert (await queen.admin.stream_stats())["totalStreams"] >= 1
    assert await stream.delete() is True
    assert await stream.delete() is False
    with pytest.raises(NotFound):
        await stream.show()


async def test_the_names_of_the_other_client(queen: Queen, queue: str) -> None:
    stream: Any = queen.stream(queue, "n")
    await stream.sources([queue]).tumblingTime(5).gracePeriod(1).leaseTimeout(9).define()
    shown = await stream.show()
    assert [shown[f"window{name}Ms"] for name in ("Duration", "GracePeriod", "LeaseTimeout")] == [
        5000,
        1000,
        9000,
    ]


@pytest.mark.parametrize("kind", ["tumbling", "session", "count"])
async def test_every_kind_of_window(queen: Queen, queue: str, kind: str) -> None:
    stream = queen.stream(queue).sources(queue)
    kinds = {
        "tumbling": stream.tumbling_time(1.5),
        "session": stream.session(gap=0.5),
        "count": stream.count(3, slide=1),
    }
    await kinds[kind].define()
    shown = await stream.show()
    assert shown["windowType"] == kind
    assert shown["windowDurationMs"] == (1500 if kind == "tumbling" else None)
    assert shown["windowGapMs"] == (500 if kind == "session" else None)
    assert (shown["windowSizeCount"], shown["windowSlideCount"]) == (
        (3, 1) if kind == "count" else (None, None)
    )


async def test_a_change_that_cuts_other_windows_has_to_be_meant(queen: Queen, queue: str) -> None:
    stream = queen.stream(queue).sources(queue).count(2).grace_period(0)
    await stream.define()
    await queen.queue(queue).push([1, 2])
    window = await queen.consumer(queue, "g").poll_window(20)
    assert window is not None
    await window.ack()
    with pytest.raises(StreamDiffers, match="window_size_count") as refused:
        await stream.count(3).define()
    assert refused.value.differs == ["window_size_count: 2 -> 3"]
    assert (await stream.count(3).define(recut=True))["changed"] is True


async def test_what_is_wrong_is_named(queen: Queen, queue: str) -> None:
    with pytest.raises(BadRequest, match="source_queue_names"):
        await queen.stream(queue).define()
    with pytest.raises(BadRequest, match="multiple"):
        await queen.stream(queue).sources(queue).sliding_time(10, 3).define()


async def test_windows_groups_and_reasons(queen: Queen, queue: str) -> None:
    stream = queen.stream(queue).sources(queue).count(2).grace_period(0)
    await stream.define()
    await queen.queue(queue).push([1, 2, 3, 4])
    consumer = queen.consumer(queue, "g").named("me")
    window = await consumer.poll_window(20)
    assert window is not None
    (leased,) = await stream.windows("g", state="leased")
    assert (leased["id"], leased["consumer"], leased["attempts"]) == (window.id, "me", 1)
    assert len(await stream.windows()) == 2
    assert await stream.windows(key="nobody") == []
    assert len(await stream.windows("g", limit=1)) == 1
    (group,) = await stream.consumers()
    assert (group["consumerGroup"], group["leased"]) == ("g", 1)
    explained = await stream.explain("g")
    assert explained["why"]
    assert {one["state"] for one in explained["keys"]} >= {"leased"}
    await window.ack()
    await stream.pause("g")
    assert await consumer.poll_window(0) is None
    await stream.resume("g")
    second = await consumer.poll_window(20)
    assert second is not None
    await stream.seek("g", datetime(1970, 1, 1, tzinfo=UTC))
    again = await consumer.poll_window(20)
    assert again is not None
    assert again.id == window.id
    assert await stream.retry_dead("g") == 0
    assert await stream.delete_group("g") is True
    assert await stream.delete_group("g") is False


async def test_two_queues_are_joined_in_a_window(queen: Queen, queue: str) -> None:
    clicks, buys = f"{queue}-clicks", f"{queue}-buys"
    await queen.stream(queue).sources(clicks, buys).count(5).grace_period(0).define()
    await queen.queue(clicks).push([{"user": "a", "page": 1}, {"user": "b"}, {"user": "c"}])
    await queen.queue(buys).push([{"user": "a", "sum": 7}, {"user": "a", "sum": 8}])
    window = await queen.consumer(queue, "g").poll_window(20)
    assert window is not None
    pairs = window.join(clicks, buys, on="data.user", how="left")
    assert [(one.key, one.right and one.right.data["sum"]) for one in pairs] == [
        ("a", 7),
        ("a", 8),
        ("b", None),
        ("c", None),
    ]
