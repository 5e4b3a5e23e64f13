"""The verbs without asyncio, and brokers by URL."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator

import pytest

from queen.errors import BadRequest, Conflict, Unreachable
from queen.streambroker import (
    LocalStreamBroker,
    RedisStreamBroker,
    StreamBroker,
    SyncStreamBroker,
    stream_broker_from_url,
    sync_stream_broker_from_url,
)
from tests.waiting import until


@pytest.fixture(params=["memory", "redis"])
def sync_broker(request: pytest.FixtureRequest) -> Iterator[SyncStreamBroker]:
    url = "memory://" if request.param == "memory" else request.getfixturevalue("redis_url")
    with sync_stream_broker_from_url(url) as broker:
        yield broker


def test_every_verb_is_there_with_the_same_arguments() -> None:
    verbs = [name for name in StreamBroker.__abstractmethods__ if name != "capabilities"]
    assert len(verbs) >= 20
    for name in verbs:
        asynchronous = inspect.signature(getattr(StreamBroker, name))
        assert inspect.signature(getattr(SyncStreamBroker, name)) == asynchronous, name


def test_a_worker_without_asyncio(sync_broker: SyncStreamBroker, stream: str) -> None:
    broker = sync_broker
    assert isinstance(broker.capabilities, frozenset)
    broker.createGroup(stream, "g", "0")  # type: ignore[attr-defined]
    with pytest.raises(Conflict):
        broker.create_group(stream, "g", strict=True)
    added = [broker.xadd(stream, {"number": number}, max_length=100) for number in range(4)]
    assert broker.xlen(stream) == 4
    assert [message.id for message in broker.xrange(stream, count=2)] == added[:2]
    messages = broker.xreadgroup("g", "c", stream, 3)
    assert [message.data["number"] for message in messages] == [0, 1, 2]
    assert broker.nack(stream, "g", added[:1]) == 1
    assert broker.xack(stream, "g", added[1:2]) == 1
    assert [message.id for message in broker.xpending(stream, "g", "c")] == added[2:3]
    assert [message.id for message in broker.xclaim(stream, "g", "d", 0, added[2:3])] == added[2:3]
    claimed = broker.xautoclaim(stream, "g", "d", 3_600_000, 10)
    assert [message.id for message in claimed] == added[:1]
    broker.set_delivery_limit(stream, "g", 2)
    assert broker.xautoclaim(stream, "g", "d", 0, 10) == []
    assert broker.redrive(stream) == 2
    assert broker.delete_consumer(stream, "g", "d") == 0
    broker.set_group_id(stream, "g", "$")
    (info,) = broker.get_group_info(stream)
    same = broker.get_stream_group_info(stream, "g")
    assert same is not None
    assert (same.name, same.lag, same.total_pending) == (info.name, info.lag, info.total_pending)
    assert broker.xdel(stream, added[:1]) == 1
    assert broker.xtrim(stream, 1) == 4
    assert stream in broker.scan_streams(f"{stream}*")
    broker.delete_group(stream, "g")
    assert broker.get_group_info(stream) == []


def test_one_thread_waits_and_another_adds(sync_broker: SyncStreamBroker, stream: str) -> None:
    sync_broker.create_group(stream, "g")
    heard: list[object] = []

    def listen() -> None:
        heard.extend(m.data for m in sync_broker.xreadgroup("g", "c", stream, 1, None))

    listener = threading.Thread(target=listen)
    listener.start()
    until(lambda: sync_broker.get_group_info(stream)[0].consumers)
    sync_broker.xadd(stream, "hello")
    listener.join()
    assert heard == ["hello"]


def test_who_waits_in_another_thread_is_told_that_it_is_closed() -> None:
    broker = sync_stream_broker_from_url("memory://")
    broker.create_group("s", "g")
    heard: list[BaseException] = []

    def listen() -> None:
        try:
            broker.xreadgroup("g", "c", "s", 1, None)
        except BaseException as error:
            heard.append(error)

    listener = threading.Thread(target=listen)
    listener.start()
    until(lambda: broker.get_group_info("s")[0].consumers)
    broker.close()
    broker.close()
    listener.join()
    assert len(heard) == 1
    with pytest.raises(RuntimeError, match="closed"):
        broker.xlen("s")


async def test_a_url_names_a_broker_and_its_options(redis_url: str, stream: str) -> None:
    async with stream_broker_from_url("memory://?max_stream_length=2") as broker:
        assert isinstance(broker, LocalStreamBroker)
        for number in range(3):
            await broker.xadd(stream, number)
        assert await broker.xlen(stream) == 2
    async with stream_broker_from_url(f"{redis_url}?retry_s=1&timeout_s=5&protocol=2") as broker:
        assert isinstance(broker, RedisStreamBroker)
        await broker.xadd(stream, 1)
        assert await broker.xlen(stream) == 1


async def test_options_of_a_url_hold() -> None:
    async with stream_broker_from_url("memory://?max_pending_messages=1") as broker:
        await broker.create_group("s", "g")
        for number in range(2):
            await broker.xadd("s", number)
        assert len(await broker.xreadgroup("g", "c", "s", 10)) == 1
    broker = stream_broker_from_url("redis://127.0.0.1:1?retry_s=0.05")
    with pytest.raises(Unreachable):
        await broker.xlen("s")
    await broker.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("kafka://host", "known: memory://"),
        ("", "known: memory://"),
        ("memory://host", "neither host nor path"),
        ("memory://?max_stream_length=many", "must be a number"),
        ("memory://?max_stream_length=0", "max_stream_length"),
        ("memory://?max_stream_length=1&max_stream_length=2", "twice"),
        ("memory://?no_such=1", "no such option"),
        ("redis://127.0.0.1?retry_s=x", "must be a number"),
        ("redis://127.0.0.1?no_such=1", "not an option"),
        ("queen://", "needs a host"),
        ("queen://127.0.0.1?tls=maybe", "true or false"),
        ("queen://127.0.0.1?no_such=1", "no such option"),
    ],
)
def test_a_url_that_names_no_broker_is_told(url: str, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        stream_broker_from_url(url)
