"""Drivers in processes of their own, which can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped,unused-ignore]

from tests.waiting import until

_LOOK_S = 0.002
_LINES = 3000


class Driver:
    """`python -m <module> <arguments as JSON>`, with everything that it starts."""

    def __init__(self, module: str, arguments: dict[str, Any], log: Path) -> None:
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(arguments)],
                stdout=errors,
                stderr=errors,
                cwd=Path(__file__).parents[2],
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def said(self) -> str:
        return self._log.read_text()[-_LINES:]

    def until(self, happened: Callable[[], bool], timeout_s: float = 240) -> None:
        """Look until it has happened, as long as the driver lives."""

        def looked() -> bool:
            found = happened()
            assert found or self.is_running, self.said
            return found

        until(looked, timeout_s, _LOOK_S)

    def kill(self) -> None:
        """Kill Python and its JVM at once: they are a group of their own."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=20)

    def workers(self) -> list[psutil.Process]:
        """Return Spark's Python processes that run tasks and plan reads: forks of its daemon."""
        found = []
        for child in psutil.Process(self._process.pid).children(recursive=True):
            try:
                parent = child.parent()
                is_fork = parent is not None and "pyspark.daemon" in parent.cmdline()
            except psutil.NoSuchProcess:
                continue
            if is_fork:
                found.append(child)
        return found
