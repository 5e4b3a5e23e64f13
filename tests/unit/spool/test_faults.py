"""Disks that are full or fail: nothing that was acknowledged is lost, nothing else is."""

from __future__ import annotations

import errno
import random
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from queen.errors import OutcomeUnknown, SpoolFailed, SpoolFull
from tests.unit.spool.disks import (
    JSON,
    FailingDisk,
    ForgetfulDisk,
    bodies_of,
    open_spool,
    read_all,
    spool_files,
    spool_in,
)
from tests.waiting import until


def reopened(root: Path) -> list[bytes]:
    with spool_in(root) as spool:
        assert spool.recovery.wait(30)
        return bodies_of(spool)


def test_a_failed_sync_retires_the_file_and_the_append_succeeds_in_another(tmp_path: Path) -> None:
    disk = FailingDisk()
    spool = open_spool(tmp_path, disk)
    spool.append([b"before"], JSON, durable=True)
    spool.append([b"not asked to be durable"], JSON)
    disk.fail_next("sync")
    spool.append([b"hit"], JSON, durable=True)
    disk.calls.clear()
    spool.append([b"after"], JSON, durable=True)
    assert len(spool_files(spool)) == 2
    expected = [b"before", b"not asked to be durable", b"hit", b"after"]
    assert bodies_of(spool) == expected
    assert spool.damage() == []
    spool.close()
    assert reopened(tmp_path) == expected


def test_a_retired_file_is_never_synced_again(tmp_path: Path) -> None:
    synced: list[Path] = []

    class Watched(FailingDisk):
        def sync(self, descriptor: int) -> None:
            synced.append(self.paths[descriptor])
            super().sync(descriptor)

    disk = Watched()
    with spool_in(tmp_path, disk) as spool:
        spool.append([b"a"], JSON, durable=True)
        disk.fail_next("sync")
        synced.clear()
        spool.append([b"b"], JSON, durable=True)
        first, second = spool_files(spool)
        assert synced == [first, second]
        spool.append([b"c"], JSON, durable=True)
        assert synced[2:] == [second]


def test_a_second_failure_is_told_and_what_was_acknowledged_stays(tmp_path: Path) -> None:
    disk = FailingDisk()
    spool = open_spool(tmp_path, disk)
    spool.append([b"before"], JSON, durable=True)
    disk.fail = lambda call: OSError(errno.EIO, "broken") if call == "sync" else None
    with pytest.raises(SpoolFailed) as caught:
        spool.append([b"unknown"], JSON, durable=True)
    assert isinstance(caught.value, OutcomeUnknown)
    disk.fail = lambda call: None
    spool.append([b"after"], JSON, durable=True)
    bodies = bodies_of(spool)
    assert [body for body in bodies if body != b"unknown"] == [b"before", b"after"]
    assert bodies.count(b"unknown") <= 1
    spool.close()


def test_what_a_failed_sync_has_lost_is_told_to_who_waits_for_it(tmp_path: Path) -> None:
    class Losing(FailingDisk):
        def sync(self, descriptor: int) -> None:
            try:
                super().sync(descriptor)
            except OSError:
                path = self.paths[descriptor]
                content = path.read_bytes()
                path.write_bytes(content.replace(b"hit", b"\0\0\0"))
                raise

    disk = Losing()
    with spool_in(tmp_path, disk) as spool:
        spool.append([b"before"], JSON, durable=True)
        disk.fail_next("sync")
        with pytest.raises(SpoolFailed):
            spool.append([b"hit"], JSON, durable=True)
        spool.append([b"after"], JSON, durable=True)
        assert bodies_of(spool) == [b"before", b"after"]
        assert {each.what for each in spool.damage()} >= {"torn"}


def test_a_disk_that_never_syncs_does_not_fill_up_with_copies(tmp_path: Path) -> None:
    disk = FailingDisk()
    spool = open_spool(tmp_path, disk, sync_interval_ms=1)
    spool.append([b"before"], JSON, durable=True)
    disk.fail = lambda call: OSError(errno.EIO, "broken") if call == "sync" else None
    for number in range(50):
        spool.append([b"%d" % number], JSON)
        with pytest.raises(SpoolFailed):
            spool.append([b"unknown"], JSON, durable=True)
    # The one that was synced once, and the last.
    assert len(spool_files(spool)) <= 3
    disk.fail = lambda call: None
    spool.append([b"after"], JSON, durable=True)
    bodies = [body for body in bodies_of(spool) if body != b"unknown"]
    assert bodies == [b"before", *(b"%d" % number for number in range(50)), b"after"]
    spool.close()


def test_a_failed_sync_that_nobody_waits_for_is_mended_by_itself(tmp_path: Path) -> None:
    disk = FailingDisk()
    spool = open_spool(tmp_path, disk, sync_interval_ms=1)
    spool.append([b"before"], JSON, durable=True)
    disk.fail_next("sync")
    spool.append([b"not durable"], JSON)
    until(lambda: len(spool_files(spool)) == 2)
    until(lambda: disk.calls[-1] == "sync_folder")
    assert bodies_of(spool) == [b"before", b"not durable"]
    spool.close()
    assert reopened(tmp_path) == [b"before", b"not durable"]


@pytest.mark.parametrize("call", ["create", "write", "sync_folder"])
def test_an_error_of_any_other_call_is_told_or_mended(tmp_path: Path, call: str) -> None:
    disk = FailingDisk()
    spool = open_spool(tmp_path, disk, max_file_records=1)
    spool.append([b"before"], JSON, durable=True)
    disk.fail_next(call)
    told: list[bytes] = []
    for body in (b"1", b"2", b"3"):
        try:
            spool.append([body], JSON, durable=True)
            told.append(body)
        except SpoolFailed:
            continue
    assert len(told) >= 2
    assert [body for body in bodies_of(spool) if body in told] == told
    spool.close()
    assert [body for body in reopened(tmp_path) if body in told] == told


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    disk = FailingDisk()
    spool = open_spool(tmp_path, disk)
    spool.append([b"before"], JSON)
    (path,) = spool_files(spool)
    content = path.read_bytes()
    disk.short_write_bytes = 50
    disk.fail_next("write", number=errno.ENOSPC)
    with pytest.raises(SpoolFull):
        spool.append([b"does not fit" * 10], JSON)
    assert path.read_bytes() == content
    spool.append([b"after"], JSON)
    assert spool_files(spool) == [path]
    assert bodies_of(spool) == [b"before", b"after"]
    spool.close()


def test_a_write_that_cannot_be_undone_is_not_read_either(tmp_path: Path) -> None:
    disk = FailingDisk()
    spool = open_spool(tmp_path, disk)
    spool.append([b"before"], JSON)
    # The first of the two records is in the file as a whole.
    disk.short_write_bytes = 60
    disk.fail_next("write", "truncate", number=errno.ENOSPC)
    with pytest.raises(SpoolFailed):
        spool.append([b"whole", b"not whole"], JSON)
    assert bodies_of(spool) == [b"before"]
    spool.append([b"after"], JSON)
    assert bodies_of(spool) == [b"before", b"after"]
    spool.close()
    assert reopened(tmp_path) == [b"before", b"after"]


def test_a_short_write_is_gone_on_with(tmp_path: Path) -> None:
    disk = FailingDisk()
    with spool_in(tmp_path, disk) as spool:
        spool.append([b"before"], JSON)
        disk.short_write_bytes = 7
        spool.append([b"after"], JSON)
        assert bodies_of(spool) == [b"before", b"after"]


@pytest.mark.parametrize("seed", range(30))
def test_power_loss_and_failing_syncs_lose_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    """Crash again and again; what was acknowledged as durable is there, in order, once."""
    chance = random.Random(seed)
    disk = ForgetfulDisk(chance, failing=0.15)
    acknowledged: list[bytes] = []
    sent = 0
    for _ in range(4):
        spool = open_spool(tmp_path, disk, max_file_bytes=chance.choice([300, 2000, 100_000]))
        for _ in range(chance.randint(1, 25)):
            bodies = [b"%06d" % (sent + i) for i in range(chance.randint(1, 5))]
            sent += len(bodies)
            try:
                durable = chance.random() < 0.6
                spool.append(bodies, JSON, durable=durable)
                if durable:
                    acknowledged += bodies
            except SpoolFailed:
                continue
        path = spool.path
        _end_without_order(spool)
        disk.crash(path)
    with spool_in(tmp_path) as spool:
        kept = bodies_of(spool)
    assert kept == sorted(set(kept))
    assert set(acknowledged) <= set(kept)


def _end_without_order(spool: object) -> None:
    """End the threads of a spool as a crash does: nothing more is written."""
    from queen.spool import Spool

    assert isinstance(spool, Spool)
    spool.recovery.stop()
    writer = spool.writer
    writer._is_closing = True
    writer._demand_sync()
    assert writer._thread is not None
    writer._thread.join()
    for output in writer._unsynced:
        output.close()
    spool._reader.close()
    spool._quarantine.close()
    spool._held.let_go()


_LIMITED = """
import resource, sys
from pathlib import Path
from queen.errors import SpoolFull
from queen.spool import Spool, SpoolOptions, SpoolRoot

spool = Spool(SpoolRoot(Path(sys.argv[1])).claim(), SpoolOptions(min_free_bytes=0))
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
count = 0
try:
    while True:
        spool.append([b"%05d" % count * 50], 2, durable=True)
        count += 1
except SpoolFull:
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
spool.append([b"%05d" % count * 50], 2, durable=True)
print(count)
spool.close()
"""


def test_a_real_short_write_is_cut_back(tmp_path: Path) -> None:
    """The kernel writes what fits under the limit of a process, and then refuses."""
    assert resource.RLIMIT_FSIZE
    ended = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    count = int(ended.stdout)
    assert count > 10
    assert reopened(tmp_path) == [b"%05d" % number * 50 for number in range(count + 1)]


@pytest.fixture
def small_disk(tmp_path: Path) -> object:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_refuses_loses_nothing_and_goes_on(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(64 * 1024))
    acknowledged: list[bytes] = []
    with spool_in(small_disk, max_file_bytes=50_000) as spool:
        for round_ in range(2):
            with pytest.raises(SpoolFull):
                while True:
                    body = b"%d %06d" % (round_, len(acknowledged)) * 20
                    spool.append([body], JSON, durable=True)
                    acknowledged.append(body)
            assert bodies_of(spool) == acknowledged
            ballast.unlink(missing_ok=True)
        assert len(acknowledged) > 800
    assert reopened(small_disk) == acknowledged


def test_rotation_during_a_sync_closes_nothing_that_is_being_synced(tmp_path: Path) -> None:
    disk = FailingDisk()
    stuck, go_on = threading.Event(), threading.Event()

    def wait(call: str) -> None:
        if call == "sync" and not go_on.is_set():
            stuck.set()
            go_on.wait(30)

    with spool_in(tmp_path, disk, sync="never", max_file_records=2) as spool:
        spool.append([b"0"], JSON, durable=True)
        disk.fail = wait
        thread = threading.Thread(target=spool.append, args=([b"1"], JSON, True), daemon=True)
        thread.start()
        assert stuck.wait(30)
        for number in range(2, 10):
            spool.append([b"%d" % number], JSON)
        go_on.set()
        thread.join(30)
        assert not thread.is_alive()
        spool.append([b"10"], JSON, durable=True)
        assert bodies_of(spool) == [b"%d" % number for number in range(11)]
        assert "closed during a sync" not in disk.calls


def test_what_is_drained_before_its_sync_fails_is_not_lost(tmp_path: Path) -> None:
    disk = FailingDisk()
    stuck, go_on = threading.Event(), threading.Event()

    def fail(call: str) -> OSError | None:
        if call == "sync" and not go_on.is_set():
            stuck.set()
            go_on.wait(30)
            return OSError(errno.EIO, "broken")
        return None

    with spool_in(tmp_path, disk, max_file_records=1) as spool:
        spool.append([b"0"], JSON, durable=True)
        disk.fail = fail
        results: list[range] = []
        thread = threading.Thread(
            target=lambda: results.append(spool.append([b"1"], JSON, durable=True)), daemon=True
        )
        thread.start()
        assert stuck.wait(30)
        spool.append([b"2"], JSON)
        records = read_all(spool)
        spool.release(records[1].seq)
        go_on.set()
        thread.join(30)
        assert list(results[0]) == [records[1].seq]
        assert bodies_of(spool, records[1].seq) == [b"2"]
        assert spool.damage() == []


def test_a_file_that_cannot_be_read_now_is_read_later(tmp_path: Path) -> None:
    class Unreadable(FailingDisk):
        def read(self, descriptor: int, count: int, offset: int) -> bytes:
            self._check("read")
            return super().read(descriptor, count, offset)

    with spool_in(tmp_path, max_file_records=2) as spool:
        for number in range(6):
            spool.append([b"%d" % number], JSON)
    disk = Unreadable()
    spool = open_spool(tmp_path, disk)
    assert spool.recovery.wait(30)
    records = spool.read(0)
    disk.fail = lambda call: OSError(errno.EIO, "broken") if call == "read" else None
    for _ in range(2):
        with pytest.raises(SpoolFailed):
            spool.read(records[-1].seq)
    assert spool.statistics().records == 6
    disk.fail = lambda call: None
    assert bodies_of(spool, records[-1].seq) == [b"2", b"3", b"4", b"5"]
    assert spool.damage() == []
    spool.close()


def test_a_file_that_ends_during_its_sync_is_synced_again(tmp_path: Path) -> None:
    disk = FailingDisk()
    stuck, go_on = threading.Event(), threading.Event()

    def wait(call: str) -> None:
        if call == "sync" and not go_on.is_set():
            stuck.set()
            go_on.wait(30)

    with spool_in(tmp_path, disk, max_file_records=5) as spool:
        spool.append([b"0"], JSON, durable=True)
        disk.fail = wait
        threads = [
            threading.Thread(target=spool.append, args=([b"%d" % number], JSON, True), daemon=True)
            for number in range(1, 8)
        ]
        threads[0].start()
        assert stuck.wait(30)
        for thread in threads[1:]:
            thread.start()
        until(lambda: len(bodies_of(spool)) == 8)
        go_on.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        for path in spool_files(spool):
            assert disk.synced_bytes[path] == path.stat().st_size
