"""A reader that follows a writer, whatever the two do in turn: a list is the model."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from queen.spool import Spool
from tests.unit.spool.disks import (
    JSON,
    FailingDisk,
    open_spool,
    read_all,
    spool_files,
    spool_in,
)
from tests.waiting import until


class Following(RuleBasedStateMachine):
    """Appends, reads, releases, refusals and restarts against a list of what was appended."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.disk = FailingDisk()
        self.model: list[tuple[int, bytes]] = []
        self.read_up_to = 0
        self.released = 0
        self.refused: list[int] = []
        self.spool = self.open()

    def open(self) -> Spool:
        return open_spool(self.root, self.disk, max_file_bytes=400, max_file_records=7)

    @rule(bodies=st.lists(st.binary(max_size=60), max_size=5), durable=st.booleans())
    def append(self, bodies: list[bytes], durable: bool) -> None:
        seqs = self.spool.append(bodies, JSON, durable)
        self.model += zip(seqs, bodies, strict=True)

    @rule(bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=3))
    def append_while_a_sync_fails(self, bodies: list[bytes]) -> None:
        # The first append of a process syncs more than its file, and fails with that.
        self.append([b"before"], True)
        self.disk.fail_next("sync")
        self.append(bodies, True)
        self.disk.fail = lambda call: None

    @rule(count=st.integers(1, 10), max_bytes=st.integers(0, 200))
    def read(self, count: int, max_bytes: int) -> None:
        records = self.spool.read(self.read_up_to, count, max_bytes)
        expected = [each for each in self.model if each[0] > self.read_up_to]
        assert [(each.seq, each.body) for each in records] == expected[: len(records)]
        assert bool(records) == bool(expected)
        if records:
            self.read_up_to = records[-1].seq

    @rule()
    def read_again_from_what_is_released(self) -> None:
        self.read_up_to = self.released

    @rule()
    def release(self) -> None:
        self.spool.release(self.read_up_to)
        self.released = max(self.released, self.read_up_to)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        records = self.spool.read(self.read_up_to, 1)
        if records:
            self.spool.refuse([(records[0], "refused")])
            if records[0].seq not in self.refused:
                self.refused.append(records[0].seq)

    @rule()
    def restart(self) -> None:
        self.spool.close()
        self.spool = self.open()
        self.spool.recovery.wait(30)
        self.spool.release(self.released)

    @invariant()
    def what_waits_is_counted(self) -> None:
        waiting = [seq for seq, _ in self.model if seq > self.released]
        statistics = self.spool.statistics()
        assert statistics.records == len(waiting)
        assert (statistics.oldest_at_ms is not None) == bool(waiting)
        assert statistics.damaged == 0

    @invariant()
    def what_was_refused_is_kept(self) -> None:
        assert [each.seq for each in self.spool.quarantined()] == self.refused

    def teardown(self) -> None:
        records = read_all(self.spool, self.released)
        waiting = [each for each in self.model if each[0] > self.released]
        assert [(each.seq, each.body) for each in records] == waiting
        self.spool.close()
        shutil.rmtree(self.root, ignore_errors=True)


TestFollowing = Following.TestCase
TestFollowing.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_many_threads_append_and_one_follows(tmp_path: Path) -> None:
    """Each thread finds its records in its order, once; seqs have no gaps."""
    threads_count, each_count = 6, 150
    with spool_in(tmp_path, max_file_bytes=3000) as spool:
        positions: dict[bytes, int] = {}

        def append(name: int) -> None:
            chance = random.Random(name)
            number = 0
            while number < each_count:
                count = min(chance.randint(1, 4), each_count - number)
                bodies = [b"%d:%d" % (name, number + i) for i in range(count)]
                seqs = spool.append(bodies, JSON, durable=chance.random() < 0.3)
                positions.update(zip(bodies, seqs, strict=True))
                number += count

        threads = [
            threading.Thread(target=append, args=(name,), daemon=True)
            for name in range(threads_count)
        ]
        for thread in threads:
            thread.start()
        after = 0
        followed: list[tuple[int, bytes]] = []
        while len(followed) < threads_count * each_count:
            for record in spool.read(after, 50):
                followed.append((record.seq, record.body))
                after = record.seq
            if len(followed) % 3 == 0:
                spool.release(after)
        for thread in threads:
            thread.join()
        first = followed[0][0]
        assert [seq for seq, _ in followed] == list(range(first, first + len(followed)))
        assert {body: seq for seq, body in followed} == positions
        for name in range(threads_count):
            theirs = [body for _, body in followed if body.startswith(b"%d:" % name)]
            assert theirs == [b"%d:%d" % (name, number) for number in range(each_count)]
        spool.release(after)
        assert len(spool_files(spool)) <= 1


def test_appends_that_wait_share_a_sync(tmp_path: Path) -> None:
    disk = FailingDisk()
    first_sync, go_on = threading.Event(), threading.Event()

    def wait(call: str) -> None:
        if call == "sync" and not go_on.is_set():
            first_sync.set()
            go_on.wait(30)

    with spool_in(tmp_path, disk) as spool:
        spool.append([b"warm"], JSON, durable=True)
        disk.fail = wait
        threads = [
            threading.Thread(target=spool.append, args=([b"%d" % number], JSON, True), daemon=True)
            for number in range(20)
        ]
        threads[0].start()
        assert first_sync.wait(30)
        disk.calls.clear()
        for thread in threads[1:]:
            thread.start()
        # All are written while the first still waits for the disk.
        until(lambda: len(read_all(spool)) == 21)
        go_on.set()
        for thread in threads:
            thread.join()
        assert disk.calls.count("sync") <= 2
        assert len(read_all(spool)) == 21
