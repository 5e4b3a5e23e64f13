"""Write docs/reference/modules.md: the rooms of the code, and what is in each.

Made from the first line of every module, so it says what they say of themselves; a test fails
when it is not up to date.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[1]
PAGE = _ROOT / "docs" / "reference" / "modules.md"

_HEAD = """# Modules

Made from the first line of each module by `make reference`; do not edit. Imports point from the
top of this list of layers to its bottom, and a contract holds that: `cli` and `testing`; `spark`
and `server`; `service`; `storage`; `client`; `spool`; `wire`; `core`; `errors`.
"""


def render() -> str:
    rooms = sorted(path.parent for path in (_ROOT / "src" / "queen").rglob("__init__.py"))
    return _HEAD + "".join(f"\n{part}\n" for room in rooms for part in _room(room))


def _room(folder: Path) -> Iterator[str]:
    yield f"## {folder.relative_to(_ROOT / 'src')}"
    yield _first_line(folder / "__init__.py")
    modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    if modules:
        rows = "\n".join(f"| `{path.stem}` | {_first_line(path)} |" for path in modules)
        yield f"| module | |\n| --- | --- |\n{rows}"


def _first_line(path: Path) -> str:
    """Return the first sentence that a module says of itself, on one line."""
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(said.partition("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render())
