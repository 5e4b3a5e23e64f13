"""Where the files are that deploy Queen, and the variables that they may set."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
_VARIABLE = re.compile(r"\b(?:QUEEN|PG|JWT)_[A-Z_]+\b")


def known_variables() -> set[str]:
    """Return those that pages name, and those that `queen-with-secrets` reads from files."""
    pages = ("reference/serve.md", "howto/survive-an-outage.md", "howto/secure-a-server.md")
    named = {
        name for page in pages for name in _VARIABLE.findall((ROOT / "docs" / page).read_text())
    }
    wrapper = (DEPLOY / "container/queen-with-secrets").read_text()
    listed = re.search(r"^for name in (.*); do$", wrapper, re.MULTILINE)
    assert listed is not None
    secrets = set(listed[1].split())
    # The client and the command line have these.
    assert secrets <= named | {"QUEEN_TOKEN"}
    return named | secrets | {f"{name}_FILE" for name in secrets} | {"QUEEN_URL"}


def unknown_variables(text: str) -> set[str]:
    return set(_VARIABLE.findall(text)) - known_variables()
