"""Fixtures: play a scenario in the environment of an original client."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.originals.environments import (
    READERS_OF_ACKS,
    ROOT,
    VERSIONS,
    bare_environment,
    python_of,
)
from tests.originals.scene import DONE, FAILED, PAUSED


class Original:
    """A process that has one published client, and plays one scenario after the other."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._running: subprocess.Popen[str] | None = None

    def play(
        self, scenario: str, queue: str, urls: tuple[str, ...], meanwhile: Callable[[], object]
    ) -> None:
        """Play `<module>.<scenario>` to its end; `meanwhile` is done at its pause."""
        self._say(json.dumps({"scenario": scenario, "queue": queue, "urls": urls}))
        said = f"{scenario} with {self.version}:\n"
        try:
            while (line := self._hear()) not in (DONE, FAILED, ""):
                if line == PAUSED:
                    meanwhile()
                    self._say("go on")
                said += f"{line}\n"
        except BaseException:
            self.stop()
            raise
        if line == "":
            self.stop()
        assert line == DONE, said

    def _say(self, line: str) -> None:
        if self._running is None:
            command = [str(python_of(self.version)), "-u", "-m", "tests.originals.run"]
            self._running = subprocess.Popen(
                [*command, self.version],
                cwd=ROOT,
                env=bare_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        assert self._running.stdin is not None
        self._running.stdin.write(f"{line}\n")
        self._running.stdin.flush()

    def _hear(self) -> str:
        """Return the next line that is not empty; the empty one means that the process ended."""
        assert self._running is not None and self._running.stdout is not None
        for line in self._running.stdout:
            if line.strip():
                return line.rstrip()
        return ""

    def stop(self) -> None:
        if self._running is not None:
            self._running.kill()
            with self._running:
                self._running = None


@pytest.fixture(scope="session")
def originals() -> Iterator[dict[str, Original]]:
    """One process for each version, kept through tests in any order."""
    started = {version: Original(version) for version in READERS_OF_ACKS}
    yield started
    for each in started.values():
        each.stop()


@pytest.fixture(params=VERSIONS)
def original(request: pytest.FixtureRequest, originals: dict[str, Original]) -> Original:
    return originals[request.param]


Play = Callable[..., None]


@pytest.fixture
def play(original: Original, queue: str) -> Play:
    """Play a scenario against servers, with a queue of its own."""

    def run(scenario: str, *urls: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        original.play(scenario, queue, urls, meanwhile)

    return run
