"""Links between pages lead somewhere, and the index of the pages has all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *ROOT.glob("examples/*.md"),
        *ROOT.glob("*/README.md"),
    ]
)
GROUPS = {
    "Tutorial": "tutorial",
    "How to": "howto",
    "Reference": "reference",
    "Explanation": "explanation",
    "Decisions": "decisions",
}
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]+)?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """Return a page without its blocks of code, where `#` begins a comment."""
    return _CODE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, made as GitHub makes them."""
    return {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in _HEADING.findall(prose(page))
    }


@pytest.mark.parametrize("page", sorted(set(PAGES)), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(prose(page)):
        found = page.parent / target if target else page
        assert found.exists(), target
        if anchor:
            assert anchor[1:] in anchors(found), target + anchor


@pytest.mark.parametrize(("group", "folder"), GROUPS.items())
def test_the_index_has_every_page_once_in_its_group(group: str, folder: str) -> None:
    """Decisions have an index of their own, which `test_ways_in` compares with the folder."""
    _, _, below = prose(DOCS / "README.md").partition(f"\n## {group}\n")
    listed = re.findall(rf"\]\(({folder}/[\w-]+\.md)\)", below.partition("\n## ")[0])
    there = {str(path.relative_to(DOCS)) for path in (DOCS / folder).glob("*.md")}
    assert sorted(listed) == (["decisions/README.md"] if group == "Decisions" else sorted(there))


def test_every_page_is_in_a_group() -> None:
    folders = {path.relative_to(DOCS).parts[0] for path in DOCS.rglob("*.md")} - {"README.md"}
    assert folders == set(GROUPS.values())


def test_the_index_calls_a_page_by_its_title() -> None:
    for title, target in re.findall(
        r"^\* \[(.+?)\]\(((?:tutorial|howto|explanation)/.+?)\)",
        prose(DOCS / "README.md"),
        re.MULTILINE,
    ):
        assert (DOCS / target).read_text().startswith(f"# {title}\n"), target
