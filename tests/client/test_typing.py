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
# Kept from run to run, beside that of our own settings.
_CACHE = Path(__file__).parents[2] / ".mypy_cache" / "of-users"


def test_the_package_says_that_it_is_typed() -> None:
    assert (_PACKAGE / "py.typed").exists()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy has to say about two programs of users, outside of our own settings."""
    folder = tmp_path_factory.mktemp("typing")
    wrong = folder / "wrong.py"
    wrong.write_text("import queen\n\nqueen.Message({}).transaction_id + 1\nqueen.nothing\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"]
    done = subprocess.run(
        [*command, "--cache-dir", str(_CACHE), str(_PROGRAM), str(wrong)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(_PACKAGE.parent)},
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_users_program_has_the_types_it_expects(told: list[str]) -> None:
    assert [line for line in told if not line.startswith("wrong.py:")] == []


@pytest.mark.slow
def test_a_wrong_program_is_found(told: list[str]) -> None:
    found = "\n".join(line for line in told if line.startswith("wrong.py:"))
    assert 'Unsupported operand types for + ("str" and "int")' in found
    assert 'Module has no attribute "nothing"' in found
