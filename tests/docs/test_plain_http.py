"""The commands of the page about plain HTTP run, and the routes it lists are served."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from queen.core.frame import stored_frames
from queen.wire.frames.leased import unpack_head
from tests.api import Api
from tests.conftest import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "plain-http.md"


def run(command: str, folder: Path | None = None) -> Any:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{command} --silent --show-error --fail"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        cwd=folder,
    )
    return json.loads(done.stdout) if done.stdout else None


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_every_command_runs(server: ServerProcess, queue: str, tmp_path: Path) -> None:
    text = PAGE.read_text().replace("http://localhost:6632", server.url)
    text = text.replace("localhost:6632", server.url).replace("orders", queue)
    first, *framed = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    push, pop, ack = first.strip().split("\n\n")
    run(push)
    messages = run(pop)["messages"]
    assert [message["data"] for message in messages] == [{"total": 12}, {"total": 30}]
    for field in ("partitionId", "leaseId"):
        ack = ack.replace(f"<{field} of the message>", messages[0][field])
    assert run(ack)["success"] is True
    pop, ack, ack_and_pop = (command.strip().replace("billing", "framed") for command in framed)
    _run_framed(pop, ack, ack_and_pop, tmp_path)


def _run_framed(pop: str, ack: str, ack_and_pop: str, folder: Path) -> None:
    run(pop, folder)
    head, frames_at = unpack_head((folder / "leased").read_bytes())
    (frame,) = stored_frames((folder / "leased").read_bytes()[frames_at:])
    assert frame.segment().payloads() == [b'{"total": 12}', b'{"total": 30}']
    claim = head.claims[0]
    ack = ack.replace("<partitionId of the claim>", claim.partitionId)
    ack = ack.replace("<leaseId of the head>", head.leaseId)
    # The page has a hundred messages.
    ack = ack.replace("[[100, 180], [181, 200]]", "[[0, 1]]").replace(
        '"offset": 180', '"offset": 1'
    )
    (result,) = run(ack)["spans"]
    assert (result["success"], result["ended"]) == (True, True)
    # Said again it changes nothing, and what failed is there for the pop.
    ack_and_pop = ack_and_pop.replace("<partitionId>", claim.partitionId)
    ack_and_pop = ack_and_pop.replace("<leaseId>", head.leaseId).replace("[[100, 101]]", "[[0, 1]]")
    assert [message["data"] for message in run(ack_and_pop)["messages"]] == [{"total": 30}]


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
