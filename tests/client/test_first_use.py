"""What a first-time user trips over: payloads, times, filters of dead letters, epochs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from queen import Queen, Received, SyncQueen
from queen.client.payloads import encode_payload
from queen.client.transport.wire_format import instant
from tests.conftest import ServerProcess


def test_filters_without_asyncio(server: ServerProcess, queue: str) -> None:
    with SyncQueen(server.url) as queen:
        letters = queen.queue(queue).group("g")
        letters.push([1, 2, 3])
        for message, error in zip(letters.pop(batch=3), ("a", "b", "b"), strict=True):
            message.dead_letter(error)
        everything = letters.dlq()
        assert everything.error("b").get().total == 2
        assert len(everything.limit(1).get().messages) == 1
        assert [one.data for one in everything.limit(1).offset(2).get().messages] == [1]
        hour = timedelta(hours=1)
        now = datetime.now(UTC)
        assert everything.since(now + hour).get().total == 0
        assert everything.since(now - hour).until(now + hour).get().total == 3
        assert everything.retry([]) == 0
        assert everything.error("a").purge() == 1
        assert everything.get().total == 2


def test_a_message_has_the_epoch_of_its_lease(server: ServerProcess, queue: str) -> None:
    with SyncQueen(server.url) as queen:
        reader = queen.queue(queue).group("g")
        queen.queue(queue).partition("p").push(["x", "y"])
        queen.queue(queue).partition("q").push(["x"])
        (first,) = reader.partition("p").pop()
        first.give_back()
        both = reader.partition("p").pop(batch=2)
        assert both[0].epoch == both[1].epoch > first.epoch
        (other,) = reader.partition("q").pop()
        assert other.epoch > 0


@dataclass
class Reading:
    celsius: float
    place: str | None = None


@pytest.mark.parametrize(
    "payload",
    [float("nan"), {"a": [1, float("inf")]}, [None, -float("inf")], Reading(float("nan"))],
    ids=repr,
)
def test_what_json_cannot_hold_is_refused(payload: object) -> None:
    with pytest.raises(ValueError, match="cannot be JSON"):
        encode_payload(payload)


def test_null_is_a_payload_like_any_other() -> None:
    assert encode_payload([None, {"null": 1.5}, "null"]) == b'[null,{"null":1.5},"null"]'
    assert encode_payload(Reading(1.5)) == b'{"celsius":1.5,"place":null}'


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("tokyo")
def test_a_time_without_a_zone_is_local() -> None:
    assert instant(datetime(2026, 1, 31, 12)) == "2026-01-31T03:00:00+00:00"
    assert instant(datetime(2026, 1, 31, 12, tzinfo=UTC)) == "2026-01-31T12:00:00+00:00"
    assert instant("now") == "now"


async def test_what_a_handler_says_of_a_message_stays(queen: Queen, queue: str) -> None:
    reader = queen.queue(queue).group("g")
    await reader.config(retry_delay=0).create()
    await reader.push(["ack", "nack", "dead", "leave"])
    seen: list[tuple[str, int]] = []

    async def handle(batch: list[Received]) -> None:
        for message in batch:
            seen.append((message.data, message.attempt))
            await settled_at_first(message)

    await reader.batch(4).limit(5).consume(handle)
    assert seen[:4] == [("ack", 1), ("nack", 1), ("dead", 1), ("leave", 1)]
    assert [data for data, _ in seen[4:]] == ["nack"]
    assert [one.data for one in (await reader.dlq().get()).messages] == ["dead"]


async def test_what_a_loop_says_of_a_message_stays(queen: Queen, queue: str) -> None:
    reader = queen.queue(queue).group("g")
    await reader.config(retry_delay=0).create()
    await reader.push(["ack", "nack", "dead"])
    seen: list[str] = []
    async for message in reader.batch(3).limit(4).consume():
        seen.append(message.data)
        await settled_at_first(message)
    assert seen == ["ack", "nack", "dead", "nack"]
    assert (await reader.dlq().get()).total == 1


async def settled_at_first(message: Received) -> None:
    """Do with a message what it says, the first time; leave it to the consumer afterwards."""
    if message.attempt > 1 or message.is_settled:
        return
    if message.data == "ack":
        await message.ack()
    elif message.data == "nack":
        await message.nack("as it says")
    elif message.data == "dead":
        await message.dead_letter("as it says")


async def test_a_failure_after_the_commit_undoes_nothing(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push([1, 2])

    async def handle(batch: list[Received]) -> None:
        async with queen.transaction() as transaction:
            transaction.ack(batch)
            transaction.push(f"{queue}-out", [one.data for one in batch])
        assert all(one.is_settled for one in batch)
        raise RuntimeError("too late")

    done = await queen.queue(queue).group("g").batch(2).limit(2).consume(handle)
    assert done.failed == 2
    assert await queen.queue(queue).group("g").pop(wait_s=0) == []
    out = await queen.queue(f"{queue}-out").pop(batch=9, wait_s=0)
    assert [one.data for one in out] == [1, 2]
