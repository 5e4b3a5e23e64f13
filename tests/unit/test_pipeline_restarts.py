"""A pipeline on the command line: what counts as a failure, and what is waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from queen.cli import exits
from queen.cli.commands import pipelines
from queen.errors import Conflict, PipelineFailed
from queen.spark.pipelines.run import Options


class _Health(BaseHTTPRequestHandler):
    """A broker that is away for so many questions, and then there."""

    away = 0

    def do_GET(self) -> None:
        is_away = type(self).away > 0
        type(self).away -= is_away
        body = b'{"error": "away", "code": "unavailable", "retryable": true}' if is_away else b"{}"
        self.send_response(503 if is_away else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def options() -> Iterator[Options]:
    server = HTTPServer(("127.0.0.1", 0), _Health)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Options(url=f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()
    thread.join()


class _Runs:
    """Starts runs that fail so many times, each without a batch, and then end."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.started = 0

    def start(self) -> Any:
        self.started += 1
        return SimpleNamespace(
            checkpoint="there",
            ask_to_stop=lambda: None,
            wait=self._wait,
            progress=SimpleNamespace(batches=0),
        )

    def _wait(self, _timeout_s: float | None = None) -> bool:
        self.failures -= 1
        if self.failures >= 0:
            raise PipelineFailed("no Queen server answers")
        return True


def test_a_broker_that_is_away_is_waited_for_and_no_failure(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "_LOOK_AGAIN_S", 0.01)
    _Health.away = 5
    runs = _Runs(1)
    pipelines._run_with_restarts(runs.start, "it runs", 0, options)
    assert (runs.started, _Health.away) == (2, 0)


def test_what_fails_beside_a_broker_that_answers_is_counted(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queen.cli.commands.pipelines.time.sleep", lambda _: None)
    runs = _Runs(5)
    with pytest.raises(PipelineFailed):
        pipelines._run_with_restarts(runs.start, "it runs", 2, options)
    assert runs.started == 3


def test_a_conflict_says_itself_what_to_do() -> None:
    code, reason = exits.code_and_reason(Conflict("the checkpoint is another's: give one"), [])
    assert (code, reason) == (exits.FAILED, "the checkpoint is another's: give one")
