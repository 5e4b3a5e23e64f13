"""The pages about pipelines do what they say.

The ```python blocks of a page are one program, and its `queen pipeline` commands are run where
they stand. A block that begins with the name of a file in a comment is that file. The lines of
its ```text blocks are what the program prints. All pages share a server; their queues have
different names.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from queen.cli.main import app
from tests.conftest import ServerProcess
from tests.docs.test_python_pages import blocks
from tests.install.pasting import WAYS_IN, missing_of, pasted
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PAGES = [
    "docs/howto/backfill.md",
    "docs/howto/exactly-once-with-spark.md",
    "docs/howto/join-with-spark.md",
    "docs/howto/late-data-with-spark.md",
    "docs/howto/load-history.md",
    "docs/howto/pipeline-functions.md",
]
# It is run after the other tutorials, on the broker that they have left.
_LAST_WAY_IN = "docs/tutorial/first-pipeline.md"
_FILE = re.compile(r"# (\w+\.py)\n")
_BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's own, with a clone in it."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("home", "spark")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_prints_what_it_says(
    page: str, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEEN_URL", server.url)
    read(page, server)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark")
def test_the_ways_in_follow_one_another_on_one_broker(
    home: Path, start_server: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who goes from one to the next has what the last one left, and sees what the page says."""
    resp_port = free_port()
    words = ("--data-dir", str(home / "data"), "--resp-port", str(resp_port))
    server = start_server(*words, installed=True)
    env = {**os.environ, "QUEEN_PORT": str(server.port), "QUEEN_RESP_PORT": str(resp_port)}
    env |= {"QUEEN_URL": server.url, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for page in WAYS_IN:
        shown = pasted(page, "python -m asyncio", home, env)
        assert missing_of(blocks(page)[1], shown) == [], (page, shown)
    monkeypatch.setenv("QUEEN_URL", server.url)
    read(_LAST_WAY_IN, server)


def read(page: str, server: ServerProcess) -> None:
    """Do what a page says; what it prints is what the page says."""
    # Spark's own processes have started before the server, and do not know where it is.
    known = f'format("queen").option("url", "{server.url}")'
    space: dict[str, object] = {}
    printed = io.StringIO()
    said = ""
    for kind, text in _BLOCK.findall((ROOT / page).read_text()):
        if kind == "text":
            said += text
        elif file := _FILE.match(text):
            Path(file[1]).write_text(text)
        elif kind == "python":
            code = compile(text.replace('format("queen")', known), page, "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, space)  # noqa: S102
        else:
            _run(text)
    assert printed.getvalue() == said


def _run(commands: str) -> None:
    for line in commands.splitlines():
        words = shlex.split(line)
        if words[:2] == ["queen", "pipeline"]:
            done = CliRunner().invoke(app, words[1:])
            assert done.exit_code == 0, (line, done.output)
