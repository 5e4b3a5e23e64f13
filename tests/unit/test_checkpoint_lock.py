"""A checkpoint in use is told before Spark is started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from queen.errors import BadRequest, Conflict
from queen.spark.pipelines import checkpoint_lock

_HOLD = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A checkpoint with a run in another process; Java locks files in the same way."""
    command = (sys.executable, "-c", _HOLD, str(tmp_path / checkpoint_lock._FILE))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield tmp_path
        process.communicate("")


def test_another_run_is_found(held: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_lock, "_PATIENCE_S", 0.2)
    with pytest.raises(Conflict, match=str(held)):
        checkpoint_lock.check_is_free(str(held))


def test_a_folder_that_nobody_uses_is_free(tmp_path: Path) -> None:
    checkpoint_lock.check_is_free(str(tmp_path))
    checkpoint_lock.check_is_free(str(tmp_path / "new"))
    (tmp_path / checkpoint_lock._FILE).touch()
    checkpoint_lock.check_is_free(str(tmp_path))


_START = """
import sys
from queen.spark.pipelines.checkpoint_lock import hold_for_start
with hold_for_start(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_that_is_still_starting_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_lock, "_PATIENCE_S", 0.2)
    folder = str(tmp_path / "new")
    command = (sys.executable, "-c", _START, folder)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(Conflict), checkpoint_lock.hold_for_start(folder):
            pass
        with pytest.raises(Conflict):
            checkpoint_lock.check_is_free(folder)
        process.communicate("")
    with checkpoint_lock.hold_for_start(folder):
        pass


def test_a_checkpoint_that_cannot_be_a_folder_is_told_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(BadRequest, match="no folder"),
        checkpoint_lock.hold_for_start(str(tmp_path / "file" / "in")),
    ):
        pass


def test_a_run_in_the_jvm_keeps_others_from_starting(
    held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_lock, "_PATIENCE_S", 0.2)
    with pytest.raises(Conflict), checkpoint_lock.hold_for_start(str(held)):
        pass
