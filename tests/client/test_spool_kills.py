"""Producers with a spool that are killed: what was answered is there, once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queen import Queen
from tests.client.gate import Gate, Mode
from tests.client.test_spool import stored
from tests.waiting import until_async

_HEAD = """
import asyncio, os, signal, sys
from queen import Queen
from queen.client.spooling.source import Source
url, path, queue, first = *sys.argv[1:4], int(sys.argv[4])
"""
# Says each number when its push has returned.
_PRODUCE = """
async def main():
    async with Queen(url, spool=path) as queen:
        number = first
        while True:
            await queen.queue(queue).partition(f"p{number % 2}").push(number)
            print(number, flush=True)
            number += 1
asyncio.run(main())
"""
_PRODUCE_SYNC = """
from queen import SyncQueen
with SyncQueen(url, spool=path) as queen:
    number = first
    while True:
        queen.queue(queue).partition(f"p{number % 2}").push(number)
        print(number, flush=True)
        number += 1
"""
# Ends without closing its client.
_LEAVE = """
from queen import SyncQueen
queen = SyncQueen(url, spool=path)
queen.queue(queue).push([0, 1, 2])
"""
_DRAIN = """
async def main():
    async with Queen(url, spool=path) as queen:
        await queen.flush()
asyncio.run(main())
"""
# The broker has answered, and nobody has written it down yet.
_DIE = """
times = 0
async def save(self):
    global times
    times += 1
    if times == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    await saved(self)
saved, Source.save = Source.save, save
"""


@contextlib.asynccontextmanager
async def running(
    program: str, gate: Gate, folder: Path, queue: str, first: int = 0
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that does not outlive the test."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", _HEAD + program, gate.url, str(folder), queue, str(first)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def said(process: asyncio.subprocess.Process, count: int) -> list[int]:
    """Return the next numbers that a producer says."""
    assert process.stdout is not None
    return [int(await process.stdout.readline()) for _ in range(count)]


async def rest(process: asyncio.subprocess.Process) -> list[int]:
    assert process.stdout is not None
    text = await process.stdout.read()
    return [int(line) for line in text.split(b"\n")[:-1]]


async def drain(gate: Gate, folder: Path) -> None:
    await gate.turn("open")
    async with Queen(gate.url, spool=folder) as queen:
        await asyncio.wait_for(queen.flush(), 60)


async def count_of(queen: Queen, queue: str) -> int:
    return sum(map(len, (await stored(queen, queue)).values()))


def check(numbers: dict[str, list[int]], told: list[int]) -> None:
    """What was told is there, once and in order; the last push may not have been told."""
    together = sorted(number for partition in numbers.values() for number in partition)
    assert all(partition == sorted(set(partition)) for partition in numbers.values())
    assert set(told) <= set(together)
    assert len(together) <= len(told) + 1


@pytest.mark.parametrize("program", [_PRODUCE, _PRODUCE_SYNC], ids=["async", "sync"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
async def test_a_producer_ends_during_an_outage(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path, number: signal.Signals, program: str
) -> None:
    async with running(program, gate, tmp_path, queue) as process:
        await gate.turn("open")
        told = await said(process, 20)
        await gate.turn("shut")
        told += await said(process, 100)
        process.send_signal(number)
        told += await rest(process)
        await process.wait()
    await drain(gate, tmp_path)
    check(await stored(queen, queue), told)


async def test_a_program_that_ends_without_closing_its_client_loses_nothing(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    async with running(_LEAVE, gate, tmp_path, queue) as process:
        assert await process.wait() == 0
    await drain(gate, tmp_path)
    assert await stored(queen, queue) == {"Default": [0, 1, 2]}


async def test_a_producer_is_killed_again_and_again(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    told: list[int] = []
    modes: list[Mode] = ["shut", "open", "shut", "silent"]
    for mode in modes:
        first = told[-1] + 2 if told else 0
        async with running(_PRODUCE, gate, tmp_path, queue, first) as process:
            told += await said(process, 30)
            await gate.turn(mode)
            told += await said(process, 30)
            process.kill()
            told += await rest(process)
    await drain(gate, tmp_path)
    numbers = await stored(queen, queue)
    assert all(partition == sorted(set(partition)) for partition in numbers.values())
    assert set(told) <= {number for partition in numbers.values() for number in partition}


async def fill(gate: Gate, folder: Path, queue: str, count: int) -> None:
    async with Queen(gate.url, spool=folder) as producer:
        await producer.queue(queue).push(list(range(count)))


async def test_a_producer_is_killed_during_the_drain(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    await fill(gate, tmp_path, queue, 6000)
    await gate.turn("open")
    for _ in range(3):
        before = await count_of(queen, queue)
        async with running(_DRAIN, gate, tmp_path, queue):
            await until_async(lambda: has_more(queen, queue, before))  # noqa: B023
    await drain(gate, tmp_path)
    assert await stored(queen, queue) == {"Default": list(range(6000))}


async def has_more(queen: Queen, queue: str, count: int) -> bool:
    return await count_of(queen, queue) > min(count, 5999)


async def test_a_kill_between_an_answer_and_its_note_repeats_what_was_answered(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    await queen.queue(queue).config(dedup="off").create()
    await fill(gate, tmp_path, queue, 300)
    await gate.turn("open")
    async with running(_DIE + _DRAIN, gate, tmp_path, queue) as process:
        assert await process.wait() == -signal.SIGKILL
    answered = await count_of(queen, queue)
    await drain(gate, tmp_path)
    (numbers,) = (await stored(queen, queue)).values()
    # Batches of 1, 8 and 64 were answered, and of the last there was no note.
    assert answered == 1 + 8 + 64
    assert numbers == [*range(answered), *range(9, 300)]


async def test_with_dedup_even_that_is_stored_once(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    await fill(gate, tmp_path, queue, 300)
    await gate.turn("open")
    async with running(_DIE + _DRAIN, gate, tmp_path, queue) as process:
        assert await process.wait() == -signal.SIGKILL
    await drain(gate, tmp_path)
    assert await stored(queen, queue) == {"Default": list(range(300))}


async def test_two_processes_with_one_folder(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    async with (
        running(_PRODUCE, gate, tmp_path, f"{queue}-a") as first,
        running(_PRODUCE, gate, tmp_path, f"{queue}-b") as second,
    ):
        told = [await said(process, 50) for process in (first, second)]
        for process, numbers in zip((first, second), told, strict=True):
            process.kill()
            numbers.extend(await rest(process))
    await drain(gate, tmp_path)
    for name, numbers in zip((f"{queue}-a", f"{queue}-b"), told, strict=True):
        check(await stored(queen, name), numbers)
