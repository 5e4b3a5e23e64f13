"""Pages for newcomers name modules, tests and decisions that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PATH = re.compile(r"(?<![\w/])(?:[a-z_]+/)+[a-z_]+\.(?:py|sql)\b")
_BELOW = (ROOT / "src" / "queen", ROOT, ROOT / "src" / "queen" / "storage")


@pytest.mark.parametrize(
    "page", ["README.md", "docs/explanation/how-it-works.md", "CONTRIBUTING.md"]
)
def test_every_file_that_is_named_is_there(page: str) -> None:
    named = set(_PATH.findall((ROOT / page).read_text()))
    assert len(named) > 5
    missing = [name for name in named if not any((root / name).exists() for root in _BELOW)]
    assert not missing


def test_the_index_of_decisions_has_all_of_them() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))


@pytest.mark.parametrize("walk", ["A push", "A pop and its ack"])
def test_a_walk_passes_no_module_twice(walk: str) -> None:
    page = (ROOT / "docs/explanation/how-it-works.md").read_text()
    passed = _PATH.findall(page.partition(f"## {walk}\n")[2].partition("\n## ")[0])
    twice = {name for name in passed if passed.count(name) > 1}
    assert len(passed) > 10 and not twice
