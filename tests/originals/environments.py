"""Environments of their own for the clients published for the original broker.

They import as `queen`, as we do, so they never share a process or an environment with us.
An environment is made once and kept; it is made again when its pinned versions change, or
the Python that it was made with.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The versions that play every scenario whose calls they have.
VERSIONS = ("0.15.0", "2.6.0")
# The published versions read the answers of acks in three ways: 0.7.4; 0.12.0 to 2.0.0, as
# 0.15.0 does; 2.0.2 to 2.6.0. One of each plays the scenarios about that.
READERS_OF_ACKS = ("0.7.4", *VERSIONS)
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR")


def python_of(version: str) -> Path:
    """Return the interpreter that has one version of the client, made if it must be."""
    home = ROOT / ".originals" / version
    pins = ROOT / "requirements" / f"original-{version}.txt"
    wanted = f"{sys.executable} {sys.version}\n{pins.read_text()}"
    made_from = home / "made-from.txt"
    python = home / "bin" / "python"
    with _alone():
        if not made_from.exists() or made_from.read_text() != wanted:
            shutil.rmtree(home, ignore_errors=True)
            _run(sys.executable, "-m", "venv", str(home))
            install = ("-m", "pip", "install", "--quiet", "--require-hashes")
            _run(str(python), *install, "-r", str(pins))
            made_from.write_text(wanted)
    return python


@contextmanager
def _alone() -> Iterator[None]:
    """Hold off everybody else who would make an environment, in this run or in another."""
    folder = ROOT / ".originals"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def bare_environment() -> dict[str, str]:
    """The variables a client sees: no path to our sources, and no proxy."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def _run(*command: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
