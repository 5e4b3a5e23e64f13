"""The plugin in a pytest of its own, as users run it, and the pages that show it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.request import urlopen

import pytest

import queen.testing
from queen.errors import MissingExtra, StartupError
from queen.extras import PACKAGES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "test-your-consumer.md"
_EXAMPLE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ASYNCIO = ("-p", "pytest_asyncio.plugin", "-o", "asyncio_default_fixture_loop_scope=function")
_ANYIO = ("-p", "anyio.pytest_plugin")

_BOTH_TESTS = """
import pytest
from queen.testing import expect

@pytest.mark.{mark}
async def test_one(queen, queue_name, queen_clock):
    await queen.queue(queue_name).config(delayed_processing=60).create()
    await queen.queue(queue_name).push({{"n": 1}})
    await queen_clock.advance(61, queue=queue_name)
    (message,) = await queen.queue(queue_name).pop(wait_s=20)
    await message.ack()
    await expect(queen, queue_name).to_be_empty()

@pytest.mark.{mark}
async def test_two(queen, queue_name):
    assert await expect(queen, queue_name).messages() == []
"""
_ONE_BACKEND = """
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run the tests in a folder with nothing but the plugins that are named."""
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "queen.testing.plugin"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("mark", "plugins"),
    [
        ("asyncio", _ASYNCIO),
        ("asyncio", (*_ASYNCIO, "--asyncio-mode=auto")),
        ("anyio", _ANYIO),
        ("anyio", (*_ASYNCIO, *_ANYIO)),
    ],
    ids=["asyncio", "asyncio-auto", "anyio", "anyio-beside-asyncio"],
)
def test_the_fixtures_work_with_what_runs_async_tests(
    tmp_path: Path, mark: str, plugins: tuple[str, ...]
) -> None:
    (tmp_path / "test_it.py").write_text(_BOTH_TESTS.format(mark=mark))
    (tmp_path / "conftest.py").write_text(_ONE_BACKEND)
    code, said = run_pytest(tmp_path, *plugins)
    assert code == 0, said
    assert "2 passed" in said


def test_the_examples_of_the_page_pass(tmp_path: Path) -> None:
    examples = dict(_EXAMPLE.findall(PAGE.read_text()))
    assert {"billing.py", "test_billing.py", "test_sync_billing.py", "test_time.py"} < set(examples)
    for name, text in examples.items():
        (tmp_path / name).write_text(text)
    code, said = run_pytest(tmp_path, *_ASYNCIO)
    assert code == 0, said
    assert "5 passed" in said


def test_the_script_of_the_page_runs(tmp_path: Path) -> None:
    examples = dict(_EXAMPLE.findall(PAGE.read_text()))
    done = subprocess.run(
        [sys.executable, "-c", examples["script.py"]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert done.stdout == "{'order': 1}\n"


def test_a_page_that_shows_a_failure_shows_what_is_printed(tmp_path: Path) -> None:
    shown = re.search(r"^```text\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    (tmp_path / "test_it.py").write_text(
        """
from queen.testing import expect

def test_it(sync_queen):
    queue = sync_queen.queue("orders").group("billing")
    queue.push([{"total": 12}, {"total": 30}])
    (message,) = queue.pop()
    message.ack()
    try:
        expect(sync_queen, "orders", timeout_s=0).to_be_empty(group="billing")
    except AssertionError as error:
        print("AssertionError:", error)
"""
    )
    code, said = run_pytest(tmp_path, "-s")
    assert code == 0, said
    assert shown[1].replace("after 5 s", "after 0 s") in said


def test_the_server_ends_with_the_session_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        """
def test_it(queen_server):
    print("SERVER", queen_server.url, queen_server._folder.name)
"""
    )
    code, said = run_pytest(tmp_path, "-s")
    assert code == 0, said
    found = re.search(r"SERVER (\S+) (\S+)", said)
    assert found is not None
    with pytest.raises(OSError, match="refused"):
        urlopen(f"{found[1]}/health", timeout=5)  # noqa: S310 (a server of our own)
    assert not Path(found[2]).exists()


def test_nothing_starts_and_little_is_imported_unless_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        """
import sys

def test_it():
    heavy = {"asyncpg", "numpy", "uvloop", "rich", "typer", "queen.server"}
    assert not heavy & set(sys.modules)
"""
    )
    code, said = run_pytest(tmp_path)
    assert code == 0, said


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, "server", ("a_module_that_is_not_there",))
    with (
        pytest.raises(MissingExtra, match=r"pip install 'queen\[server\]'"),
        queen.testing.server(),
    ):
        pass


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(StartupError, match="No such option"), queen.testing.server("--no-such"):
        pass


def test_the_plugin_is_announced_to_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"queen": "queen.testing.plugin"}
