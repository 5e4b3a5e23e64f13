"""Run all tests side by side, and look a second time, alone, at the few that failed.

Four tests at a time on two processors find what only a busy machine shows, and now and then meet
a pause that no test was made for. A test that fails beside others and passes alone is named at
the end and does not fail the run; one that fails alone does. When more than a few fail, it was
not a pause, and nothing is run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SIDE_BY_SIDE = ("-n", "4")
# A pause meets one test of each process, and sometimes its neighbour.
MOST = 6
_SOME_FAILED = 1


def main(options: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as cache:
        code = _pytest(*SIDE_BY_SIDE, "-o", f"cache_dir={cache}", *options)
        failed = _failed(Path(cache))
    if code != _SOME_FAILED or not 0 < len(failed) <= MOST:
        return code
    print(f"\n{len(failed)} failed beside others and are run again alone", flush=True)
    code = _pytest("-n", "0", *failed)
    if code == 0:
        print("\nfailed beside others, passed alone:", *failed, sep="\n  ")
    return code


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def _failed(cache: Path) -> list[str]:
    """Return the names that pytest has written down for its own `--last-failed`."""
    written = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(written.read_text())) if written.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
