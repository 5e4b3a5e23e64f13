"""Links between pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*.md")])
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]+)?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    return {
        re.sub(r"[^0-9a-z_ -]", "", heading.lower()).replace(" ", "-")
        for heading in _HEADING.findall(page.read_text())
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text()):
        found = page.parent / target
        assert found.exists(), target
        if anchor:
            assert anchor[1:] in anchors(found), target + anchor
