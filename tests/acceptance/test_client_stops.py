"""A consumer that is stopped finishes its message and gives the rest back.

`QUEEN_TEST_STOPS` sets how often.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from queen import Queen
from tests.conftest import ServerProcess
from tests.programs import bound
from tests.waiting import spend

_STOPS = int(os.environ.get("QUEEN_TEST_STOPS", "20"))
_LEASE_S = 20
_PARTITIONS = 4
_ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300 + 4 * _STOPS)
async def test_stops_at_random_moments(server: ServerProcess, queue: str, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    effects.touch()
    pushed = 0
    async with Queen(server.url) as queen:
        await queen.queue(queue).config(lease_time=_LEASE_S, retry_limit=100).create()
        for _ in range(_STOPS):
            # Never fewer than a run can do, never so many that the end takes long.
            missing = pushed - len(_lines(effects))
            while missing < 200:
                for partition in range(_PARTITIONS):
                    numbers = list(range(pushed, pushed + 50))
                    await queen.queue(queue).partition(str(partition)).push(numbers)
                    pushed += 50
                    missing += 50
            _run_and_stop(server.url, queue, effects)
        # Whatever was given back is there at once: nothing waits for a lease to lapse.
        group = queen.queue(queue).group("g").batch(100).partitions(_PARTITIONS)
        rest = [one async for one in group.idle(0.5).consume()]
    done = [line.split() for line in _lines(effects)]
    counted = Counter(int(number) for number, _ in done)
    counted.update(one.data for one in rest)
    print(f"{len(done)} handled in {_STOPS} runs, {len(rest)} given back at the end")
    assert [n for n, times in counted.items() if times > 1] == [], "processed twice"
    assert sorted(counted) == list(range(pushed)), "lost"
    # A lease that lapsed would have counted as an attempt.
    assert {attempt for _, attempt in done} == {"1"}
    assert {one.attempt for one in rest} == {1}
    assert len(done) > _STOPS


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def _run_and_stop(url: str, queue: str, effects: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.acceptance.stoppable", url, queue, str(effects)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
    )
    with bound(process):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        spend(random.uniform(0, 0.4))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=_LEASE_S) == 0
