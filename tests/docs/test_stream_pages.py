"""The requests of the page about stream workers run, and answer what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.api import Answer, Api
from tests.docs.test_howto import run, shows

PAGE = Path(__file__).parents[2] / "docs/howto/run-stream-workers.md"
_BLOCK = re.compile(r"^```(http|json)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ID = re.compile(r"\b\d{13}-\d+\b")


def test_the_requests_are_answered_as_the_page_says(api: Api, queue: str) -> None:
    blocks = _BLOCK.findall(PAGE.read_text().replace("reports", queue))
    assert len(blocks) > 8
    # Ids of the page, and those that stand for them here.
    ids: dict[str, str] = {}
    answer: Answer | None = None
    for kind, block in blocks:
        if kind == "json":
            assert answer is not None
            ids.update(zip(_ID.findall(block), _ID.findall(answer.raw.decode()), strict=False))
        here = _ID.sub(lambda match: ids[match.group()], block)
        if kind == "http":
            answer = run(api, here)
            assert answer.status == 200, (here, answer.raw)
        else:
            assert answer is not None
            assert shows(json.loads(here), answer.json), (here, answer.json)
