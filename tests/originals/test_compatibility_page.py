"""What the page on compatibility says is shown by a test that exists."""

from __future__ import annotations

import re

import msgspec

from queen.core.options import QueueOptions
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


def test_every_default_is_on_the_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| `(\w+)` \| ([^|]+) \|$", _PAGE, re.MULTILINE)
    here = {name: value for name, _, value, _ in rows}
    defaults = msgspec.to_builtins(QueueOptions())
    assert here == {name: str(value).lower() for name, value in defaults.items()}


def test_a_default_that_differs_or_now_acts_says_what_that_changes() -> None:
    """What did nothing in the original acts here: the page says of each what follows from that."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| `\w+` \| ([^|]+) \|$", _PAGE, re.MULTILINE)
    inert = {name: told for name, original, told in rows if "nothing" in original}
    assert inert.keys() == {"ttl", "retryDelay", "deadLetterQueue", "dlqAfterMaxRetries"}
    changed = {name for name, told in inert.items() if not told.startswith("the same")}
    assert changed == {"retryDelay"}
