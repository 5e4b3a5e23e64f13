"""A writer that is killed at any moment: what was acknowledged is there, in order, once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from queen.spool import Spool, SpoolOptions, SpoolRoot
from tests.unit.spool.disks import read_all

# Every thread says what is acknowledged, in one write each, so that lines are whole.
_WRITER = """
import os, sys, threading
from pathlib import Path
from queen.spool import Spool, SpoolOptions, SpoolRoot

options = SpoolOptions(min_free_bytes=0, max_file_bytes=20_000)
spool = Spool(SpoolRoot(Path(sys.argv[1])).claim(), options)

def write(name):
    number = 0
    while True:
        count = 1 + (number * 7 + name) % 5
        bodies = [b"%s.%d.%d" % (sys.argv[2].encode(), name, number + i) for i in range(count)]
        seqs = spool.append(bodies, 2, durable=name % 2 == 0)
        lines = b"".join(b"%d %s\\n" % pair for pair in zip(seqs, bodies))
        os.write(1, lines)
        number += count

for name in range(4):
    threading.Thread(target=write, args=(name,)).start()
"""


@pytest.mark.parametrize("seed", range(3))
def test_kill_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    """The machine goes on, so records that were not synced are there as well."""
    chance = random.Random(seed)
    acknowledged: dict[int, bytes] = {}
    for life in range(3):
        acknowledged |= _run_and_kill(tmp_path, f"{seed}-{life}", chance.randint(1, 400))
    spool = Spool(SpoolRoot(tmp_path).claim(), SpoolOptions(min_free_bytes=0))
    try:
        assert spool.recovery.wait(60)
        records = read_all(spool)
        kept = {record.seq: record.body for record in records}
        assert [record.seq for record in records] == sorted(kept)
        assert len(set(kept.values())) == len(records), "each once"
        assert acknowledged.items() <= kept.items()
        _check_order([record.body for record in records])
        assert all(each.what == "torn" for each in spool.damage())
        assert spool.statistics().records == len(records)
    finally:
        spool.close()


def _run_and_kill(root: Path, name: str, acknowledgements: int) -> dict[int, bytes]:
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(root), name], stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    data = b""
    while data.count(b"\n") < acknowledgements:
        part = os.read(writer.stdout.fileno(), 4096)
        assert part, "the writer has ended by itself"
        data += part
    writer.kill()
    rest, _ = writer.communicate()
    lines = [line.split(b" ") for line in (data + rest).split(b"\n")[:-1]]
    return {int(seq): body for seq, body in lines}


def _check_order(bodies: list[bytes]) -> None:
    following: dict[bytes, int] = {}
    for body in bodies:
        writer, _, number = body.rpartition(b".")
        assert int(number) == following.get(writer, 0)
        following[writer] = int(number) + 1
