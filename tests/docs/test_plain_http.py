"""The commands of the page about plain HTTP run, and the routes it lists are served."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.api import Api
from tests.conftest import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "plain-http.md"


def run(command: str) -> dict[str, object]:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{command} --silent --show-error --fail"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_every_command_runs(server: ServerProcess, queue: str) -> None:
    text = PAGE.read_text().replace("http://localhost:6632", server.url)
    text = text.replace("localhost:6632", server.url).replace("orders", queue)
    (block,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    push, pop, ack = block.strip().split("\n\n")
    run(push)
    messages = run(pop)["messages"]
    assert isinstance(messages, list)
    assert [message["data"] for message in messages] == [{"total": 12}, {"total": 30}]
    for field in ("partitionId", "leaseId"):
        ack = ack.replace(f"<{field} of the message>", messages[0][field])
    assert run(ack)["success"] is True


def test_every_route_is_served(api: Api) -> None:
    served = {
        re.sub(r"{\w+}", "{}", path) for path in api.call("GET", "/openapi.json").json["paths"]
    }
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) > 8
    for row in rows:
        path = re.search(r"/api/v1[\w/{}-]+", row)
        assert path is not None
        assert re.sub(r"{\w+}", "{}", path[0]) in served, path[0]
