"""Two servers, one killed every two seconds, and clients that know both."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter

import pytest

from queen import Message, Queen, Received
from tests.acceptance.deployment import Deployment, until
from tests.waiting import spend_async

# A minute is what was promised; the shorter run is for every day.
_SECONDS = float(os.environ.get("QUEEN_TEST_SECONDS", "8"))
_EVERY_S = 2.0
# On a machine so slow that a server takes seconds to start, the run is longer.
_FEWEST_KILLS = 4
# A longer run shall not leave more to read than can be read in time.
_MOST_BULKS = int(15 * _SECONDS)
# Longer than this nothing comes through only if a client does not find the other server.
_LONGEST_PAUSE_S = 30.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500 + 3 * _SECONDS)]


class Producers:
    """Push to partitions of their own: one at a time, in bulk, and through a buffer."""

    def __init__(self, urls: list[str], queue: str) -> None:
        self._urls = urls
        self._queue = queue
        self.confirmed: list[str] = []
        self.stopping = asyncio.Event()

    async def one_by_one(self) -> None:
        async with Queen(self._urls, timeout_s=10) as queen:
            for n in itertools.count():
                if self.stopping.is_set():
                    return
                await queen.queue(self._queue).partition("one").push(self._named("one", n, 1))

    async def in_bulk(self) -> None:
        async with Queen(self._urls, timeout_s=10) as queen:
            for n in range(_MOST_BULKS):
                if self.stopping.is_set():
                    return
                await queen.queue(self._queue).partition("bulk").push(self._named("bulk", n, 250))
                await spend_async(0.05)

    async def buffered(self) -> None:
        async with Queen(self._urls, timeout_s=10) as queen:
            builder = queen.queue(self._queue).partition("buffered").buffer(100, 20)
            for n in itertools.count():
                if self.stopping.is_set():
                    return
                await builder.push(self._named("buffered", n, 1))
                await spend_async(0.002)

    def _named(self, lane: str, n: int, count: int) -> list[Message]:
        """Written down before it is sent: whoever is told nothing wrong must be right."""
        names = [f"{lane}-{n}-{at}" for at in range(count)]
        self.confirmed += names
        return [Message(name, transaction_id=name) for name in names]


class Consumption:
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.attempts: Counter[int] = Counter()
        self.longest_pause_s = 0.0
        self._at = time.monotonic()

    async def handle(self, messages: list[Received]) -> None:
        now = time.monotonic()
        self.longest_pause_s = max(self.longest_pause_s, now - self._at)
        self._at = now
        self.seen += [one.data for one in messages]
        self.attempts.update(one.attempt for one in messages)


async def _kill_in_turn(deployment: Deployment) -> int:
    kills = 0
    ends_at = time.monotonic() + _SECONDS
    for port in itertools.cycle(deployment.ports):
        if time.monotonic() > ends_at and kills >= _FEWEST_KILLS:
            return kills
        deployment.kill_server(port)
        kills += 1
        begun_at = time.monotonic()
        await deployment.start_server(port)
        await spend_async(max(0.0, _EVERY_S - (time.monotonic() - begun_at)))
    return kills


async def test_a_server_is_killed_every_two_seconds(deployment: Deployment, queue: str) -> None:
    urls = [f"http://127.0.0.1:{await deployment.add_server()}" for _ in range(2)]
    producers, consumption = Producers(urls, queue), Consumption()
    async with Queen(urls) as queen:
        await queen.queue(queue).config(lease_time=3, retry_limit=1000).create()
        builder = queen.queue(queue).group("g").batch(100).concurrency(3).wait(2)
        consumer = builder.consume(consumption.handle, signals=False)
        consuming = asyncio.create_task(consumer.run())
        producing = asyncio.gather(
            producers.one_by_one(), producers.in_bulk(), producers.buffered()
        )
        kills = await _kill_in_turn(deployment)
        producers.stopping.set()
        await asyncio.wait_for(producing, 60)
        await until(lambda: deployment.is_drained(queue, "g"), 240)
        consumer.stop()
        await asyncio.wait_for(consuming, 30)
        stored = Counter([one.data async for one in queen.queue(queue).replay()])
    print(
        f"{kills} kills, {len(producers.confirmed)} pushed, {len(consumption.seen)} deliveries, "
        f"longest pause {consumption.longest_pause_s:.1f} s, attempts {dict(consumption.attempts)}"
    )
    assert [name for name, times in stored.items() if times > 1] == [], "a push was doubled"
    assert set(stored) == set(producers.confirmed), "a push was lost"
    assert set(consumption.seen) == set(producers.confirmed), "a message was not consumed"
    assert consumption.longest_pause_s < _LONGEST_PAUSE_S
    _check_order(consumption)


def _check_order(consumption: Consumption) -> None:
    """Each first delivery of a lane is in the order of the pushes."""
    lanes: dict[str, list[tuple[int, int]]] = {}
    for name in dict.fromkeys(consumption.seen):
        lane, n, at = name.rsplit("-", 2)
        lanes.setdefault(lane, []).append((int(n), int(at)))
    for lane, order in lanes.items():
        assert order == sorted(order), lane
