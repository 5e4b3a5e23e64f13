"""Tables that fit the terminal.

Columns stand in the order of their importance. Those that the terminal has no room for are left
out from the right, and the last line says which. No word is cut: a cell is wrapped between words,
and a name that is longer than its whole column keeps its beginning and its end around an ellipsis.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from queen.cli.cells import as_age, as_bytes, as_duration, as_time, cell, is_instant
from queen.cli.terminal.printable import printable

_GAP = "  "
_ELLIPSIS = "…"
# A column of text is not made narrower than this to let another one in.
_NARROW = 14
# Nor, so that its words stay whole, than its longest one, unless that is longer than this.
_NARROW_WORD = 18
# Of a cell that needs more, the end is left out.
_MOST_LINES = 3


class Column(NamedTuple):
    """The head of a column, where its cells are ("messages.pending"), and what they are."""

    head: str
    path: str
    # text, number, age (of an instant), time (of day), duration (in seconds), bytes
    kind: str = "text"


_FORMATS: dict[str, Callable[[Any], str]] = {
    "text": cell,
    "number": cell,
    "age": as_age,
    "time": as_time,
    "duration": as_duration,
    "bytes": as_bytes,
}


class _Shown(NamedTuple):
    """A column with the texts of its cells."""

    head: str
    cells: list[str]
    is_right: bool

    @property
    def natural(self) -> int:
        return max([width_of(self.head), *map(width_of, self.cells)])

    @property
    def least(self) -> int:
        """The width below which it is not worth showing."""
        head = max(map(width_of, self.head.split()), default=0)
        if self.is_right:
            return self.natural
        longest = max((width_of(word) for text in self.cells for word in text.split()), default=0)
        narrow = min(max(longest, _NARROW), _NARROW_WORD)
        return max(head, min(self.natural, narrow))


def terminal_size() -> tuple[int, int]:
    """Return the columns and lines there are to write in."""
    size = shutil.get_terminal_size((80, 24))
    return max(size.columns, 20), max(size.lines, 5)


def table_lines(
    rows: Iterable[dict[str, Any]], columns: Sequence[Column], width: int | None = None
) -> list[str]:
    """Return a table, line by line."""
    room = width or terminal_size()[0]
    listed = list(rows)
    shown = [_shown(column, listed) for column in columns]
    fitting = _fitting(shown, room)
    widths = _widths(fitting, room)
    lines = [bold(line) for line in _row([column.head for column in fitting], fitting, widths)]
    for number in range(len(listed)):
        lines += _row([column.cells[number] for column in fitting], fitting, widths)
    left_out = [column.head for column in shown[len(fitting) :]]
    if left_out:
        note = f"not shown for want of room: {', '.join(left_out)}; --json has all"
        lines += [dim(line) for line in wrap(note, room)]
    return lines


def record_lines(
    record: dict[str, Any], width: int | None = None, *, fold: bool = False
) -> list[str]:
    """Return one thing, a field on each line, instants as ages. A word that is too long for a line
    is left to the terminal, so that it can be copied whole, unless it is to `fold`."""
    room = width or terminal_size()[0]
    head = max((width_of(name) for name in record), default=0)
    lines = []
    for name, value in record.items():
        text = as_age(value) if is_instant(value) else cell(value)
        texts = wrap(text, max(room - head - len(_GAP), 10), fold=fold)
        lines.append(bold(pad(name, head)) + _GAP + texts[0])
        lines += [" " * (head + len(_GAP)) + text for text in texts[1:]]
    return lines


def problem_lines(
    problems: Sequence[str], width: int | None = None, *, fold: bool = False
) -> list[str]:
    """Return what is wrong, or that nothing is, wrapped."""
    room = width or terminal_size()[0]
    if not problems:
        return [green("no problems")]
    return [red(line) for problem in problems for line in wrap(printable(problem), room, fold=fold)]


def _shown(column: Column, rows: list[dict[str, Any]]) -> _Shown:
    texts = [_FORMATS[column.kind](value_at(row, column.path)) for row in rows]
    return _Shown(column.head, texts, column.kind != "text")


def value_at(row: Any, path: str) -> Any:
    """Return what a row has below a path, or None."""
    for name in path.split("."):
        row = row.get(name) if isinstance(row, dict) else None
    return row


def _fitting(columns: list[_Shown], room: int) -> list[_Shown]:
    """Return the columns that there is room for; the first one always."""
    count, used = 0, -len(_GAP)
    for column in columns:
        used += column.least + len(_GAP)
        if used > room and count:
            break
        count += 1
    return columns[:count]


def _widths(columns: list[_Shown], room: int) -> list[int]:
    """Give each column its least width, then what is left to those that want more, evenly."""
    widths = [min(column.least, room) for column in columns]
    left = room - sum(widths) - len(_GAP) * (len(columns) - 1)
    while left > 0:
        wanting = [at for at, column in enumerate(columns) if widths[at] < column.natural]
        if not wanting:
            break
        share = max(left // len(wanting), 1)
        for at in wanting:
            more = min(share, columns[at].natural - widths[at], left)
            widths[at] += more
            left -= more
    return widths


def _row(texts: list[str], columns: list[_Shown], widths: list[int]) -> list[str]:
    wrapped = [_few(wrap(text, width), width) for text, width in zip(texts, widths, strict=True)]
    height = max(len(lines) for lines in wrapped)
    rows = []
    for number in range(height):
        parts = []
        for lines, column, width in zip(wrapped, columns, widths, strict=True):
            text = lines[number] if number < len(lines) else ""
            parts.append(pad(text, width, is_right=column.is_right))
        rows.append(_GAP.join(parts).rstrip())
    return rows


def _few(lines: list[str], width: int) -> list[str]:
    if len(lines) <= _MOST_LINES:
        return lines
    last = lines[_MOST_LINES - 1]
    words = last.split(" ")
    while len(words) > 1 and width_of(" ".join(words)) + 2 > width:
        words.pop()
    kept = " ".join(words)
    if width_of(kept) + 2 <= width:
        return [*lines[: _MOST_LINES - 1], f"{kept} {_ELLIPSIS}"]
    return [*lines[: _MOST_LINES - 1], _ELLIPSIS]


def wrap(text: str, width: int, *, fold: bool = True) -> list[str]:
    """Return a text in lines of at most this width, broken between words.

    >>> wrap("the bank is closed", 8)
    ['the bank', 'is', 'closed']
    >>> wrap("a-name-of-many-letters", 10)
    ['a-nam…ters']
    """
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        fitted = shorten(word, width) if fold else word
        if line and width_of(line) + 1 + width_of(fitted) > width:
            lines.append(line)
            line = fitted
        else:
            line = f"{line} {fitted}" if line else fitted
    return [*lines, line]


def shorten(word: str, width: int) -> str:
    """Return a word that fits, with its beginning and its end."""
    if width_of(word) <= width:
        return word
    if width < 3:
        return _ELLIPSIS
    keep = width - 1
    return _first(word, keep - keep // 2) + _ELLIPSIS + _first(word[::-1], keep // 2)[::-1]


def _first(text: str, width: int) -> str:
    taken = ""
    for letter in text:
        if width_of(taken + letter) > width:
            break
        taken += letter
    return taken


def width_of(text: str) -> int:
    """Return how many columns a text takes: some letters take two, some none."""
    if text.isascii():
        return len(text)
    return sum(_letter_width(letter) for letter in text)


def _letter_width(letter: str) -> int:
    if unicodedata.combining(letter) or unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1


def pad(text: str, width: int, *, is_right: bool = False) -> str:
    """Return a text with blanks up to a width."""
    blanks = " " * max(width - width_of(text), 0)
    return blanks + text if is_right else text + blanks


def bold(text: str) -> str:
    return _styled(text, "1")


def dim(text: str) -> str:
    return _styled(text, "2")


def red(text: str) -> str:
    return _styled(text, "1;31")


def green(text: str) -> str:
    return _styled(text, "32")


def _styled(text: str, code: str) -> str:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in (None, "dumb")
    return text if plain or not sys.stdout.isatty() else f"\x1b[{code}m{text}\x1b[0m"
