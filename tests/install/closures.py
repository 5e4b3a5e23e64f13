"""What an extra brings, and a Python that has only that.

The requirements of an extra are those of pyproject.toml and, from there on, those that installed
packages name. A Python with a `sitecustomize` of ours on its path, and whatever Python it starts,
finds nothing else that is installed here: as if it were a new environment, without the minutes
that it takes to make one.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
_FILTER = """
import os, sys
from importlib.machinery import PathFinder

_hidden = frozenset(os.environ["QUEEN_TEST_HIDDEN"].split(","))

class OnlyWhatTheExtraBrings(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in _hidden:
            return None
        return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = OnlyWhatTheExtraBrings
"""


def requirements(extra: str) -> list[str]:
    """Return what pyproject.toml asks for: of the package, and of an extra unless it is none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named: list[str] = list(project["dependencies"])
    extras = project["optional-dependencies"]
    wanted = extras.keys() - {"all"} if extra == "all" else {extra} - {""}
    return named + [text for name in sorted(wanted) for text in extras[name]]


@cache
def distributions(extra: str) -> frozenset[str]:
    """Return all that `pip install queen[extra]` installs beside it."""
    found: set[str] = set()
    _add(found, [Requirement(text) for text in requirements(extra)], extra="")
    return frozenset(found)


def _add(found: set[str], asked: Iterable[Requirement], extra: str) -> None:
    for each in asked:
        if each.marker is not None and not each.marker.evaluate({"extra": extra}):
            continue
        name = canonical(each.name)
        is_new = name not in found
        found.add(name)
        needs = [Requirement(text) for text in metadata.requires(each.name) or ()]
        if is_new:
            _add(found, needs, extra="")
        for wanted in each.extras:
            _add(found, [need for need in needs if _is_of(need, wanted)], extra=wanted)


def _is_of(need: Requirement, extra: str) -> bool:
    return need.marker is not None and "extra" in str(need.marker) and bool(extra)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def hidden(extra: str) -> frozenset[str]:
    """Return the names of all modules that are installed here, and are not there with an extra."""
    brought = distributions(extra) | {"queen"}
    return frozenset(
        module
        for module, owners in metadata.packages_distributions().items()
        if not brought & {canonical(owner) for owner in owners}
    )


def environment(extra: str, folder: Path) -> dict[str, str]:
    """Return the environment of a Python that has only what an extra brings."""
    (folder / "sitecustomize.py").write_text(_FILTER)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("QUEEN_")}
    # No folder of the tests' own: `queen` is the installed one, and `tests` is not there.
    return {**kept, "PYTHONPATH": str(folder), "QUEEN_TEST_HIDDEN": ",".join(hidden(extra))}
