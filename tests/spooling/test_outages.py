"""The database goes away under load: nobody who pushes notices, and nothing is lost or doubled.

`QUEEN_TEST_LONG=1` runs the whole of it: outages of half a minute at 2,000 messages a second, and
servers that are killed at ten random moments.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from queen import Queen, Received
from tests.conftest import ServerProcess
from tests.long import LONG
from tests.spooling.outages import (
    FickleDatabase,
    Producer,
    check,
    read_all,
    wait_until_drained,
)
from tests.waiting import spend_async, until, until_met

Start = Callable[..., ServerProcess]

PRODUCERS = 8
_MAINTENANCE = "/api/v1/system/maintenance"
SEED = int(os.environ.get("QUEEN_TEST_SEED", time.time_ns() % 1_000_000))


@pytest.fixture
def fickle(tmp_path: Path) -> Iterator[FickleDatabase]:
    made = FickleDatabase(tmp_path / "pg")
    yield made
    made.stop()


class Run:
    """One server, its producers, and a database that goes away."""

    def __init__(
        self, fickle: FickleDatabase, start: Start, folder: Path, queue: str, dedup: str
    ) -> None:
        self._fickle = fickle
        self._arguments = ("--database-url", fickle.dsn, "--spool-dir", str(folder))
        self._start = start
        self.server = start(*self._arguments)
        self.queue = queue
        self.server.api().configure(queue, dedup=dedup)
        self.producers = [
            Producer(queue, f"p{number}", self.server.port, repeats=dedup != "off")
            for number in range(PRODUCERS)
        ]
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def push(self, per_second: float, batch: int) -> None:
        each = per_second / PRODUCERS
        self._tasks = [
            asyncio.create_task(producer.run(self._stop, each, batch))
            for producer in self.producers
        ]

    async def kill_server(self) -> None:
        self.server.kill()
        port = self.server.port
        self.server = await asyncio.to_thread(self._start, *self._arguments, port=port)

    async def end(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)
        await asyncio.to_thread(wait_until_drained, self.server.api())
        found = await asyncio.to_thread(read_all, self.server.api(), self.queue)
        check(self.producers, found)
        assert sum(map(len, found.values())) >= sum(len(each.taken) for each in self.producers)

    def expect_no_failures(self) -> None:
        for producer in self.producers:
            assert producer.refused == [] and producer.unknown == []
            assert producer.statuses[202] > 0


@pytest.mark.parametrize("dedup", ["window", "off"])
@pytest.mark.parametrize("how", ["killed", "swallowed"])
async def test_nobody_notices_that_the_database_was_away(
    fickle: FickleDatabase, start_server: Start, tmp_path: Path, queue: str, dedup: str, how: str
) -> None:
    run = Run(fickle, start_server, tmp_path / "spool", queue, dedup)
    run.push(per_second=800, batch=5)
    await spend_async(0.5)
    await take_away_for(fickle, how, 2.0)
    await spend_async(0.5)
    await run.end()
    run.expect_no_failures()


@LONG
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dedup", ["window", "off"])
@pytest.mark.parametrize("how", ["killed", "swallowed"])
async def test_half_a_minute_without_a_database_at_2000_messages_a_second(
    fickle: FickleDatabase, start_server: Start, tmp_path: Path, queue: str, dedup: str, how: str
) -> None:
    run = Run(fickle, start_server, tmp_path / "spool", queue, dedup)
    run.push(per_second=2000, batch=10)
    await spend_async(5)
    await take_away_for(fickle, how, 30.0)
    back_at = time.monotonic()
    await asyncio.to_thread(wait_until_drained, run.server.api())
    print(f"\ndrained {time.monotonic() - back_at:.1f} s after the database was back")
    await spend_async(5)
    await run.end()
    run.expect_no_failures()
    print(sum(len(producer.taken) for producer in run.producers), "messages")


@pytest.mark.parametrize("dedup", ["window", "off"])
async def test_a_server_that_is_killed_while_it_drains_loses_and_doubles_nothing(
    fickle: FickleDatabase, start_server: Start, tmp_path: Path, queue: str, dedup: str
) -> None:
    run = Run(fickle, start_server, tmp_path / "spool", queue, dedup)
    run.push(per_second=800, batch=5)
    await kill_at_random(run, fickle, random.Random(SEED), times=2, outage_s=1.0)
    await run.end()


@LONG
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dedup", ["window", "off"])
async def test_ten_servers_are_killed_during_outages_and_drains(
    fickle: FickleDatabase, start_server: Start, tmp_path: Path, queue: str, dedup: str
) -> None:
    print("\nQUEEN_TEST_SEED", SEED)
    run = Run(fickle, start_server, tmp_path / "spool", queue, dedup)
    run.push(per_second=2000, batch=10)
    await kill_at_random(run, fickle, random.Random(SEED), times=10, outage_s=4.0)
    await run.end()
    print(sum(len(producer.taken) for producer in run.producers), "messages")


async def take_away_for(fickle: FickleDatabase, how: str, seconds: float) -> None:
    if how == "killed":
        fickle.kill()
        await spend_async(seconds)
        await asyncio.to_thread(fickle.start_again)
    else:
        fickle.swallow()
        await spend_async(seconds)
        fickle.let_through()


async def kill_at_random(
    run: Run, fickle: FickleDatabase, choice: random.Random, times: int, outage_s: float
) -> None:
    """Take the database away again and again, and kill the server meanwhile or just after it."""
    for _ in range(times):
        await spend_async(choice.uniform(0.2, 1.0))
        fickle.swallow()
        before_s = choice.uniform(0, outage_s)
        await spend_async(before_s)
        if choice.random() < 0.5:
            # The next one starts while the database is away.
            killed = asyncio.create_task(run.kill_server())
            await spend_async(outage_s - before_s)
            fickle.let_through()
            await killed
        else:
            fickle.let_through()
            await spend_async(choice.uniform(0, 1.0))
            await run.kill_server()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_that_knows_its_database_starts_without_it(
    fickle: FickleDatabase, start_server: Start, tmp_path: Path, queue: str, workers: str
) -> None:
    arguments = ("--database-url", fickle.dsn, "--spool-dir", str(tmp_path / "spool"))
    start_server(*arguments).stop()
    fickle.swallow()
    server = start_server(*arguments, "--workers", workers)
    api = server.api()
    for number in range(20):
        assert api.push({"queue": queue, "payload": {"n": number}}).status == 202
    assert api.pop(queue).status == 503
    ready = api.call("GET", "/health/ready")
    assert (ready.status, ready.json["status"]) == (200, "degraded")
    assert api.call("GET", "/health").status == 503
    fickle.let_through()
    wait_until_drained(api)
    read: list[int] = []

    def all_read() -> bool:
        # What waits may be in the spool of another worker than the one that answers.
        read.extend(read_all(api, queue).get("Default", []))
        return len(read) >= 20

    until(all_read)
    assert read == list(range(20))
    until(lambda: api.push({"queue": queue, "payload": {"n": 20}}).status == 201)
    assert server.stop() == 0


def test_a_server_that_starts_without_its_database_stores_nothing_in_maintenance(
    fickle: FickleDatabase, start_server: Start, tmp_path: Path, queue: str
) -> None:
    arguments = ("--database-url", fickle.dsn, "--spool-dir", str(tmp_path / "spool"))
    first = start_server(*arguments)
    turned = first.api().call("POST", _MAINTENANCE, {"enabled": True})
    assert turned.status == 200
    for number in range(3):
        assert first.api().push({"queue": queue, "payload": {"n": number}}).status == 202
    first.kill()
    fickle.swallow()
    server = start_server(*arguments)
    api = server.api()
    assert api.push({"queue": queue, "payload": {"n": 3}}).status == 202
    fickle.let_through()
    until(lambda: api.call("GET", _MAINTENANCE).json["maintenanceMode"])
    assert api.push({"queue": queue, "payload": {"n": 4}}).status == 202
    assert api.call("GET", "/api/v1/spool").json["records"] == 5
    api.call("POST", _MAINTENANCE, {"enabled": False})
    wait_until_drained(api)
    assert read_all(api, queue) == {"Default": list(range(5))}
    assert server.stop() == 0


def test_a_database_that_is_of_no_use_when_it_is_back_ends_the_server(
    fickle: FickleDatabase, start_server: Start, tmp_path: Path, queue: str
) -> None:
    arguments = ("--database-url", fickle.dsn, "--spool-dir", str(tmp_path / "spool"))
    first = start_server(*arguments)
    assert first.api().configure(queue, encryptionEnabled=True).status == 201
    first.stop()
    fickle.swallow()
    keyless = start_server(*arguments, env={"QUEEN_ENCRYPTION_KEY": ""})
    assert keyless.api().push({"queue": queue, "payload": 1}).status == 202
    fickle.let_through()
    until(lambda: keyless.process.poll() is not None)
    assert keyless.stop() == 78
    # What it had taken is with whoever has the key.
    again = start_server(*arguments)
    wait_until_drained(again.api())
    assert again.api().data(queue) == [1]


def test_a_server_that_was_never_with_its_database_does_not_start_without_it(
    tmp_path: Path, start_server: Start, fickle: FickleDatabase
) -> None:
    fickle.swallow()
    log = tmp_path / "log"
    words = ("--database-url", fickle.dsn, "--spool-dir", str(tmp_path / "spool"))
    starting = threading.Thread(target=lambda: start_server(*words, log=log), daemon=True)
    starting.start()
    until(lambda: log.exists() and "waiting for the database" in log.read_text())
    fickle.let_through()
    starting.join(timeout=60)
    assert not starting.is_alive()


def test_tokens_that_were_good_stay_good_and_unknown_ones_get_no_answer(
    fickle: FickleDatabase, start_server: Start, tmp_path: Path, queue: str
) -> None:
    arguments = ("--database-url", fickle.dsn, "--spool-dir", str(tmp_path / "spool"))
    server = start_server(*arguments, "--auth", "tokens")
    (token,) = [word for line in server.said for word in line.split() if word.startswith("queen_")]
    good = {"authorization": f"Bearer {token}"}
    body = {"items": [{"queue": queue, "payload": 1}]}
    assert server.api().call("POST", "/api/v1/push", body, good).status == 201
    fickle.swallow()
    api = server.api()
    until(lambda: api.call("POST", "/api/v1/push", body, good).status == 202)
    unknown = token[:6] + "0" * 12 + token[18:]
    answer = api.call("POST", "/api/v1/push", body, {"authorization": f"Bearer {unknown}"})
    assert (answer.status, answer.json["code"]) == (503, "unavailable")
    wrong = token[:-4] + ("aaaa" if not token.endswith("aaaa") else "bbbb")
    answer = api.call("POST", "/api/v1/push", body, {"authorization": f"Bearer {wrong}"})
    assert answer.status == 401
    assert api.call("POST", "/api/v1/push", body).status == 401
    fickle.let_through()


async def test_our_client_pushes_and_consumes_across_an_outage(
    fickle: FickleDatabase, start_server: Start, tmp_path: Path, queue: str
) -> None:
    arguments = ("--database-url", fickle.dsn, "--spool-dir", str(tmp_path / "spool"))
    server = start_server(*arguments)
    seen: list[int] = []
    async with Queen(server.url) as consuming:

        async def handle(messages: list[Received]) -> None:
            seen.extend(message.data["n"] for message in messages)

        consumer = consuming.queue(queue).batch(100).wait(1)
        task = asyncio.create_task(consumer.consume(handle, signals=False).run())
        async with Queen(server.url) as producer:
            pushed = await producer.queue(queue).push({"n": 0})
            assert pushed[0].status == "queued"
            await until_met(lambda: seen == [0])
            fickle.swallow()
            # A client that has never asked this server anything, and one that has.
            async with Queen(server.url) as fresh:
                many = await fresh.queue(queue).push([{"n": n} for n in range(1, 301)])
            assert {each.status for each in many} == {"buffered"}
            few = await producer.queue(queue).push([{"n": 301}, {"n": 302}])
            assert {each.status for each in few} == {"buffered"}
            await producer.queue(queue).qos0().push({"n": 303})
            fickle.let_through()
            await until_met(lambda: len(seen) >= 304)
        assert seen == list(range(304))
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes; whoever may not mount one does without."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_told_and_loses_nothing_that_was_taken(
    fickle: FickleDatabase, start_server: Start, small_disk: Path, queue: str
) -> None:
    server = start_server("--database-url", fickle.dsn, "--spool-dir", str(small_disk / "spool"))
    api = server.api()
    assert api.push({"queue": queue, "payload": {"n": 0}}).status == 201
    fickle.swallow()
    taken, number = [0], 0
    while True:
        number += 1
        item = {"queue": queue, "payload": {"n": number, "text": "x" * 20_000}}
        answer = api.push(item)
        if answer.status == 507:
            break
        assert answer.status == 202
        taken.append(number)
    assert (answer.json["code"], answer.headers["retry-after"]) == ("spool_full", "1")
    assert len(taken) > 30
    assert api.push(item).status == 507
    assert api.push({"queue": queue, "payload": {"n": -1, "text": "x" * 60_000}}).status == 507
    fickle.let_through()
    wait_until_drained(api)
    assert read_all(api, queue) == {"Default": taken}
    fickle.swallow()
    until(lambda: api.push(item).status == 202)
    fickle.let_through()
    wait_until_drained(api)
    assert server.stop() == 0
