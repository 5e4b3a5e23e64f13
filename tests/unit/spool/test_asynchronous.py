"""A spool on an event loop."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from queen.errors import SpoolFailed, SpoolFull
from queen.spool import AsyncSpool
from tests.unit.spool.disks import JSON, FailingDisk, open_spool


@asynccontextmanager
async def async_spool(
    root: Path, disk: FailingDisk | None = None, **options: object
) -> AsyncIterator[AsyncSpool]:
    spool = AsyncSpool(open_spool(root, disk, **options))  # type: ignore[arg-type]
    try:
        yield spool
    finally:
        await spool.close()


async def test_a_slow_disk_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    """While a sync takes its time, records that need not be durable are taken and read."""
    disk = FailingDisk()
    stuck, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait(call: str) -> None:
        if call == "sync" and not go_on.is_set():
            loop.call_soon_threadsafe(stuck.set)
            go_on.wait(30)

    async with async_spool(tmp_path, disk) as spool:
        await spool.append([b"warm"], JSON, durable=True)
        disk.fail = wait
        durable = asyncio.create_task(spool.append([b"durable"], JSON, durable=True))
        await stuck.wait()
        for number in range(100):
            await spool.append([b"%d" % number], JSON, durable=False)
        more = [asyncio.create_task(spool.append([b"x"], JSON, durable=True)) for _ in range(20)]
        records = await spool.read(0, 200)
        assert len(records) >= 102
        assert not durable.done()
        disk.calls.clear()
        go_on.set()
        await durable
        seqs = [seq for part in await asyncio.gather(*more) for seq in part]
        assert seqs == list(range(seqs[0], seqs[0] + 20)), "in the order of the calls"
        assert disk.calls.count("sync") <= 2


async def test_a_slow_write_does_not_hold_up_the_loop_either(tmp_path: Path) -> None:
    disk = FailingDisk()
    stuck, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait(call: str) -> None:
        if call == "write" and threading.current_thread().name == "spool-writer":
            loop.call_soon_threadsafe(stuck.set)
            go_on.wait(30)

    async with async_spool(tmp_path, disk) as spool:
        await spool.append([b"warm"], JSON, durable=True)
        disk.fail = wait
        durable = asyncio.create_task(spool.append([b"durable"], JSON, durable=True))
        await stuck.wait()
        other = asyncio.create_task(spool.append([b"not durable"], JSON, durable=False))
        await asyncio.sleep(0)
        assert not other.done()
        go_on.set()
        assert (await durable).stop == (await other).start


async def test_a_reader_is_woken(tmp_path: Path) -> None:
    async with async_spool(tmp_path) as spool:
        bodies: list[bytes] = []

        async def follow() -> None:
            after = 0
            while len(bodies) < 30:
                records = await spool.read(after, 7)
                if not records:
                    await spool.wait_for_records()
                    continue
                bodies.extend(record.body for record in records)
                after = records[-1].seq
                await spool.release(after)

        task = asyncio.create_task(follow())
        for number in range(30):
            await spool.append([b"%d" % number], JSON, durable=number % 3 == 0)
            await asyncio.sleep(0)
        await task
        assert bodies == [b"%d" % number for number in range(30)]
        assert (await spool.statistics()).records == 0


async def test_errors_come_to_who_awaits(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with async_spool(tmp_path, disk, max_bytes=5000) as spool:
        await spool.append([b"warm"], JSON, durable=True)
        with pytest.raises(SpoolFull):
            await spool.append([bytes(6000)], JSON, durable=True)
        with pytest.raises(SpoolFull):
            await spool.append([bytes(6000)], JSON, durable=False)
        disk.fail = lambda call: OSError(errno.EIO, "broken") if call == "sync" else None
        with pytest.raises(SpoolFailed):
            await spool.append([b"unknown"], JSON, durable=True)
        disk.fail = lambda call: None
        await spool.append([b"after"], JSON, durable=True)


async def test_who_is_cancelled_leaves_no_trace_and_no_hole(tmp_path: Path) -> None:
    async with async_spool(tmp_path) as spool:
        task = asyncio.create_task(spool.append([b"cancelled"], JSON, durable=True))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await spool.append([b"after"], JSON, durable=True)
        assert [record.body for record in await spool.read(0)] == [b"cancelled", b"after"]
        assert spool._futures == {}


async def test_with_always_every_append_is_durable(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with async_spool(tmp_path, disk, sync="always") as spool:
        await spool.append([b"a"], JSON)
        assert "sync" in disk.calls
        disk.calls.clear()
        await asyncio.to_thread(spool.spool.append, [b"b"], JSON)
        assert "sync" in disk.calls


async def test_with_never_only_those_that_ask_are_synced(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with async_spool(tmp_path, disk, sync="never", max_file_records=5) as spool:
        await spool.append([b"a"], JSON)
        disk.calls.clear()
        for _ in range(20):
            await spool.append([b"b"], JSON)
        assert "sync" not in disk.calls
        await spool.append([b"c"], JSON, durable=True)
        assert "sync" in disk.calls
