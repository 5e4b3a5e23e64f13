"""Whatever happens to the bytes: never a wrong payload, never more lost than what was hit."""

from __future__ import annotations

import logging
import os
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from queen.spool.disk.aside import Aside
from queen.spool.disk.files import load_file, number_of
from queen.spool.disk.format import HEADER_BYTES, RECORD_HEADER_BYTES, Record
from queen.spool.disk.operations import FileOperations
from queen.spool.disk.scan import FileScan
from tests.unit.spool.disks import JSON, QuickDisk, bodies_of, open_spool, spool_files, spool_in

# Sizes of all sorts: nothing, less than a header, more than a page's worth of records.
_BODIES = [
    (b'{"number":%d,"text":"' % number) + bytes([65 + number % 26]) * size + b'"}'
    for number, size in enumerate([0, 1, 900, 30, 77, 300, 5, 64, 500, 32, 200, 11, 450, 90, 128])
]


class Tampered(FileOperations):
    """Shows other bytes than those that are on the disk."""

    def __init__(self, content: bytes) -> None:
        self.content = bytearray(content)

    def read(self, descriptor: int, count: int, offset: int) -> bytes:
        return bytes(self.content[offset : offset + count])


class CountedAside(Aside):
    """Remembers what it was told, and writes nothing."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"), FileOperations())
        self.ranges_told: list[tuple[int, int, str]] = []

    def keep(self, file: object, start: int, end: int, what: str, reason: str) -> bool:
        self.ranges_told.append((start, end, what))
        return True


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A file of about 4 KiB that was closed in order."""
    with spool_in(tmp_path) as spool:
        spool.append(_BODIES, JSON)
        (path,) = spool_files(spool)
    assert 3500 < path.stat().st_size < 4600
    return path


def spans() -> list[tuple[int, int]]:
    """Where each record begins and ends."""
    sizes = [RECORD_HEADER_BYTES + len(body) for body in _BODIES]
    ends = list(accumulate(sizes, initial=HEADER_BYTES))
    return list(pairwise(ends))


def scanned(path: Path, operations: FileOperations, aside: Aside) -> list[Record]:
    number = number_of(path)
    assert number is not None
    file = load_file(path, number, bytes.fromhex(path.parent.name.replace("-", "")))
    scan = FileScan(file, aside, operations)
    try:
        return scan.read(0, 1000, 1 << 30)
    finally:
        scan.close()


def test_every_single_bit_that_flips_costs_at_most_its_own_record(whole: Path) -> None:
    disk = Tampered(whole.read_bytes())
    for at in range(HEADER_BYTES, len(disk.content)):
        hit = next((i for i, (start, end) in enumerate(spans()) if start <= at < end), None)
        expected = [body for index, body in enumerate(_BODIES) if index != hit]
        for bit in range(8):
            disk.content[at] ^= 1 << bit
            aside = CountedAside()
            assert [record.body for record in scanned(whole, disk, aside)] == expected
            assert any(start <= at < end for start, end, _ in aside.ranges_told), (at, bit)
            disk.content[at] ^= 1 << bit


def test_no_bit_of_the_file_header_costs_a_record(whole: Path) -> None:
    content = bytearray(whole.read_bytes())
    for at in range(HEADER_BYTES):
        for bit in range(8):
            content[at] ^= 1 << bit
            whole.write_bytes(content)
            aside = CountedAside()
            assert [record.body for record in scanned(whole, QuickDisk(), aside)] == _BODIES
            assert aside.ranges_told == [(0, HEADER_BYTES, "damaged")]
            content[at] ^= 1 << bit


def test_every_truncation_keeps_the_records_before_it(whole: Path) -> None:
    content = whole.read_bytes()
    boundaries = {HEADER_BYTES} | {end for _, end in spans()}
    for size in range(len(content) - 1, -1, -1):
        os.truncate(whole, size)
        aside = CountedAside()
        expected = [_BODIES[i] for i, (_, end) in enumerate(spans()) if end <= size]
        assert [record.body for record in scanned(whole, QuickDisk(), aside)] == expected
        torn = [(start, end) for start, end, what in aside.ranges_told if what == "torn"]
        if size > HEADER_BYTES:
            last = max(each for each in boundaries if each <= size)
            assert torn == ([] if last == size else [(last, size)])


@pytest.mark.parametrize("fill", [b"\x00", b"\xff"])
def test_a_tail_that_was_never_written_costs_nothing(whole: Path, fill: bytes) -> None:
    content = whole.read_bytes()
    for _, end in spans():
        whole.write_bytes(content[:end] + fill * (len(content) - end))
        expected = [_BODIES[i] for i, (_, stop) in enumerate(spans()) if stop <= end]
        assert [record.body for record in scanned(whole, QuickDisk(), CountedAside())] == expected


def test_a_torn_end_is_cut_once_and_kept(tmp_path: Path, whole: Path) -> None:
    content = whole.read_bytes()
    start, end = spans()[9]
    whole.write_bytes(content[: end - 3])
    with spool_in(tmp_path) as spool:
        assert spool.recovery.wait(30)
        (torn,) = spool.damage()
        assert (torn.what, torn.size_bytes) == ("torn", end - 3 - start)
        assert (spool.path / "aside" / torn.name).read_bytes() == content[start : end - 3]
        assert whole.read_bytes() == content[:start]
        assert bodies_of(spool) == _BODIES[:9]
    with spool_in(tmp_path) as spool:
        assert spool.recovery.wait(30)
        assert len(spool.damage()) == 1
        assert bodies_of(spool) == _BODIES[:9]


def test_damage_in_the_middle_is_kept_told_and_passed(
    tmp_path: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = bytearray(whole.read_bytes())
    start, end = spans()[4]
    content[start + 40] ^= 1
    whole.write_bytes(content)
    with caplog.at_level(logging.ERROR), spool_in(tmp_path) as spool:
        assert spool.recovery.wait(30)
        assert bodies_of(spool) == _BODIES[:4] + _BODIES[5:]
        kinds = {each.what: each for each in spool.damage()}
        assert set(kinds) == {"damaged", "missing"}
        assert (spool.path / "aside" / kinds["damaged"].name).read_bytes() == content[start:end]
        assert spool.statistics().damaged == 2
        # The file is drained and goes; what was damaged in it stays.
        spool.release(spool.read(0, 1000)[-1].seq)
        assert not whole.exists()
        assert len(spool.damage()) == 2
    assert sum("damaged" in record.message for record in caplog.records) == 1


def test_records_cut_off_at_a_boundary_are_missed_by_the_next_file(tmp_path: Path) -> None:
    with spool_in(tmp_path, max_file_records=5) as spool:
        for body in _BODIES:
            spool.append([body], JSON)
        first = spool_files(spool)[0]
    os.truncate(first, spans()[2][1])
    with spool_in(tmp_path) as spool:
        assert bodies_of(spool) == _BODIES[:3] + _BODIES[5:]
        (missing,) = spool.damage()
        assert missing.what == "missing"


def test_a_file_without_its_first_page_still_gives_what_follows(tmp_path: Path) -> None:
    with spool_in(tmp_path, max_file_records=20) as spool:
        for _ in range(4):
            spool.append(_BODIES, JSON)
        second = spool_files(spool)[1]
    content = bytearray(second.read_bytes())
    content[:512] = bytes(512)
    second.write_bytes(content)
    with spool_in(tmp_path) as spool:
        kept = bodies_of(spool)
    assert kept == _BODIES + _BODIES[3:] + _BODIES * 2


def test_what_cannot_be_copied_aside_is_not_removed(tmp_path: Path, whole: Path) -> None:
    content = bytearray(whole.read_bytes())
    content[spans()[4][0] + 40] ^= 1
    whole.write_bytes(content)
    (whole.parent / "aside").write_bytes(b"in the way")
    spool = open_spool(tmp_path)
    records = spool.read(0, 1000)
    assert [record.body for record in records] == _BODIES[:4] + _BODIES[5:]
    spool.release(records[-1].seq)
    spool.close()
    assert whole.exists()


def test_a_file_of_a_later_version_is_neither_read_nor_passed(tmp_path: Path, whole: Path) -> None:
    from zlib import crc32

    from queen.errors import SpoolFailed

    content = bytearray(whole.read_bytes())
    content[4] = 2
    content[60:64] = crc32(content[:60]).to_bytes(4, "little")
    whole.write_bytes(content)
    with spool_in(tmp_path) as spool:
        spool.append([b"later"], JSON)
        with pytest.raises(SpoolFailed, match="later version"):
            spool.read(0)
        spool.release(spool.released)
    assert whole.read_bytes() == content
