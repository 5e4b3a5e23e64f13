"""The page about windows as DataFrames does what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "windows-as-dataframes.md"


def test_the_page_prints_what_it_says(
    spark: SparkSession, server: ServerProcess, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEEN_URL", server.url)
    found = re.findall(r"^```(py|text)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    program = "\n".join(text for kind, text in found if kind == "py")
    # Names of its own, on a server that others use too, in the session that runs already.
    for name in ("batches", "orders", "totals"):
        program = program.replace(f'"{name}"', f'"{name}-{queue}"')
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, str(PAGE), "exec"), {})  # noqa: S102
    assert printed.getvalue() == "".join(text for kind, text in found if kind == "text")
