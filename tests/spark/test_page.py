"""The page about reading with Spark shows what happens."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "read-with-spark.md"
_BLOCKS = re.compile(r"^```py\n(.*?)^```$\n+^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_example_prints_what_the_page_says(
    spark: SparkSession, server: ServerProcess, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEEN_URL", server.url)
    ((program, said),) = _BLOCKS.findall(PAGE.read_text())
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(program.replace('"orders"', f'"{queue}"'), {})  # noqa: S102
    assert output.getvalue() == said
