"""`pytest --cpu`: which files of the suite the processor works for.

A test makes servers, clusters and JVMs work, so its seconds are those of its process and of
all that came from it, whether they still run or have ended. Seconds of the clock would say how
busy the machine was with something else.

What runs on between two tests, a server that looks at its timers, is counted to the later one,
and what a shared fixture takes to start to the test that was the first to ask for it.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

_ADOPT = 36  # PR_SET_CHILD_SUBREAPER
_TICKS = os.sysconf("SC_CLK_TCK")
_TESTS_SHOWN = 40


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu", action="store_true", help="sum up the CPU seconds of every file")


class Meter:
    """Adds to each report what its phase has cost."""

    def __init__(self) -> None:
        # A cluster is left by whoever started it. It stays in the family.
        ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)
        self._read_at = family_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        began = time.process_time()
        now = family_s()
        vars(report)["cpu_s"] = now - self._read_at
        # To look at the family is not the work of the test.
        self._read_at = now + time.process_time() - began
        return report


class Table:
    """Sums the reports of all workers."""

    def __init__(self) -> None:
        self._of_files: defaultdict[str, float] = defaultdict(float)
        self._of_tests: defaultdict[str, float] = defaultdict(float)
        self._of_setups: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = getattr(report, "cpu_s", 0.0)
        self._of_files[report.nodeid.partition("::")[0]] += seconds
        (self._of_setups if report.when == "setup" else self._of_tests)[report.nodeid] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("CPU seconds")
        write = terminalreporter.write_line
        write(f"{sum(self._of_files.values()):8.1f} in all")
        for file, seconds in _most(self._of_files):
            write(f"{seconds:8.1f} {file}")
        for title, counted in (("tests", self._of_tests), ("setups", self._of_setups)):
            write(f"The costliest {title}:")
            for nodeid, seconds in _most(counted)[:_TESTS_SHOWN]:
                write(f"{seconds:8.1f} {nodeid}")


def _most(counted: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(counted.items(), key=lambda one: -one[1])


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--cpu"):
        return
    if not (config.option.numprocesses or 0) or hasattr(config, "workerinput"):
        config.pluginmanager.register(Meter())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table())


def family_s() -> float:
    """Return the CPU seconds of this process and of all that came from it."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            text = Path(entry.path, "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The name of the program stands in brackets, and may hold anything.
        fields = text.rpartition(")")[2].split()
        parents[int(entry.name)] = int(fields[1])
        # Its own, in user and system mode, and that of children which were waited for.
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    return sum(ticks[pid] for pid in ticks if _descends(pid, parents)) / _TICKS


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid and pid != os.getpid():
        pid = parents.get(pid, 0)
    return pid == os.getpid()
