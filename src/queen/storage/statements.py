"""Named SQL: every statement lives in a file and is called by its name.

    -- name: read_after :many
    -- What it is for.
    select ...

The word after the colon says what comes back: `:many` rows, `:one` value, `:exec` nothing.
A file is valid SQL as it stands, so any tool can read it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

_NAME = re.compile(r"^-- name: (\w+) :(many|one|exec)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    name: str
    returns: str
    sql: str


def sql_files(folder: Traversable) -> list[tuple[str, str]]:
    """Return name and text of every SQL file of a folder, in order of name."""
    found = [
        (file.name, file.read_text()) for file in folder.iterdir() if file.name.endswith(".sql")
    ]
    return sorted(found)


def parse_statements(text: str) -> list[Statement]:
    parts = _NAME.split(text)[1:]
    return [
        Statement(name, returns, body.strip())
        for name, returns, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    ]


@cache
def statements() -> dict[str, Statement]:
    """Return all named statements; a name used twice is an error."""
    found: dict[str, Statement] = {}
    for file, text in sql_files(files("queen.storage") / "sql" / "queries"):
        for statement in parse_statements(text):
            if statement.name in found:
                raise ValueError(f"{file}: the name {statement.name} is taken")
            found[statement.name] = statement
    return found
