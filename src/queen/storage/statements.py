"""Named SQL: every statement lives in a file and is called by its name.

    -- name: read_after :many
    -- What it is for.
    select ...

The word after the colon says what comes back: `:many` rows, `:one` value, `:exec` nothing.
A file is valid SQL as it stands, so any tool can read it.

    -- name: release_lease :many once

A statement that writes says what happens when it is sent `again` by somebody who does not know
whether the first one was committed: nothing that matters, and the answer is still true. One
that says `once` is not sent a second time: it would write twice, take more, or answer that there
was nothing to do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

_NAME = re.compile(r"^-- name: (\w+) :(many|one|exec)(?: (once|again))?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    name: str
    returns: str
    sql: str
    # What a statement that writes says of being sent twice; None for one that only reads.
    repeated: str | None = None


def sql_files(folder: Traversable) -> list[tuple[str, str]]:
    """Return name and text of every SQL file of a folder, in order of name."""
    found = [
        (file.name, file.read_text()) for file in folder.iterdir() if file.name.endswith(".sql")
    ]
    return sorted(found)


def parse_statements(text: str) -> list[Statement]:
    parts = _NAME.split(text)[1:]
    return [
        Statement(name, returns, body.strip(), repeated)
        for name, returns, repeated, body in zip(
            parts[::4], parts[1::4], parts[2::4], parts[3::4], strict=True
        )
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
