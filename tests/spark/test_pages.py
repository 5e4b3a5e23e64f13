"""The pages about pipelines do what they say.

The ```python blocks of a page are one program, and its `queen pipeline` commands are run where
they stand. A block that begins with the name of a file in a comment is that file. The lines of
its ```text blocks are what the program prints. All pages share a server; their queues have
different names.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from queen.cli.main import app
from tests.conftest import ServerProcess

ROOT = Path(__file__).parents[2]
PAGES = [
    "docs/tutorial/first-pipeline.md",
    "docs/howto/backfill.md",
    "docs/howto/exactly-once-with-spark.md",
    "docs/howto/join-with-spark.md",
    "docs/howto/late-data-with-spark.md",
    "docs/howto/load-history.md",
    "docs/howto/pipeline-functions.md",
]
_FILE = re.compile(r"# (\w+\.py)\n")
_BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def at_home(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ServerProcess:
    """A reader with a home of their own, in a clone, who has started a server."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUEEN_URL", server.url)
    return server


@pytest.mark.parametrize("page", PAGES)
def test_a_page_prints_what_it_says(page: str, spark: SparkSession, at_home: ServerProcess) -> None:
    # Spark's own processes have started before the server, and do not know where it is.
    known = f'format("queen").option("url", "{at_home.url}")'
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
