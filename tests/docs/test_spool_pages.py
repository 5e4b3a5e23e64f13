"""The examples of the pages about the spool run, and answer what the pages say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.api import Answer, Api
from tests.conftest import ServerProcess
from tests.docs.test_howto import run, shows
from tests.waiting import until

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
_BLOCK = re.compile(r"^```(sh|http|json)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(page: str, queue: str, url: str = "") -> list[tuple[str, str]]:
    text = (HOWTO / page).read_text().replace("localhost:6632", url)
    return _BLOCK.findall(text.replace('"orders"', f'"{queue}"').replace('"metrics"', f'"{queue}"'))


def test_the_requests_about_an_outage_are_answered_as_the_page_says(api: Api, queue: str) -> None:
    # What tests before this one have pushed is stored.
    until(lambda: api.call("GET", "/api/v1/spool").json["records"] == 0)
    answer: Answer | None = None
    try:
        for kind, block in _blocks("survive-an-outage.md", queue):
            if kind == "http":
                answer = run(api, block)
                assert answer.status in (200, 202), (block, answer.raw)
            else:
                assert answer is not None
                assert shows(json.loads(block), answer.json), (block, answer.json)
    finally:
        api.call("POST", "/api/v1/system/maintenance", {"enabled": False})
    assert api.data(queue, "customer-7", wait="true", timeout=20_000) == [{"total": 12}]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_commands_about_qos0_are_answered_as_the_page_says(
    server: ServerProcess, api: Api, queue: str
) -> None:
    blocks = _blocks("qos0.md", queue, server.url)
    (said,) = (json.loads(block) for kind, block in blocks if kind == "json")
    commands = [block.strip() for kind, block in blocks if kind == "sh"]
    assert len(commands) == 2
    for command in commands:
        done = subprocess.run(
            ["/bin/sh", "-c", f"{command} --silent --show-error --fail"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert shows(said, json.loads(done.stdout))
    stored: list[object] = []
    while len(stored) < 2:
        stored += api.data(queue, "host-1", wait="true", timeout=5000, autoAck="true")
    assert stored == [{"cpu": 0.4}, {"cpu": 0.5}]
