"""The public types are what users are told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import queen

_PACKAGE = Path(queen.__file__).parent
_PROGRAM = Path(__file__).with_name("typed_program.py")


def test_the_package_says_that_it_is_typed() -> None:
    assert (_PACKAGE / "py.typed").exists()


@pytest.mark.slow
def test_a_users_program_has_the_types_it_expects(tmp_path: Path) -> None:
    assert _checked(_PROGRAM, tmp_path) == ""


@pytest.mark.slow
def test_a_wrong_program_is_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import queen\n\nqueen.Message({}).transaction_id + 1\nqueen.nothing\n")
    told = _checked(wrong, tmp_path)
    assert 'Unsupported operand types for + ("str" and "int")' in told
    assert 'Module has no attribute "nothing"' in told


def _checked(program: Path, cache: Path) -> str:
    """Return what mypy has to say about a program, outside of our own settings."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"]
    done = subprocess.run(
        [*command, "--cache-dir", str(cache / "cache"), str(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cache,
        env={**os.environ, "MYPYPATH": str(_PACKAGE.parent)},
    )
    assert done.stderr == ""
    return done.stdout
