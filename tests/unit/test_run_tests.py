"""The runner of the tests: what fails alone fails the run, what fails beside others is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PASSES = "def test_passes(): pass\n"
_FAILS = "def test_fails(): assert False\n"
# The first run leaves a trace by which the second knows that it is the second.
_FAILS_ONCE = """
from pathlib import Path
def test_fails_once():
    trace = Path(__file__).with_name("trace")
    was_there, _ = trace.exists(), trace.touch()
    assert was_there
"""
_MANY_FAIL = (
    "import pytest\n@pytest.mark.parametrize('n', range(9))\ndef test_fails(n): assert False\n"
)


@pytest.mark.parametrize(
    ("tests", "code", "said", "unsaid"),
    [
        (_PASSES, 0, "1 passed", "alone"),
        (_PASSES + _FAILS, 1, "1 failed beside others and are run again", "passed alone"),
        (_PASSES + _FAILS_ONCE, 0, "passed alone:\n  test_own.py::test_fails_once", "1 error"),
        (_MANY_FAIL, 1, "9 failed", "run again"),
        ("def broken(:\n", 2, "SyntaxError", "passed alone"),
        ("", 5, "no tests ran", "run again"),
    ],
    ids=["passes", "fails", "fails once", "many fail", "broken", "empty"],
)
def test_a_run(tmp_path: Path, tests: str, code: int, said: str, unsaid: str) -> None:
    (tmp_path / "test_own.py").write_text(tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = session\n")
    own = [sys.executable, "-c", f"import sys; sys.path.append({str(_ROOT)!r})\n" + _RUN]
    ran = subprocess.run(own, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert said in ran.stdout and unsaid not in ran.stdout


_RUN = "from tools.run_tests import main\nsys.exit(main(['-p', 'no:randomly']))"
