"""Consumers of a broker that is away wait, and go on by themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queen import Queen
from queen.client.transport.cluster import _pause_after
from queen.client.transport.errors_from_answer import error_of
from queen.client.transport.http import Answer
from queen.testing import expect
from tests.client.gate import Gate, Mode
from tests.waiting import until_met


@pytest.mark.parametrize("with_pops", [True, False], ids=["acks with pops", "acks alone"])
async def test_a_consumer_waits_for_a_broker_that_is_away(
    gate: Gate, queen: Queen, queue: str, monkeypatch: pytest.MonkeyPatch, *, with_pops: bool
) -> None:
    received: list[Any] = []
    await queen.queue(queue).push([1, 2])
    await gate.turn("open")
    async with Queen(gate.url, retry_s=0.2, timeout_s=1) as reader:
        consumer = (
            reader.queue(queue)
            .group("g")
            .limit(4)
            .wait(0.5)
            .consume(lambda message: received.append(message.data), signals=False)
        )
        monkeypatch.setattr(consumer, "goes_with_pop", lambda _: with_pops)
        consuming = asyncio.create_task(consumer.run())
        modes: list[Mode] = ["shut", "silent"]
        for mode in modes:
            # An ack that is lost would leave the partition leased for longer than a test may take.
            await expect(queen, queue).to_be_empty(group="g")
            await gate.turn(mode)
            await until_met(lambda: reader.cluster._down_until)
            await queen.queue(queue).push(mode)
            await gate.turn("open")
        await consuming
    assert received == [1, 2, "shut", "silent"]


@pytest.mark.parametrize(
    ("status", "body", "header", "expected_s"),
    [
        (503, b'{"error":"away","code":"unavailable"}', b"1", 1.0),
        (503, b"<html>", b"3", 3.0),
        # Not for ever.
        (503, b"", b"3600", 5.0),
        (503, b"", b"Wed, 21 Oct 2026 07:28:00 GMT", 0.05),
        # It may be free at once.
        (503, b'{"error":"locked","code":"contended"}', b"1", 0.05),
    ],
)
def test_a_broker_says_when_to_come_again(
    status: int, body: bytes, header: bytes, expected_s: float
) -> None:
    error = error_of(Answer(status, {b"retry-after": header}, body))
    assert _pause_after(error, 0.05) == expected_s
