"""Write docs/reference/errors.md from the tree of errors and their statuses.

The page is made from the classes, so it can be wrong only where they are; a test fails when it is
not up to date.
"""

from __future__ import annotations

import re
from pathlib import Path

from queen import errors
from queen.server.api.failures import STATUS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "errors.md"

_HEAD = """# Errors

Made from the code by `make reference`; do not edit.

An answer that is no success has a body with `error` (what happened, in words), `code` (stable,
safe to compare) and `retryable`: whether the same request may succeed later. With `retryable` come
a `Retry-After` header and 429 or 503. The Python client raises the class of the same row, from
`queen.errors`; whoever catches a class catches those below it.

| class | code | status | sent again? | when |
| --- | --- | --- | --- | --- |
"""
_BRANCH = re.compile(r"[│├└─ ]+(\w+) +(.+)")


def render() -> str:
    """Return the page: one row for each error, in the order of the tree."""
    lines = (errors.__doc__ or "").splitlines()
    rows = [_row(*found.groups()) for line in lines if (found := _BRANCH.fullmatch(line))]
    return _HEAD + "".join(rows)


def _row(name: str, when: str) -> str:
    kind = getattr(errors, name)
    above = " / ".join(one.__name__ for one in reversed(kind.__mro__[:-4]))
    again = "yes" if kind.retryable else "no"
    return f"| {above} | `{kind.code}` | {STATUS[kind]} | {again} | {when} |\n"


if __name__ == "__main__":
    PAGE.write_text(render())
