"""Records of one partition become one append where nothing tells them apart."""

from __future__ import annotations

import random

import pytest

from queen.errors import InvalidFrame
from queen.service.log.append import Append
from queen.service.spooling.records import KIND_ITEMS, MOVED, Gathering, encode_append
from queen.spool.disk.format import Record


def record(seq: int, append: Append, kind: int = KIND_ITEMS) -> Record:
    return Record(seq, kind, 0, 0, encode_append(append))


def append_of(partition: str, number: int, **extras: list[str | None]) -> Append:
    return Append("q", partition, [b"%d" % number], [b'"%d"' % number], 70, extras or None)


def gathered(records: list[Record]) -> list[tuple[str, list[int], list[bytes]]]:
    gathering = Gathering()
    for each in records:
        gathering.add(each)
    return [
        (spooled.key[1], [each.seq for each in spooled.records], list(spooled.append.ids))
        for spooled in gathering.end()
    ]


def test_a_partition_is_one_append() -> None:
    records = [record(seq, append_of("ab"[seq % 2], seq)) for seq in range(5)]
    assert gathered(records) == [
        ("a", [0, 2, 4], [b"0", b"2", b"4"]),
        ("b", [1, 3], [b"1", b"3"]),
    ]
    gathering = Gathering()
    for each in records:
        gathering.add(each)
    spooled = gathering.end()[0]
    assert spooled.append.payloads == [b'"0"', b'"2"', b'"4"']
    assert spooled.append.weight == 3 * (3 + 64)


def test_what_is_not_alike_stays_alone_and_in_order() -> None:
    tried = append_of("a", 2)
    tried.first_try_head = 7
    records = [
        record(0, append_of("a", 0)),
        record(1, append_of("a", 1)),
        record(2, tried),
        record(3, append_of("a", 3)),
        record(4, append_of("a", 4, traceId=["t"])),
        record(5, append_of("a", 5), KIND_ITEMS | MOVED),
        record(6, append_of("a", 6), KIND_ITEMS | MOVED),
        record(7, append_of("a", 7)),
    ]
    assert [seqs for _, seqs, _ in gathered(records)] == [[0, 1], [2], [3], [4], [5], [6], [7]]


def test_each_partition_keeps_its_order_whatever_is_between() -> None:
    chance = random.Random(1)
    records = []
    for seq in range(500):
        append = append_of(chance.choice("abcd"), seq)
        if chance.random() < 0.1:
            append.first_try_head = 1
        records.append(record(seq, append))
    by_partition: dict[str, list[int]] = {}
    for partition, seqs, _ in gathered(records):
        by_partition.setdefault(partition, []).extend(seqs)
    assert sorted(seq for seqs in by_partition.values() for seq in seqs) == list(range(500))
    assert all(seqs == sorted(seqs) for seqs in by_partition.values())


def test_what_cannot_be_read_is_told_and_changes_nothing() -> None:
    gathering = Gathering()
    gathering.add(record(0, append_of("a", 0)))
    with pytest.raises(InvalidFrame):
        gathering.add(Record(1, KIND_ITEMS, 0, 0, b"\xff"))
    with pytest.raises(InvalidFrame, match="payload"):
        gathering.add(record(1, Append("q", "a", [b"1", b"2"], [b"1"], 70)))
    gathering.add(record(2, append_of("a", 2)))
    (spooled,) = gathering.end()
    assert [each.seq for each in spooled.records] == [0, 2]
