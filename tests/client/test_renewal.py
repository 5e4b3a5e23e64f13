"""Renewals that fail are tried again while there is time, and a lost lease is told at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from queen import Queen, Received, Window
from tests.client.fake import Fake, answer

LEASE_S = 4.0
EXTENDED = answer("200 OK", b'{"seconds":60,"lease_expires_at":"2026-03-01T12:00:00Z"}')
SETTLED = answer("200 OK", b'{"results":[],"success":true,"pushed":[]}')
BROKEN = answer("500 Oops", b'{"error":"out of order","code":"internal","retryable":false}')
LOST = answer("409 Gone", b'{"error":"over","code":"lease_lost","retryable":false}')


def batch(count: int) -> bytes:
    messages = [
        {
            "id": str(number),
            "transactionId": str(number),
            "partitionId": "p",
            "partition": "Default",
            "data": number,
            "leaseId": "lease",
            "createdAt": "2026-03-01T12:00:00Z",
        }
        for number in range(count)
    ]
    claims = [{"partitionId": "p", "leaseMs": round(LEASE_S * 1000), "epoch": 1}]
    return answer("200 OK", msgspec.json.encode({"messages": messages, "claims": claims}))


def window() -> bytes:
    leased = {
        "id": "w",
        "leaseId": "lease",
        "key": "k",
        "start": "2026-03-01T12:00:00Z",
        "end": "2026-03-01T12:01:00Z",
        "leaseTimeoutMs": round(LEASE_S * 1000),
        "messages": [],
    }
    return answer("200 OK", msgspec.json.encode({"window": leased}))


class Broker:
    """Hands out one batch or window; renewals are answered as a test wants it."""

    def __init__(self, renewals: Callable[[int], bytes | None], messages: int = 1) -> None:
        self._renewals = renewals
        self._messages = messages
        self.renewed_at: list[float] = []
        self.has_renewed = asyncio.Event()
        self.is_granter = False

    def __call__(self, request: bytes) -> bytes | None:
        path = request.split(b" ", 2)[1]
        if path.startswith(b"/api/v1/pop") or path == b"/api/v1/stream/poll":
            self.is_granter = True
            return batch(self._messages) if b"pop" in path else window()
        if not path.endswith((b"/extend", b"/renew-lease")):
            return SETTLED
        self.renewed_at.append(time.monotonic())
        found = self._renewals(len(self.renewed_at))
        if found is EXTENDED:
            self.has_renewed.set()
        return found


def fails_first(number: int) -> bytes:
    return BROKEN if number <= 2 else EXTENDED


@pytest.mark.parametrize("of", ["queue", "stream"])
async def test_a_renewal_that_failed_is_tried_again_soon(of: str) -> None:
    broker = Broker(fails_first)

    async def handler(_work: Received | Window) -> None:
        await asyncio.wait_for(broker.has_renewed.wait(), 30)

    async with Fake(broker).running() as fake, Queen(fake.url, retry_s=0) as queen:
        if of == "queue":
            done = (await queen.queue("q").limit(1).consume(handler)).handled
        else:
            done = (await queen.consumer("s", "g").limit(1).process(handler)).handled
    assert done == 1
    first, _, third = broker.renewed_at[:3]
    # Twice, and still well before the lease would have ended.
    assert third - first < LEASE_S / 2 - 0.5


@pytest.mark.parametrize("of", ["queue", "stream"])
async def test_a_server_that_hangs_leaves_time_to_ask_another(of: str) -> None:
    brokers: list[Broker] = []
    renewed = asyncio.Event()

    def renewal_of(number: int) -> Callable[[int], bytes | None]:
        def renewal(_: int) -> bytes | None:
            if brokers[number].is_granter:
                return None
            renewed.set()
            return EXTENDED

        return renewal

    brokers += [Broker(renewal_of(0)), Broker(renewal_of(1))]

    async def handler(_work: Received | Window) -> None:
        await asyncio.wait_for(renewed.wait(), 30)

    async with (
        Fake(brokers[0]).running() as one,
        Fake(brokers[1]).running() as two,
        Queen([one.url, two.url], retry_s=0) as queen,
    ):
        if of == "queue":
            done = (await queen.queue("q").limit(1).consume(handler)).handled
        else:
            done = (await queen.consumer("s", "g").limit(1).process(handler)).handled
    assert done == 1
    assert renewed.is_set()


class Listener(logging.Handler):
    """Hears what the client logs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self.is_told = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self.is_told.set()


@pytest.fixture
def told() -> Iterator[Listener]:
    listener = Listener("the lease of a batch was lost")
    log = logging.getLogger("queen.client")
    log.addHandler(listener)
    yield listener
    log.removeHandler(listener)


async def test_a_lost_lease_is_told_at_once_and_ends_its_batch(told: Listener) -> None:
    broker = Broker(lambda _: LOST, messages=3)
    seen: list[int] = []

    async def work(message: Received) -> None:
        seen.append(message.data)
        await asyncio.wait_for(told.is_told.wait(), 20)
        told.is_told.clear()

    async with Fake(broker).running() as fake, Queen(fake.url, retry_s=0) as queen:
        # Somebody else may be at work on the second and the third message.
        await queen.queue("q").batch(3).limit(3).each().consume(work)
        assert seen == [0]
        async for message in queen.queue("q").batch(3).limit(3).consume():
            await work(message)
        assert seen == [0, 0]
    assert len(broker.renewed_at) == 2
