"""A program as users write it. It is checked, not run: every type must be what it says."""

from __future__ import annotations

from datetime import datetime
from typing import Any, assert_type

import msgspec

import queen
from queen import (
    Message,
    Pushed,
    Queen,
    Received,
    SyncQueen,
    SyncReceived,
    SyncWindow,
    Window,
)
from queen.client.queues.consumer import Consumer
from queen.client.queues.dead_letters import DeadLetter, DeadLetterPage
from queen.client.queues.queue import Queue
from queen.client.queues.replay import Stored
from queen.client.streams.builder import Stream
from queen.client.streams.consumer import StreamConsumer
from queen.client.streams.grouping import Joined
from queen.client.streams.messages import WindowMessage
from queen.client.streams.processing import Processing
from queen.client.streams.sync import SyncStream, SyncStreamConsumer
from queen.client.sync import SyncQueue


class Order(msgspec.Struct):
    total: int


async def handler(message: Received) -> None:
    assert_type(message.into(Order), Order)
    assert_type(message.transaction_id, str)
    assert_type(message.attempt, int)
    assert_type(message.created_at, datetime)
    assert_type(message.data, Any)
    assert_type(await message.renew(), datetime)
    await message.trace({"step": 1}, names=["a"])
    await message.ack()


def batch_handler(messages: list[Received]) -> None:
    print(len(messages))


async def asynchronous() -> None:
    async with Queen(["http://a", "http://b"], token="t") as client:  # noqa: S106
        orders = client.queue("orders").namespace("shop").config(lease_time=30)
        assert_type(orders, Queue)
        assert_type(await orders.create(), dict[str, Any])
        assert_type(await orders.push([Order(1), Message({}, delay=1.5)]), list[Pushed])
        assert_type(await orders.pop(wait_s=1, batch=10), list[Received])
        assert_type(await orders.batch(10).consume(batch_handler), Consumer[Received])
        async for message in orders.consume():
            assert_type(message, Received)
        async for stored in orders.replay():
            assert_type(stored, Stored)
            assert_type(stored.offset, int)
        page = await orders.dlq().limit(3).get()
        assert_type(page, DeadLetterPage)
        assert_type(page.messages, list[DeadLetter])
        async with client.transaction() as transaction:
            transaction.ack(await orders.pop()).push("invoices", {"order": 7})

        @orders.each().consumer
        async def registered(message: Received) -> int:
            return message.offset

        assert_type(await registered((await orders.pop())[0]), int)
        await client.run()


async def window_handler(window: Window) -> None:
    assert_type(window.all_messages, tuple[WindowMessage, ...])
    assert_type(window.messages, list[WindowMessage])
    assert_type(window.start, datetime)
    assert_type(window.attempt, int)
    assert_type(window.messages[0].into(Order), Order)
    assert_type(window.messages[0].data, Any)
    groups = window.filter(lambda one: one.offset > 3).group_by("data.user")
    assert_type(groups, dict[Any, list[WindowMessage]])
    assert_type(window.aggregate(count=True, p95=["data.ms"]), dict[str, Any])
    assert_type(window.join("a", "b", on="data.user", how="left"), list[Joined])
    assert_type(window.push("out", {"n": 1}, partition="p"), Window)
    assert_type(await window.renew(60_000), datetime)
    assert_type(await window.load(), Window)
    async for message in window.stream():
        assert_type(message, WindowMessage)
    assert_type(await window.ack(), list[Pushed])


async def streams(client: Queen) -> None:
    stream = client.stream("s", "n").sources(["a"]).partitioned().tumbling_time(60)
    assert_type(stream, Stream)
    assert_type(await stream.define(recut=True), dict[str, Any])
    assert_type(await stream.windows("g", state="done"), list[dict[str, Any]])
    consumer = client.consumer("s", "g").concurrency(4).limit(7)
    assert_type(consumer, StreamConsumer)
    assert_type(await consumer.process(window_handler), Processing[Window])
    assert_type(await consumer.poll_window(20), Window | None)
    async for window in consumer:
        assert_type(window, Window)


def synchronous_streams(client: SyncQueen) -> None:
    assert_type(client.stream("s").sources("a", "b").session(30), SyncStream)
    consumer = client.consumer("s", "g").idle(3)
    assert_type(consumer, SyncStreamConsumer)
    assert_type(consumer.process(print), Processing[SyncWindow])
    for window in consumer:
        assert_type(window, SyncWindow)
        assert_type(window.ack(), list[Pushed])


def synchronous() -> None:
    with SyncQueen("http://a") as client:
        orders = client.queue("orders").group("g").batch(3)
        assert_type(orders, SyncQueue)
        assert_type(orders.push({"a": 1}), list[Pushed])
        assert_type(orders.pop(), list[SyncReceived])
        assert_type(orders.consume(print), Consumer[SyncReceived])
        for message in orders:
            assert_type(message, SyncReceived)
            assert_type(message.into(Order), Order)
            message.ack()
        try:
            client.flush()
        except queen.QueenError as error:
            assert_type(error.code, str)
            assert_type(error.retryable, bool)
