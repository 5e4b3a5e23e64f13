"""Programs that tests start, and that do not outlive them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import AnyStr


@contextmanager
def bound(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """Kill a process when a test leaves it early.

    `with process` alone waits until it ends, and so would a test that has failed, or whose time
    is over, before it has told it to end.
    """
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
