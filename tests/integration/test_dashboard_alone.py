"""`queen dashboard`: pages of its own, everything else from the servers it was given."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.api import Api
from tests.conftest import ServerProcess
from tests.ports import free_port

_PROGRAM = (sys.executable, "-c", "from queen.cli.main import app; app()", "dashboard")


@contextmanager
def dashboard(*words: str) -> Iterator[Api]:
    port = free_port()
    command = (*_PROGRAM, "--port", str(port), *words)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"dashboard ready on http://127.0.0.1:{port}\n"
        api = Api(f"http://127.0.0.1:{port}")
        yield api
        api.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_it_shows_a_cluster_whose_first_server_is_away(server: ServerProcess, queue: str) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    with dashboard("--url", away, "--url", server.url) as api:
        assert b"/dashboard/app.js" in api.call("GET", "/queues").raw
        assert api.call("GET", "/dashboard/app.js").status == 200
        assert api.call("GET", "/api/v1/whoami").json["role"] == "admin"
        api.push_many(queue, 3)
        assert len(api.messages(queue, batch=10)) == 3
        assert api.call("GET", "/api/v1/nothing").status == 404
        assert api.call("GET", f"/api/v1/resources/queues/{queue}%2Fother").status == 404
        assert api.call("PATCH", "/queues", {}).status == 405


def test_nobody_to_ask_is_said_as_a_broker_says_it() -> None:
    with dashboard("--url", f"http://127.0.0.1:{free_port()}") as api:
        answer = api.call("GET", "/api/v1/whoami")
        assert answer.status == 503 and "cannot connect" in answer.json["error"]
        assert api.call("GET", "/").status == 200


def test_pages_of_other_origins_reach_nothing_through_it(server: ServerProcess) -> None:
    with dashboard("--url", server.url) as api:
        headers = {"Origin": "https://evil.example"}
        assert api.call("POST", "/api/v1/push", {"items": []}, headers).status == 403
        assert api.call("GET", "/api/v1/whoami", None, {"Host": "evil.example"}).status == 403


@pytest.mark.parametrize(
    ("words", "reason"),
    [(("--host", "192.0.2.1"), "--insecure"), (("--url", "ftp://x"), "not the URL of a server")],
)
def test_what_it_cannot_do_it_says_at_once(words: tuple[str, ...], reason: str) -> None:
    done = subprocess.run(
        (*_PROGRAM, *words), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 78 and reason in done.stderr and "Traceback" not in done.stderr
