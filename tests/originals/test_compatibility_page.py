"""What the page on compatibility says is shown by a test that exists."""

from __future__ import annotations

import re

from tests.originals.environments import ROOT

_PAGE = (ROOT / "docs" / "explanation" / "compatibility.md").read_text()
_SCENARIOS = ROOT / "tests" / "originals" / "scenarios"


def _functions(text: str) -> set[str]:
    return set(re.findall(r"^(?:async )?def (\w+)", text, re.MULTILINE))


def test_every_scenario_that_is_named_exists() -> None:
    modules = {path.stem: _functions(path.read_text()) for path in _SCENARIOS.glob("*.py")}
    named = re.findall(r"`(\w+)\.(\w+)`", _PAGE)
    assert len(named) > 15
    for module, scenario in named:
        assert scenario in modules[module], f"{module}.{scenario}"


def test_every_test_that_is_named_exists() -> None:
    tests = (ROOT / "tests").rglob("test_*.py")
    known = set().union(*(_functions(path.read_text()) for path in tests))
    named = set(re.findall(r"`(test_\w+)`", _PAGE))
    assert len(named) > 5
    assert named <= known, named - known


def test_every_group_of_scenarios_is_on_the_page() -> None:
    groups = {path.stem for path in _SCENARIOS.glob("*.py")} - {"__init__"}
    assert {group for group in groups if f"`{group}`" not in _PAGE} == set()
