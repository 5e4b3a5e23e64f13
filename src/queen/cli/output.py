"""What a command prints: a table for people, NDJSON for programs.

Standard output holds data and nothing else. Rich is imported for progress bars only: it would cost
every other command more than the command itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Protocol

import msgspec

from queen.cli.tables import Column, record_lines, table_lines
from queen.cli.terminal.printable import printable, printable_json

_encoder = msgspec.json.Encoder()


class Output:
    """Standard output, as the user wants it."""

    def __init__(self, as_json: bool) -> None:
        self.is_table = not as_json and sys.stdout.isatty()

    def rows(self, rows: Sequence[dict[str, Any]], columns: Sequence[Column]) -> None:
        """Print many of a kind."""
        if self.is_table:
            draw(table_lines(rows, columns))
        else:
            self.lines(rows)

    def record(self, record: dict[str, Any]) -> None:
        """Print one thing with all its fields."""
        if self.is_table:
            draw(record_lines(record))
        else:
            self.lines([record])

    def lines(self, rows: Iterable[Any]) -> None:
        """Print NDJSON."""
        write = ndjson_writer(sys.stdout.buffer)
        for row in rows:
            write(row)
        sys.stdout.buffer.flush()

    def text(self, text: str) -> None:
        """Print a line for people."""
        sys.stdout.write(printable(text) + "\n")
        sys.stdout.flush()


def ndjson_writer(file: IO[bytes]) -> Callable[[Any], None]:
    """Return what writes an object on a line: as it is, and on a terminal so that it can do
    nothing there."""
    is_terminal = file.isatty()

    def write(row: Any) -> None:
        encoded = _encoder.encode(row)
        file.write((printable_json(encoded.decode()).encode() if is_terminal else encoded) + b"\n")

    return write


def draw(*blocks: list[str]) -> None:
    """Print tables and records, with an empty line between them."""
    sys.stdout.write("\n\n".join("\n".join(block) for block in blocks if block) + "\n")
    sys.stdout.flush()


class Advance(Protocol):
    """Tells how far the work is: `done` of the total, and so many messages."""

    def __call__(self, done: float, messages: int) -> None: ...


@contextmanager
def progress(title: str, total: float | None = None) -> Iterator[Advance]:
    """Show a bar on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, messages: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[messages]:,} messages"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, messages=0)
        yield lambda done, messages: bar.update(task, completed=done, messages=messages)
