"""The page about writing from Spark does what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "write-from-spark.md"


def test_the_page_prints_what_it_says(
    spark: SparkSession, server: ServerProcess, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = re.findall(r"^```(python|text)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    program = "\n".join(text for kind, text in found if kind == "python")
    # Names of its own, on a server that others use too, in the session that runs already.
    for name in ("orders", "daily", "load-2026-11-15"):
        program = program.replace(f'"{name}"', f'"{name}-{queue}"')
    program = program.replace('format("queen")', f'format("queen").option("url", "{server.url}")')
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, str(PAGE), "exec"), {})  # noqa: S102
    assert printed.getvalue() == "".join(text for kind, text in found if kind == "text")
