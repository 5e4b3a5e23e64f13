"""The README, typed word for word in a new clone.

The environment that `make setup` would make takes minutes. It is the one that the tests run in,
unless `QUEEN_TEST_LONG` is set: then it is made, and a wheel is built and installed as well.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.test_python_pages import blocks
from tests.install.closures import ROOT
from tests.install.pasting import WAYS_IN, missing_of, pasted
from tests.long import IS_LONG, LONG
from tests.ports import free_port
from tests.programs import bound

_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(
    r"(?:queue|sources|push|to|late_to|xadd|create_group|stream)"
    r"""\(\s*"([\w.-]+)"(?:, "([\w.-]+)")?"""
)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is in the repository, and of nothing else that is in its folder."""
    folder = tmp_path_factory.mktemp("clone") / "queen"
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    if not IS_LONG:
        made = folder / ".venv"
        made.mkdir()
        (made / "bin").symlink_to(Path(sys.executable).parent)
        (made / ".installed").touch()
    return folder


def _environment(port: int, home: Path) -> dict[str, str]:
    """As a newcomer has it; only the port is not the usual one, which others may have."""
    kept = ("PATH", "LANG", "TMPDIR", "VIRTUAL_ENV")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    env |= {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "SSL_"))}
    where = {"QUEEN_PORT": str(port), "QUEEN_URL": f"http://127.0.0.1:{port}"}
    return {**env, **where, "HOME": str(home), "QUEEN_RESP_PORT": str(free_port())}


def first_steps() -> str:
    """Return what the README has a newcomer type in the first terminal."""
    found = _SHELL.search((ROOT / "README.md").read_text())
    assert found is not None
    assert found[1].splitlines()[-1].startswith("queen serve ")
    return found[1]


@contextmanager
def first_terminal(clone: Path, env: dict[str, str]) -> Iterator[None]:
    """Type the first steps, and leave the broker running as long as this lasts."""
    # The shell becomes the broker, so that it can be told to end.
    typed = first_steps().replace("queen serve", "exec queen serve")
    shell = ["sh", "-e", "-c", typed]
    running = subprocess.Popen(
        shell, cwd=clone, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with bound(running) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("queen ready on "):
                break
        else:
            raise AssertionError(said)
        yield
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(1200 if IS_LONG else 300)
def test_what_the_readme_says_works(clone: Path, tmp_path: Path) -> None:
    env = _environment(free_port(), tmp_path)
    with first_terminal(clone, env):
        second = ". .venv/bin/activate\npython -m asyncio"
        shown = pasted("README.md", second, clone, env)
        assert missing_of(blocks("README.md")[1], shown) == [], shown


def test_no_two_ways_in_use_one_queue() -> None:
    of_page = {
        page: {name for found in _NAMED.findall(blocks(page)[0]) for name in found if name}
        for page in [*WAYS_IN, "docs/tutorial/first-pipeline.md"]
    }
    assert all(of_page.values())
    used = [name for names in of_page.values() for name in names]
    shared = {name for name in used if used.count(name) > 1}
    # A group may be called alike in two streams.
    assert shared <= {"senders"}


@LONG
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_wheel_is_installed_as_the_page_says(clone: Path, tmp_path: Path) -> None:
    env = _environment(free_port(), tmp_path)
    page = (ROOT / "docs/howto/install.md").read_text()
    built, install = _SHELL.findall(page)[1:3]
    assert built == "make wheel\n"
    line = next(line for line in install.splitlines() if "[server]" in line)
    typed = f"{built}python3 -m venv other\n. other/bin/activate\n{line}\nqueen serve --help"
    done = subprocess.run(
        ["sh", "-e", "-c", typed], cwd=clone, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--data-dir" in done.stdout
