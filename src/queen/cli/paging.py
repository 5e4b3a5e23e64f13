"""Lists that are longer than one answer: all of them, or so many and a word about the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from queen.cli.exits import say

# No list has larger pages.
_PAGE = 1000

Rows = list[dict[str, Any]]


async def read_pages(
    read: Callable[[int, int], Awaitable[Rows]], limit: int | None, offset: int
) -> Rows:
    """Return what a list has from an offset on, at most so many; `read` is given the limit and the
    offset of a page. Whoever sees less than there is, is told."""
    # One more than is shown tells whether there are more.
    wanted = None if limit is None else limit + 1
    rows: Rows = []
    while wanted is None or len(rows) < wanted:
        size = _PAGE if wanted is None else min(_PAGE, wanted - len(rows))
        page = await read(size, offset + len(rows))
        rows += page
        if len(page) < size:
            break
    if limit is not None and len(rows) > limit:
        say_more(limit)
    return rows[:limit]


def say_more(limit: int) -> None:
    say(f"there are more than {limit:,}; --limit and --offset show others")
