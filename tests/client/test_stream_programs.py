"""Programs that consume windows are stopped, and killed, in the middle of their work."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter

import pytest

from queen import Queen, SyncQueen, SyncWindow
from tests.conftest import ServerProcess
from tests.programs import bound

PROGRAM = """
import asyncio, sys
from queen import Queen, SyncQueen
from tests.waiting import spend

url, stream, how, pause = sys.argv[1:]

def take_time():
    if pause == "until told":
        sys.stdin.readline()
        # A signal that came before the word to go on has been heard after this.
        spend(0.3)
    else:
        spend(float(pause))

def told(window):
    return [one.data for one in window.all_messages]

def work(window):
    print("began", told(window), flush=True)
    window.push(stream + "-out", {"of": told(window)})
    take_time()
    print("handled", told(window), flush=True)

async def async_work(window):
    print("began", told(window), flush=True)
    window.push(stream + "-out", {"of": told(window)})
    await asyncio.to_thread(take_time)
    print("handled", told(window), flush=True)

async def main():
    async with Queen(url) as queen:
        consumer = queen.consumer(stream, "g").concurrency(2)
        if how == "async":
            await consumer.process(async_work)
        else:
            async for window in consumer:
                await async_work(window)

if how.startswith("sync"):
    with SyncQueen(url) as queen:
        consumer = queen.consumer(stream, "g")
        if how == "sync":
            consumer.process(work)
        else:
            for window in consumer:
                work(window)
else:
    asyncio.run(main())
print("ended", flush=True)
"""


def started(url: str, stream: str, how: str, pause: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url, stream, how, pause],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stored(queen: SyncQueen, queue: str) -> list[list[int]]:
    return [one.data["of"] for one in queen.queue(f"{queue}-out").replay()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("how", ["async", "async loop", "sync", "sync loop"])
def test_a_signal_lets_it_finish_the_window_at_hand(
    server: ServerProcess, sync_queen: SyncQueen, queue: str, how: str, number: int
) -> None:
    sync_queen.stream(queue).sources(queue).count(2).grace_period(0).define()
    sync_queen.queue(queue).push([1, 2, 3, 4])
    with bound(started(server.url, queue, how, "until told")) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "began [1, 2]\n"
        program.send_signal(number)
        print("go on", file=program.stdin, flush=True)
        assert program.stdout.readlines() == ["handled [1, 2]\n", "ended\n"]
        assert program.wait(20) == 0
    assert stored(sync_queen, queue) == [[1, 2]]
    following = sync_queen.consumer(queue, "g").poll_window(20)
    assert following is not None
    assert ([one.data for one in following.all_messages], following.attempt) == ([3, 4], 1)


def test_what_it_pushed_is_stored_once_however_often_it_is_killed(
    server: ServerProcess, sync_queen: SyncQueen, queue: str
) -> None:
    stream = sync_queen.stream(queue).sources(queue).count(2).grace_period(0).max_in_flight(2)
    stream.lease_timeout(0.5).retry_limit(1000).define()
    sync_queen.queue(queue).push(list(range(60)))
    for handled in range(5):
        with bound(started(server.url, queue, "async", "0.02")) as program:
            assert program.stdout is not None
            seen = 0
            # Somewhere between a push, an ack and the next window.
            while seen <= handled:
                line = program.stdout.readline()
                assert line, "it ended by itself"
                seen += line.startswith("handled")
            program.kill()
    consumer = sync_queen.consumer(queue, "g").idle(2)

    def finish(window: SyncWindow) -> None:
        window.push(f"{queue}-out", {"of": [one.data for one in window.all_messages]})

    consumer.process(finish)
    pairs = [[n, n + 1] for n in range(0, 60, 2)]
    assert Counter(map(tuple, stored(sync_queen, queue))) == Counter(map(tuple, pairs))


async def test_what_lies_between_two_processes_is_shared(
    server: ServerProcess, queen: Queen, queue: str
) -> None:
    await queen.stream(queue).sources(queue).count(1).partitioned().grace_period(0).define()
    for number in range(20):
        await queen.queue(queue).partition(f"p{number}").push([number])
    programs = [started(server.url, queue, "async", "0.01") for _ in range(2)]
    try:
        out = queen.queue(f"{queue}-out").group("reader")
        results: list[int] = []
        async with asyncio.timeout(40):
            async for message in out.consume(signals=False):
                results += message.data["of"]
                if len(results) == 20:
                    await message.ack()
                    break
    finally:
        for program in programs:
            program.terminate()
        told = [program.communicate(timeout=20)[0] for program in programs]
    assert sorted(results) == list(range(20))
    assert sum(text.count("began") for text in told) == 20
