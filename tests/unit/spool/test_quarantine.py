"""Records that were refused for what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from queen.errors import NotFound, SpoolFailed
from tests.unit.spool.disks import JSON, FailingDisk, bodies_of, open_spool, read_all, spool_in


def test_a_refused_record_is_kept_with_its_reason_and_over_a_restart(tmp_path: Path) -> None:
    with spool_in(tmp_path) as spool:
        spool.append([b"good", b"bad", b"good too", b"worse"], JSON)
        records = read_all(spool)
        spool.refuse([(records[1], "no such queue"), (records[3], "too large")])
        # After a crash before the drain moved on, it is refused again.
        spool.refuse([(records[1], "no such queue")])
        spool.release(records[-1].seq)
    with spool_in(tmp_path) as spool:
        told = spool.quarantined()
        assert [(each.seq, each.reason) for each in told] == [
            (records[1].seq, "no such queue"),
            (records[3].seq, "too large"),
        ]
        assert (told[0].kind, told[0].at_ms, told[0].size_bytes) == (JSON, records[1].at_ms, 3)
        assert spool.statistics().quarantined == 2
        assert [each.reason for each in spool.quarantined(1, 5)] == ["too large"]
        assert bodies_of(spool) == []


def test_retry_appends_again_and_drop_forgets(tmp_path: Path) -> None:
    with spool_in(tmp_path) as spool:
        spool.append([b"%d" % number for number in range(4)], JSON)
        records = read_all(spool)
        spool.refuse([(record, "refused") for record in records])
        last = records[-1].seq
        spool.retry([records[2].seq])
        assert bodies_of(spool, last) == [b"2"]
        spool.drop([records[0].seq])
        assert [each.seq for each in spool.quarantined()] == [records[1].seq, records[3].seq]
        with pytest.raises(NotFound):
            spool.retry([records[0].seq])
    with spool_in(tmp_path) as spool:
        assert [each.seq for each in spool.quarantined()] == [records[1].seq, records[3].seq]
        spool.retry()
        assert bodies_of(spool, last) == [b"2", b"1", b"3"]
        assert spool.quarantined() == []
        assert not (spool.path / "quarantine").exists()


def test_a_spool_with_refused_records_is_not_removed(tmp_path: Path) -> None:
    with spool_in(tmp_path) as spool:
        spool.append([b"bad"], JSON)
        (record,) = read_all(spool)
        spool.refuse([(record, "bad")])
        spool.release(record.seq)
    assert spool.path.exists()
    with spool_in(tmp_path) as again:
        assert again.id == spool.id
        again.drop()
    assert not spool.path.exists()


def test_a_torn_quarantine_keeps_what_was_whole(tmp_path: Path) -> None:
    with spool_in(tmp_path) as spool:
        spool.append([b"first", b"second"], JSON)
        first, second = read_all(spool)
        spool.refuse([(first, "bad")])
        path = spool.path / "quarantine"
        size = path.stat().st_size
        spool.refuse([(second, "bad too")])
    path.write_bytes(path.read_bytes()[: size + 20])
    with spool_in(tmp_path) as spool:
        assert [each.seq for each in spool.quarantined()] == [first.seq]
        spool.refuse([(second, "bad too")])
    with spool_in(tmp_path) as spool:
        assert [each.reason for each in spool.quarantined()] == ["bad", "bad too"]
        assert [each.what for each in spool.damage()] == ["torn"]


def test_a_failed_sync_is_told_and_the_next_try_writes_anew(tmp_path: Path) -> None:
    disk = FailingDisk()
    spool = open_spool(tmp_path, disk)
    spool.append([b"first", b"second"], JSON)
    first, second = read_all(spool)
    spool.refuse([(first, "bad")])
    disk.fail_next("sync")
    with pytest.raises(SpoolFailed):
        spool.refuse([(second, "bad too")])
    assert [each.seq for each in spool.quarantined()] == [first.seq]
    spool.refuse([(second, "bad too")])
    spool.close()
    with spool_in(tmp_path) as spool:
        assert [each.seq for each in spool.quarantined()] == [first.seq, second.seq]


def test_many_drops_do_not_grow_the_file(tmp_path: Path) -> None:
    with spool_in(tmp_path) as spool:
        spool.append([b"x" * 100 for _ in range(1300)], JSON)
        records = read_all(spool)
        spool.refuse([(record, "bad") for record in records])
        path = spool.path / "quarantine"
        size = path.stat().st_size
        spool.drop([record.seq for record in records[:1100]])
        assert path.stat().st_size < size / 4
        assert [each.seq for each in spool.quarantined(0, 500)] == [
            record.seq for record in records[1100:]
        ]
