"""Who holds which spool, and what becomes of those that nobody holds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from queen.spool import Spool, SpoolOptions, SpoolRoot
from tests.unit.spool.disks import JSON, bodies_of, open_spool, spool_files, spool_in
from tests.waiting import until

_OPTIONS = SpoolOptions(min_free_bytes=0)


def test_two_processes_do_not_share_a_spool(tmp_path: Path) -> None:
    with spool_in(tmp_path) as first, spool_in(tmp_path) as second:
        assert first.id != second.id
        first.append([b"1"], JSON)
        second.append([b"2"], JSON)
        assert SpoolRoot(tmp_path).adopt() == []
        assert (bodies_of(first), bodies_of(second)) == ([b"1"], [b"2"])


def test_a_restart_goes_on_with_what_is_there_under_the_same_id(tmp_path: Path) -> None:
    ids, last = set(), 0
    for number in range(4):
        with spool_in(tmp_path) as spool:
            ids.add(spool.id)
            (seq,) = spool.append([b"%d" % number], JSON)
            assert seq > last
            last = seq
            assert bodies_of(spool) == [b"%d" % each for each in range(number + 1)]
    assert len(ids) == 1


def test_seqs_go_on_even_when_all_files_are_gone(tmp_path: Path) -> None:
    """Otherwise what comes later would look like what was drained long ago."""
    with spool_in(tmp_path) as spool:
        (before,) = spool.append([b"a"], JSON)
        paths = spool_files(spool)
    for path in paths:
        path.unlink()
    with spool_in(tmp_path) as spool:
        (after,) = spool.append([b"b"], JSON)
    assert after > before


def test_an_old_copy_that_was_put_back_writes_above_what_is_done(tmp_path: Path) -> None:
    with spool_in(tmp_path / "live") as spool:
        spool.append([b"a"], JSON)
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    for _ in range(3):
        with spool_in(tmp_path / "live") as spool:
            (done,) = spool.append([b"b"], JSON)
    with spool_in(tmp_path / "copy") as spool:
        spool.release(done)
        assert spool.read(done) == []
        (seq,) = spool.append([b"new"], JSON)
        assert seq > done
        assert bodies_of(spool, done) == [b"new"]


def test_a_restart_with_fewer_processes_adopts_the_rest(tmp_path: Path) -> None:
    spools = [open_spool(tmp_path) for _ in range(4)]
    for number, spool in enumerate(spools):
        spool.append([b"%d" % number], JSON, durable=True)
    ids = {spool.id for spool in spools}
    for spool in spools:
        spool.close()
    with spool_in(tmp_path) as own:
        adopted = [Spool(held, _OPTIONS) for held in SpoolRoot(tmp_path).adopt()]
        assert {own.id, *(spool.id for spool in adopted)} == ids
        bodies = [body for spool in (own, *adopted) for body in bodies_of(spool)]
        assert sorted(bodies) == [b"0", b"1", b"2", b"3"]
        for spool in adopted:
            (record,) = spool.read(0)
            spool.release(record.seq)
            spool.close()
            assert not spool.path.exists(), "drained and removed"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_spool_that_was_never_used_leaves_nothing(tmp_path: Path) -> None:
    with spool_in(tmp_path) as spool:
        assert spool.path.exists()
    assert list(tmp_path.iterdir()) == []


def test_empty_spools_of_processes_that_were_killed_are_removed(tmp_path: Path) -> None:
    SpoolRoot(tmp_path).claim().let_go()
    (tmp_path / ".6b1f6c54-0000-4000-8000-000000000000.new").mkdir()
    with spool_in(tmp_path):
        other = SpoolRoot(tmp_path).claim()
        other.let_go()
        assert SpoolRoot(tmp_path).adopt() == []
        assert len(list(tmp_path.iterdir())) == 1


def test_records_for_another_database_are_left_alone(tmp_path: Path) -> None:
    with spool_in(tmp_path) as spool:
        spool.append([b"for another"], JSON)
    other = SpoolRoot(tmp_path, owner="another database")
    assert other.adopt() == []
    held = other.claim()
    assert held.id != spool.id
    held.let_go()


def test_a_spool_whose_owner_is_not_known_is_left_alone(tmp_path: Path) -> None:
    with spool_in(tmp_path) as spool:
        spool.append([b"whose?"], JSON)
    (spool.path / "identity.json").write_bytes(b"{")
    with spool_in(tmp_path) as fresh:
        assert fresh.id != spool.id
        assert SpoolRoot(tmp_path).adopt() == []
    assert spool_files(spool)


def test_files_of_another_spool_are_damage_not_records(tmp_path: Path) -> None:
    with spool_in(tmp_path / "a") as one, spool_in(tmp_path / "b") as other:
        one.append([b"a"], JSON)
        other.append([b"b"], JSON)
    (strange,) = spool_files(other)
    shutil.copy(strange, one.path / f"{(9 << 24) + 1:016x}.spool")
    with spool_in(tmp_path / "a") as spool:
        assert spool.recovery.wait(30)
        assert bodies_of(spool) == [b"a"]
        assert {each.what for each in spool.damage()} == {"damaged", "torn"}


_HOLDER = """
import sys
from pathlib import Path
from queen.spool import Spool, SpoolOptions, SpoolRoot

spool = Spool(SpoolRoot(Path(sys.argv[1])).claim(), SpoolOptions(min_free_bytes=0))
spool.append([b"of the killed"], 2, durable=True)
print(spool.id, flush=True)
sys.stdin.read()
"""


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    held_id = holder.stdout.readline().strip()
    try:
        with spool_in(tmp_path) as spool:
            assert str(spool.id) != held_id
            assert SpoolRoot(tmp_path).adopt() == []
            holder.kill()
            holder.wait()
            (held,) = until(SpoolRoot(tmp_path).adopt)
            assert str(held.id) == held_id
            adopted = Spool(held, _OPTIONS)
            assert bodies_of(adopted) == [b"of the killed"]
            adopted.close()
    finally:
        holder.kill()
        holder.communicate()
