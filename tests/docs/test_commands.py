"""Commands that pages name in passing are commands that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("deploy/**/*.md")])
_COMMAND = re.compile(r"(?:^|[`$;&|] ?)queen ([a-z]+)(?: ([a-z]+))?(?: ([a-z]+))?", re.MULTILINE)
_HEADING = re.compile(r"^## queen (.+)$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_exists(page: Path) -> None:
    known = set(_HEADING.findall((ROOT / "docs/reference/cli.md").read_text()))
    groups = {name.partition(" ")[0] for name in known if " " in name}
    for found in _COMMAND.finditer(page.read_text()):
        command = found[1]
        if command in groups and found[2]:
            command = f"{command} {found[2]}"
        # A line of output, such as `queen ready on`.
        if command != "ready":
            assert command in known | groups | {"serve"}, found[0]
