"""`pip install queen` alone: the client and the command line, without a server."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ServerProcess

_ROOT = Path(__file__).parents[2]
# Of the client and the command line; everything else is an extra.
_NOT_INSTALLED = ("asyncpg", "uvloop", "numpy", "psutil", "httptools", "cryptography")

PROGRAM = """
import importlib.util, sys, tempfile, queen
print(queen.__file__)
for name in sys.argv[3:]:
    assert importlib.util.find_spec(name) is None, name
with queen.SyncQueen(sys.argv[1]) as client:
    orders = client.queue(sys.argv[2])
    orders.push({"one": 1})
    orders.push(list(range(300)))
    print([message.data for message in orders.batch(2).limit(2)])
    print(len(list(orders.replay())))
with queen.SyncQueen("http://127.0.0.1:1", spool=tempfile.mkdtemp()) as client:
    print(client.queue("orders").push(1)[0].status)
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_client_alone(server: ServerProcess, queue: str, tmp_path: Path) -> None:
    wheel = _built(tmp_path)
    with zipfile.ZipFile(wheel) as opened:
        assert "queen/py.typed" in opened.namelist()
    place = tmp_path / "environment"
    venv.create(place, with_pip=False, symlinks=True)
    installed = _run(
        [sys.executable, "-m", "pip", "--python", str(place), "install", "--quiet", str(wheel)]
    )
    if installed.returncode and "No matching distribution" in installed.stderr:
        pytest.skip("the packages that the client needs cannot be had here")
    assert installed.returncode == 0, installed.stderr
    python = str(place / "bin" / "python")
    used = _run([python, "-I", "-c", PROGRAM, server.url, queue, *_NOT_INSTALLED])
    assert used.returncode == 0, used.stderr
    where, *printed = used.stdout.splitlines()
    assert where.startswith(str(place))
    assert printed == ["[{'one': 1}, 0]", "301", "buffered"]
    helped = _run([str(place / "bin" / "queen"), "--help"])
    assert helped.returncode == 0, helped.stderr
    assert "serve" in helped.stdout


def _built(folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    # Not ours: the environment of the tests, which would find the source tree.
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    return subprocess.run(
        command, env=clean, cwd="/", capture_output=True, text=True, check=False, timeout=300
    )
