"""What a command prints: a table for people, NDJSON for programs.

Standard output holds data and nothing else. Rich is imported only where something is drawn:
it would cost every other command more than the command itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

# The head of a column, and where its cells are: "messages.pending".
Column = tuple[str, str]

_encoder = msgspec.json.Encoder()


class Output:
    """Standard output, as the user wants it."""

    def __init__(self, as_json: bool) -> None:
        self.is_table = not as_json and sys.stdout.isatty()

    def rows(self, rows: Sequence[dict[str, Any]], columns: Sequence[Column]) -> None:
        """Print many of a kind."""
        if self.is_table:
            draw(table_of(rows, columns))
        else:
            self.lines(rows)

    def record(self, record: dict[str, Any]) -> None:
        """Print one thing with all its fields."""
        if self.is_table:
            draw(record_table(record))
        else:
            self.lines([record])

    def lines(self, rows: Iterable[Any]) -> None:
        """Print NDJSON."""
        out = sys.stdout.buffer
        for row in rows:
            out.write(_encoder.encode(row) + b"\n")
        out.flush()

    def text(self, text: str) -> None:
        """Print a line for people, as it is."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def table_of(rows: Iterable[dict[str, Any]], columns: Sequence[Column]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for head, _ in columns:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(_at(row, path))) for _, path in columns))
    return table


def record_table(record: dict[str, Any]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    for name, value in record.items():
        table.add_row(name, Text(cell(value)))
    return table


def draw(*renderables: RenderableType) -> None:
    from rich.console import Console

    console = Console()
    for renderable in renderables:
        console.print(renderable)


def _at(row: Any, path: str) -> Any:
    for name in path.split("."):
        row = row.get(name) if isinstance(row, dict) else None
    return row


def cell(value: Any) -> str:
    """Return a value as a person reads it.

    >>> cell(1234567), cell(None), cell(0.5), cell(["a", "b"])
    ('1,234,567', '-', '0.5', 'a, b')
    """
    if isinstance(value, str | datetime):
        return str(value) or "-"
    if value is None or value in ([], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return _encoder.encode(value).decode()


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
