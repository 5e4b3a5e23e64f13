"""Streams follow when the time of their queues passes at once; what is removed is told."""

from __future__ import annotations

import asyncio

from queen import Queen
from queen.testing import Clock


async def test_a_window_need_not_be_waited_for(
    queen: Queen, queue_name: str, queen_clock: Clock
) -> None:
    stream = f"{queue_name}-hours"
    await queen.stream(stream).sources([queue_name]).tumbling_time(3600).define()
    consumer = queen.consumer(stream, "g")
    for number in range(3):
        await queen.queue(queue_name).push({"n": number})
        assert await consumer.poll_window(timeout=0) is None
        polling = asyncio.create_task(consumer.poll_window(timeout=20))
        # Not a whole number of hours: nothing may come twice all the same.
        await queen_clock.advance(5000, queue=queue_name)
        window = await asyncio.wait_for(polling, 15)
        assert window is not None
        assert [message.data for message in window.messages] == [{"n": number}]
        await window.ack()


async def test_a_lease_lapses_and_a_retry_comes(
    queen: Queen, queue_name: str, queen_clock: Clock
) -> None:
    stream = f"{queue_name}-hours"
    made = queen.stream(stream).sources([queue_name]).tumbling_time(3600).lease_timeout(7200)
    await made.define()
    await queen.queue(queue_name).push({"n": 1})
    await queen_clock.advance(7200, queue=queue_name)
    consumer = queen.consumer(stream, "g")
    first = await consumer.poll_window(timeout=20)
    assert first is not None
    assert await consumer.poll_window(timeout=0) is None
    await queen_clock.advance(7201, queue=queue_name)
    second = await consumer.poll_window(timeout=20)
    assert second is not None
    assert (second.attempt, second.lease_id != first.lease_id) == (2, True)
    assert [one.id for one in second.messages] == [one.id for one in first.messages]


async def test_a_session_ends_and_a_count_goes_on(
    queen: Queen, queue_name: str, queen_clock: Clock
) -> None:
    sessions, counts = f"{queue_name}-sessions", f"{queue_name}-counts"
    await queen.stream(sessions).sources([queue_name]).session(1800).grace_period(0).define()
    await queen.stream(counts).sources([queue_name]).count(3).grace_period(0).define()
    queue = queen.queue(queue_name)
    visits = queen.consumer(sessions, "g")
    await queue.push({"n": 0})
    await queen_clock.advance(1000, queue=queue_name)
    await queue.push({"n": 1})
    await queen_clock.advance(1000, queue=queue_name)
    assert await visits.poll_window(timeout=0) is None
    await queen_clock.advance(1000, queue=queue_name)
    window = await visits.poll_window(timeout=20)
    assert window is not None
    assert [one.data["n"] for one in window.messages] == [0, 1]
    await window.ack()
    await queue.push({"n": 2})
    await queen_clock.advance(4000, queue=queue_name)
    window = await visits.poll_window(timeout=20)
    assert window is not None
    assert [one.data["n"] for one in window.messages] == [2]
    window = await queen.consumer(counts, "g").poll_window(timeout=20)
    assert window is not None
    assert [one.data["n"] for one in window.messages] == [0, 1, 2]


async def test_queues_of_one_stream_have_one_time(
    queen: Queen, queue_name: str, queen_clock: Clock
) -> None:
    stream, other = f"{queue_name}-both", f"{queue_name}-other"
    await queen.stream(stream).sources([queue_name, other]).tumbling_time(3600).define()
    await queen.queue(queue_name).push({"n": 1})
    await queen.queue(other).push({"n": 2})
    await queen_clock.advance(4000, queue=other)
    window = await queen.consumer(stream, "g").poll_window(timeout=20)
    assert window is not None
    assert sorted(one.data["n"] for one in window.messages) == [1, 2]


# ---- retention ----


async def test_completed_messages_stay_while_a_window_needs_them(
    queen: Queen, queue_name: str, queen_clock: Clock
) -> None:
    stream, queue = f"{queue_name}-hours", queen.queue(queue_name)
    await queue.config(retention_enabled=True, completed_retention_seconds=60).create()
    await queen.stream(stream).sources([queue_name]).tumbling_time(3600).define()
    consumer = queen.consumer(stream, "g")
    await consumer.poll_window(timeout=0)
    await queue.push([{"n": number} for number in range(5)])
    await queue.group("q").limit(5).consume(_nothing)
    await queen_clock.advance(5000, queue=queue_name)
    window = await consumer.poll_window(timeout=20)
    assert window is not None
    assert (window.count, window.lost) == (5, 0)
    await queen_clock.advance(100, queue=queue_name)
    again = await consumer.poll_window(timeout=20)
    assert again is not None
    assert (again.count, again.lost) == (5, 0)
    await again.ack()
    # Now both groups are done with it.
    await queen_clock.advance(100, queue=queue_name)
    assert await _stored(queen, queue_name) == 0


async def test_a_stream_alone_lets_completed_messages_go(
    queen: Queen, queue_name: str, queen_clock: Clock
) -> None:
    stream, queue = f"{queue_name}-hours", queen.queue(queue_name)
    await queue.config(retention_enabled=True, completed_retention_seconds=60).create()
    await queen.stream(stream).sources([queue_name]).tumbling_time(3600).define()
    await queue.push({"n": 1})
    await queen_clock.advance(5000, queue=queue_name)
    window = await queen.consumer(stream, "g").poll_window(timeout=20)
    assert window is not None
    assert await _stored(queen, queue_name) == 1
    await window.ack()
    await queen_clock.advance(100, queue=queue_name)
    assert await _stored(queen, queue_name) == 0


async def test_a_consumer_is_told_what_retention_removed(
    queen: Queen, queue_name: str, queen_clock: Clock
) -> None:
    stream, queue = f"{queue_name}-hours", queen.queue(queue_name)
    await queue.config(retention_enabled=True, retention_seconds=6000).create()
    await queen.stream(stream).sources([queue_name]).tumbling_time(3600).define()
    await queue.push([{"n": number} for number in range(4)])
    await queen_clock.advance(5000, queue=queue_name)
    await queen_clock.advance(5000, queue=queue_name)
    window = await queen.consumer(stream, "g").poll_window(timeout=20)
    assert window is not None
    assert (window.count, window.lost, list(window.messages)) == (0, 4, [])
    await window.ack()


async def test_windows_outlive_what_is_cleared_and_deleted(
    queen: Queen, queue_name: str, queen_clock: Clock
) -> None:
    stream, gone = f"{queue_name}-hours", f"{queue_name}-gone"
    made = queen.stream(stream).sources([queue_name, gone]).tumbling_time(3600)
    await made.max_in_flight(2).define()
    await queen.queue(queue_name).partition("a").push([{"n": 1}, {"n": 2}])
    await queen.queue(gone).push({"n": 3})
    await queen_clock.advance(5000, queue=queue_name)
    await queen.queue(queue_name).push({"n": 4})
    await queen_clock.advance(3600, queue=queue_name)
    await queen.queue(gone).delete()
    await queen.admin.clear_queue(queue_name, "a")
    consumer = queen.consumer(stream, "g")
    first = await consumer.poll_window(timeout=20)
    second = await consumer.poll_window(timeout=20)
    assert first is not None
    assert second is not None
    assert (first.count, first.lost) == (0, 3)
    assert [one.data["n"] for one in second.messages] == [4]
    await first.ack()
    await second.ack()
    # The stream goes on with what is left of it.
    await queen.queue(queue_name).push({"n": 5})
    await queen_clock.advance(5000, queue=queue_name)
    third = await consumer.poll_window(timeout=20)
    assert third is not None
    assert [one.data["n"] for one in third.messages] == [5]


def _nothing(message: object) -> None:
    pass


async def _stored(queen: Queen, queue: str) -> int:
    found = await queen.admin.messages(queue=queue, **{"from": "2020-01-01T00:00:00Z"})
    return len(found["messages"])
