"""A program that ends without closing its client ends quietly, and in good order."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from queen import SyncQueen
from tests.client.fake import Fake
from tests.conftest import ServerProcess

_HEAD = """
import sys, threading
from queen import SyncQueen
queen = SyncQueen(sys.argv[1])
name = sys.argv[2]
"""
_LOOP = "loop = iter(queen.queue(name).batch(3)); print(next(loop).data)"
_PROGRAMS = {
    "nothing": "",
    "a call": "queen.queue(name).push(9)",
    "an open loop": _LOOP,
    "a loop that was left": "for message in queen.queue(name).batch(3):\n    break",
    "a replay": "read = queen.queue(name).replay(); print(next(read).data)",
    "a closed client": f"{_LOOP}\nqueen.close()",
    "an exception": f"{_LOOP}\nsys.exit(0)",
    "another thread": (
        f"def work():\n    global loop\n    {_LOOP}\n"
        "thread = threading.Thread(target=work)\nthread.start()"
    ),
}


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "always", "-c", _HEAD + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("program", _PROGRAMS.values(), ids=_PROGRAMS)
def test_it_ends_quietly(server: ServerProcess, queue: str, program: str) -> None:
    with SyncQueen(server.url) as queen:
        queen.queue(queue).push([1, 2, 3])
    ended = run(program, server.url, queue)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_was_at_hand_comes_again_and_what_was_buffered_is_stored(
    server: ServerProcess, sync_queen: SyncQueen, queue: str
) -> None:
    sync_queen.queue(queue).push([1, 2, 3])
    buffered = f"queen.queue(name + '-out').buffer(1000, 3_600_000).push('kept')\n{_LOOP}"
    ended = run(buffered, server.url, queue)
    assert (ended.returncode, ended.stderr) == (0, "")
    again = sync_queen.queue(queue).pop(batch=3, wait_s=20)
    assert (again[0].data, again[0].attempt) == (1, 2)
    (kept,) = sync_queen.queue(f"{queue}-out").pop(wait_s=20)
    assert kept.data == "kept"


async def test_a_server_that_hangs_does_not_keep_a_program_from_ending() -> None:
    async with Fake(lambda _request: None).running() as fake:
        program = "queen.queue(name).buffer(1000, 3_600_000).push('lost')"
        ended = await asyncio.to_thread(run, program, fake.url, "q")
    assert ended.returncode == 0
    # Whoever logs nothing reads it on the last resort of Python.
    assert ended.stderr == "1 buffered messages were not sent\n"
