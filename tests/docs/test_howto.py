"""The examples of the how-to pages run, and answer what the pages say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.api import Answer, Api
from tests.contract.conftest import refresh

PAGES = Path(__file__).parents[2] / "docs" / "howto"
_BLOCK = re.compile(r"^```(http|json)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shows(said: Any, happened: Any) -> bool:
    """Whether an answer has everything the page says; it may have more."""
    if said == "…":
        return True
    if isinstance(said, dict):
        return isinstance(happened, dict) and all(
            key in happened and shows(value, happened[key]) for key, value in said.items()
        )
    if isinstance(said, list):
        return len(said) == len(happened) and all(map(shows, said, happened))
    return bool(said == happened)


def run(api: Api, example: str) -> Answer:
    first, _, body = example.partition("\n")
    method, path = first.split(" ")
    return api.call(method, path, body.strip() or None)


@pytest.mark.parametrize(
    "page",
    ["consumer-groups.md", "limit-rates.md", "retries-and-dead-letters.md", "shared-groups.md"],
)
def test_a_page_shows_what_happens(api: Api, queue: str, page: str) -> None:
    # Names of its own, and of all groups only those that the page speaks of.
    text = (PAGES / page).read_text().replace("billing", f"b-{queue}")
    for name in ("orders", "payments", "thumbnails", "mails"):
        text = text.replace(name, queue)
    blocks = _BLOCK.findall(text)
    assert blocks
    answer: Answer | None = None
    for kind, block in blocks:
        if kind == "http":
            # The page is of a small installation, where counts are of the present.
            refresh(api)
            answer = run(api, block)
            assert answer.status in (200, 201), (block, answer.raw)
        else:
            assert answer is not None
            happened = answer.json
            if isinstance(happened, list):
                happened = [one for one in happened if one.get("queueName") == queue]
            assert shows(json.loads(block), happened), (block, happened)
