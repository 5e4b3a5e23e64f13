"""What went into the demo and what came out of it: numbers in pairs that must be equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table


class Count(NamedTuple):
    """So many of something went in, so many of something came out."""

    went_in: str
    expected: int
    came_out: str
    actual: int

    @property
    def agrees(self) -> bool:
        return self.expected == self.actual


def table_of_counts(counts: Iterable[Count]) -> Table:
    """Draw them; a pair that is not equal is red."""
    from rich.table import Table

    table = Table(title="What went in and what came out")
    for column in ("went in", "", "came out", ""):
        table.add_column(column, justify="left" if column else "right")
    for count in counts:
        style = None if count.agrees else "bold red"
        expected, actual = f"{count.expected:,}", f"{count.actual:,}"
        table.add_row(count.went_in, expected, count.came_out, actual, style=style)
    return table
