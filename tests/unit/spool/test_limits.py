"""When a new file begins, and when a spool is full."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path

import pytest

from queen.errors import Overloaded, SpoolFull
from queen.server.api.failures import failure
from queen.spool.entries import Entry
from queen.spool.room import folder_bytes
from tests.unit.spool.disks import (
    JSON,
    FailingDisk,
    bodies_of,
    open_spool,
    read_all,
    spool_files,
    spool_in,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_file_ends_at_its_size_its_count_or_its_age(tmp_path: Path) -> None:
    clock = Clock()
    spool = open_spool(
        tmp_path, now_s=clock, max_file_bytes=1000, max_file_records=3, max_file_age_ms=5000
    )
    spool.append([b"a" * 600], JSON)
    spool.append([b"b" * 600], JSON)
    assert len(spool_files(spool)) == 2, "by size"
    for body in (b"c", b"d", b"e"):
        spool.append([body], JSON)
    assert len(spool_files(spool)) == 3, "by count"
    clock.now_s += 6
    spool.append([b"f"], JSON)
    assert len(spool_files(spool)) == 4, "by age"
    assert b"".join(bodies_of(spool)) == b"a" * 600 + b"b" * 600 + b"cdef"
    assert [record.at_ms for record in read_all(spool)][-1] == int(clock.now_s * 1000)
    spool.close()


def test_a_record_larger_than_a_file_gets_one_of_its_own(tmp_path: Path) -> None:
    with spool_in(tmp_path, max_file_bytes=1000) as spool:
        large = bytes(3_000_000)
        for body in (b"before", large, b"after"):
            spool.append([body], JSON)
        assert bodies_of(spool) == [b"before", large, b"after"]
        assert len(spool_files(spool)) == 3


def test_released_files_go_and_no_others(tmp_path: Path) -> None:
    with spool_in(tmp_path, max_file_records=10) as spool:
        for number in range(35):
            spool.append([b"%d" % number], JSON)
        records = read_all(spool)
        assert len(spool_files(spool)) == 4
        spool.release(records[8].seq)
        assert len(spool_files(spool)) == 4
        spool.release(records[19].seq)
        assert len(spool_files(spool)) == 2
        assert spool.statistics().records == 15
        assert bodies_of(spool, records[19].seq) == [b"%d" % number for number in range(20, 35)]
        spool.release(records[-1].seq)
        assert len(spool_files(spool)) == 1, "it is being written"
        assert spool.statistics().records == 0
        assert spool.statistics().oldest_at_ms is None
        assert spool.read(records[-1].seq) == []


def test_a_drained_file_that_is_old_goes_without_another_append(tmp_path: Path) -> None:
    clock = Clock()
    spool = open_spool(tmp_path, now_s=clock, max_file_age_ms=5000)
    seqs = spool.append([b"a"], JSON)
    clock.now_s += 6
    spool.release(seqs[-1])
    assert spool_files(spool) == []
    spool.append([b"b"], JSON)
    assert bodies_of(spool, seqs[-1]) == [b"b"]
    spool.close()


def test_statistics_tell_what_waits(tmp_path: Path) -> None:
    clock = Clock()
    spool = open_spool(tmp_path, now_s=clock, max_file_records=4)
    seqs: list[int] = []
    for number in range(10):
        clock.now_s += 1
        seqs += spool.append([b"%d" % number], JSON)
    told = spool.statistics()
    assert (told.id, told.records, told.files) == (spool.id, 10, 3)
    assert told.bytes == folder_bytes(spool.path)
    assert told.oldest_at_ms == int(clock.now_s * 1000) - 9000
    spool.release(seqs[5])
    assert spool.statistics().records == 4
    assert spool.statistics().oldest_at_ms == int(clock.now_s * 1000) - 3000
    spool.close()


def test_the_byte_limit_refuses_before_anything_is_written(tmp_path: Path) -> None:
    with spool_in(tmp_path, max_bytes=5000, max_file_bytes=1000) as spool:
        written: list[int] = []
        with pytest.raises(SpoolFull) as caught:
            while True:
                written += spool.append([bytes(200)], JSON)
        assert failure(caught.value).status == 507
        assert 10 < len(written) < 25
        before = folder_bytes(tmp_path)
        assert before <= 5000
        with pytest.raises(SpoolFull):
            spool.append([bytes(200)], JSON, durable=True)
        assert folder_bytes(tmp_path) == before
        assert len(read_all(spool)) == len(written)
        # It goes on when something is drained.
        spool.release(written[-1])
        assert spool.append([bytes(200)], JSON)


def test_the_limit_counts_the_spools_of_others(tmp_path: Path) -> None:
    first = open_spool(tmp_path)
    first.append([bytes(4000)], JSON)
    with spool_in(tmp_path, max_bytes=5000) as second:
        assert second.id != first.id
        with pytest.raises(SpoolFull):
            second.append([bytes(2000)], JSON)
        second.append([bytes(200)], JSON)
    first.close()


def test_some_of_the_disk_stays_free(tmp_path: Path) -> None:
    disk = FailingDisk()
    with spool_in(tmp_path, disk, min_free_bytes=10_000) as spool:
        disk.free = 10_500
        spool.append([bytes(100)], JSON)
        with pytest.raises(SpoolFull, match="stay free"):
            spool.append([bytes(500)], JSON)
        assert len(read_all(spool)) == 1


def test_what_waits_in_memory_is_bounded(tmp_path: Path) -> None:
    """While the disk does not answer, appends beyond the bound are refused at once."""
    disk = FailingDisk()
    stuck, go_on = threading.Event(), threading.Event()

    def wait(call: str) -> None:
        if call == "write" and threading.current_thread().name == "spool-writer":
            stuck.set()
            go_on.wait(30)

    with spool_in(tmp_path, disk, max_pending_bytes=10_000) as spool:
        spool.append([b"first"], JSON)
        disk.fail = wait
        told = threading.Semaphore(0)

        def notify(entries: object) -> None:
            told.release(len(entries))  # type: ignore[arg-type]

        spool.writer.submit(Entry([bytes(1000)], JSON, 0, True, notify))
        assert stuck.wait(30)
        taken = 0
        with pytest.raises(Overloaded):
            while True:
                spool.writer.submit(Entry([bytes(1000)], JSON, 0, True, notify))
                taken += 1
        assert taken == 9
        go_on.set()
        for _ in range(taken + 1):
            assert told.acquire(timeout=30)
        assert len(read_all(spool)) == taken + 2


def test_memory_does_not_grow_with_what_is_spooled(tmp_path: Path) -> None:
    with spool_in(tmp_path) as spool:
        spool.append([b"warm"], JSON)
        tracemalloc.start()
        try:
            body = bytes(10_000)
            for _ in range(1000):
                spool.append([body] * 2, JSON)
            after = 0
            while records := spool.read(after, 100, 1 << 20):
                after = records[-1].seq
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # 20 MB were written and read.
        assert peak_bytes < 8_000_000
