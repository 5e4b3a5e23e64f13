"""Named SQL: every statement lives in a file and is called by its name.

    -- name: read_after :many
    -- What it is for.
    select ...

The word after the colon says how many rows come back, and with that how it is called:

    :many    any number of rows, or none       fetch
    :one     one row, always                   fetchrow; fetchval for the only column of it
    :maybe   one row, or none                  findrow, findval: None when there is none
    :exec    nothing that anybody looks at     execute

A statement is looked up among those of its kind, so a call of another kind finds nothing and
is refused before anything is sent. Rows that a `:one` or `:maybe` has too many or too few of
are an error as well.

A file is valid SQL as it stands, so any tool can read it.

    -- name: release_lease :exec once

A statement that writes says what happens when it is sent `again` by somebody who does not know
whether the first one was committed: nothing that matters, and the answer is still true. One
that says `once` is not sent a second time: it would write twice, take more, or answer that there
was nothing to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

_NAME = re.compile(r"^-- name: (\w+) :(many|one|maybe|exec)(?: (once|again))?$", re.MULTILINE)
_NAMELIKE = re.compile(r"^--\s*name\s*:.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    name: str
    returns: str
    sql: str
    # What a statement that writes says of being sent twice; None for one that only reads.
    repeated: str | None = None


class Texts(dict[str, str]):
    """The SQL of all statements of one kind, by name. A name of another kind is refused."""

    def __init__(self, kind: str, among: Iterable[Statement]) -> None:
        super().__init__((each.name, each.sql) for each in among if each.returns == kind)
        self._kind = kind

    def __missing__(self, name: str) -> str:
        raise LookupError(f"no statement {name!r} is :{self._kind}; see its name line")


def sql_files(folder: Traversable) -> list[tuple[str, str]]:
    """Return name and text of every SQL file of a folder and those in it, in order of name.

    The folder is no part of the name: a file may move without becoming another one.
    """
    by_name: dict[str, str] = {}
    for file in _walk(folder):
        if file.name in by_name:
            raise ValueError(f"two SQL files have the name {file.name}")
        by_name[file.name] = file.read_text()
    return sorted(by_name.items())


def _walk(folder: Traversable) -> Iterator[Traversable]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry)
        elif entry.name.endswith(".sql"):
            yield entry


def parse_statements(text: str) -> list[Statement]:
    """Return the statements of a file; a name line that is not quite one is an error."""
    for line in _NAMELIKE.findall(text):
        # It would be taken for a comment, and its statement for the end of the one before.
        if not _NAME.fullmatch(line):
            raise ValueError(f"not a name line: {line}")
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
    by_name: dict[str, Statement] = {}
    for file, text in sql_files(files("queen.storage") / "sql" / "queries"):
        for statement in parse_statements(text):
            if statement.name in by_name:
                raise ValueError(f"{file}: the name {statement.name} is taken")
            by_name[statement.name] = statement
    return by_name


@cache
def texts(kind: str) -> Texts:
    """Return the SQL of all statements of a kind, by name."""
    return Texts(kind, statements().values())
