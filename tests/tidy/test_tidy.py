"""House rules that a tool can check."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
_LONGEST_FUNCTION = 60
_FORBIDDEN_NAMES = {"utils.py", "util.py", "helpers.py", "manager.py", "common.py", "misc.py"}
# Written in pieces, so that this file does not break its own rule.
_REGISTRY_HOSTS = re.compile("|".join(["pypi" + r"\.org", "python" + "hosted", "npm" + r"js\."]))
_MACHINE_PATHS = re.compile(r"/(?:" + "work" + "|" + "farm" + r")/|/root/\.")

# Names that tell nothing of what they name.
_SILENT_NAMES = {"one", "found", "it", "got", "thing"}

# More than this many in one folder are no longer seen at a glance.
_MOST_MODULES = 15
# The names of the API document's schemas are made from those of these modules.
_FLAT = {ROOT / "src/queen/wire"}

# Programs that tests write into strings are looked at too; `sleep(0)` only lets others go first.
_SLEEP = re.compile(r"\bsleep" + r"\((?!0\))")
_MAY_SLEEP = {ROOT / "tests/waiting.py"}


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_is_for_and_keeps_its_functions_short(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "no docstring"
    assert path.name not in _FORBIDDEN_NAMES
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= _LONGEST_FUNCTION, f"{node.name} has {length} lines"


def test_no_file_names_a_registry_or_a_machine() -> None:
    for path in tracked():
        if not path.exists() or path.suffix in {".png", ".ico"}:
            continue
        text = path.read_text(errors="replace")
        assert not _REGISTRY_HOSTS.search(text), path
        assert not _MACHINE_PATHS.search(text), path


def test_no_tracked_file_is_large() -> None:
    for path in tracked():
        if path.exists():
            assert path.stat().st_size < 400_000, path


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = sorted(int(path.name[:4]) for path in (ROOT / "docs/decisions").glob("[0-9]*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


def test_tests_wait_for_conditions_and_not_for_time() -> None:
    """What a test waits for, it asks for: `tests.waiting` has the words for it."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        lines = enumerate(path.read_text().splitlines(), start=1)
        found = [number for number, line in lines if _SLEEP.search(line)]
        assert not found or path in _MAY_SLEEP, f"{path} sleeps in lines {found}"


def test_no_room_is_crowded() -> None:
    for folder in {path.parent for path in SOURCES} - _FLAT:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= _MOST_MODULES, folder


def test_no_word_is_used_that_the_glossary_bans() -> None:
    page = (ROOT / "docs/reference/glossary.md").read_text().partition("## Words that are not used")
    banned = [row.split("|")[1].strip() for row in page[2].splitlines() if row.startswith("| ")][1:]
    assert "lane" in banned
    words = re.compile(rf"(?<![A-Za-z])({'|'.join(banned)})(?:s|es)?(?![a-z])", re.IGNORECASE)
    for path in SOURCES:
        found = words.search(path.read_text())
        assert found is None, f"{path}: {found}"


def test_no_variable_has_a_name_that_says_nothing() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                assert node.id not in _SILENT_NAMES, f"{path}:{node.lineno}: {node.id}"
            if isinstance(node, ast.arg):
                assert node.arg not in _SILENT_NAMES, f"{path}:{node.lineno}: {node.arg}"


def test_no_two_classes_of_one_package_have_one_name() -> None:
    named: dict[tuple[str, str], Path] = {}
    for path in SOURCES:
        if path.parent in _FLAT:
            continue
        package = path.relative_to(ROOT / "src/queen").parts[0]
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                other = named.setdefault((package, node.name), path)
                assert other == path, f"{node.name}: {other} and {path}"
