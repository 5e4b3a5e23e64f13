"""What a terminal shows: every list fits, with the most awkward names there can be."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest

from queen.cli.tables import width_of
from queen.storage.embedded import EmbeddedPostgres
from tests.api import Api
from tests.cli.conftest import QUEEN, Run, environment, plain
from tests.cli.forking import Forking
from tests.conftest import ServerProcess
from tests.programs import bound
from tests.waiting import until

_CLEAR = b"\x1b[H\x1b[2J"

# Of this run: several share a database.
_RUN = uuid.uuid4().hex[:6]
_LONG = f"{_RUN}.payments.eu-west-1.production." + "card-authorisations-" * 8
_WIDE = _RUN + "日本語のキューの名前" * 6
_ERROR = "ConnectionError: the bank is closed and nobody knows when it opens again " * 3
_GROUP = f"{_RUN}-billing-group-with-a-long-name-for-the-invoices-of-the-year"
_STREAM = f"{_RUN}-stream-of-user-behaviour-with-a-name-that-does-not-fit-anywhere"


@pytest.fixture(scope="module")
def server(postgres: EmbeddedPostgres) -> Iterator[ServerProcess]:
    """A server with a database of its own: what other tests leave is not looked at here."""
    name = f"terminal_{_RUN}"
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        admin.execute(f"create database {name}")
        own = urlunsplit(urlsplit(postgres.dsn)._replace(path=f"/{name}"))
        running = ServerProcess("--database-url", own)
        yield running
        assert running.stop() == 0
        admin.execute(f"drop database {name} with (force)")


@pytest.fixture(scope="module")
def awkward(server: ServerProcess) -> Iterator[str]:
    """Queues, groups, letters, schedules and traces that are hard to show."""
    with closing(Api(server.url)) as api:
        _fill(api)
    yield _LONG
    with closing(Api(server.url)) as api:
        for queue in (_LONG, _WIDE):
            api.delete_queue(queue)


def _fill(api: Api) -> None:
    for queue in (_LONG, _WIDE):
        body = {"options": {"retryLimit": 0, "retryDelay": 0}, "create": True}
        path = f"/api/v1/resources/queues/{quote(queue, safe='')}/options"
        assert api.call("PATCH", path, {**body, "namespace": _LONG[:60]}).status in (200, 201)
        for number in range(12):
            api.push_many(queue, 30, f"customer-{'7' * 60}-{number}")
        (first, *_) = api.messages(queue, batch=3, consumerGroup=_GROUP)
        assert api.ack(first, "failed", error=_ERROR).status == 200
        api.messages(queue)
        later = {"queue": queue, "payload": {"n": 1}, "delayMs": 3_600_000}
        assert api.push(later).status in (201, 202)
        trace = {
            "transactionId": first["transactionId"],
            "partitionId": first["partitionId"],
            "data": {"step": "charged " * 20},
            "traceNames": [f"order-{queue}"[:200]],
        }
        assert api.call("POST", "/api/v1/traces", trace).status == 201


# Not for the module: streams end with their test.
@pytest.fixture
def lists(awkward: str, server: ServerProcess, forking: Forking) -> list[list[str]]:
    """Every command that lists something."""

    def queen(*arguments: str) -> bytes:
        done = forking.run(arguments, environment(server.url), b"")
        assert done.returncode == 0, done
        return done.stdout

    queen("stream", "define", _STREAM, awkward, _WIDE, "--tumbling", "1", "--partitioned")
    until(lambda: queen("stream", "windows", _STREAM))
    queen("window", "tail", _STREAM, "-g", _GROUP, "--no-ack", "--limit", "1")
    return [
        ["queue", "list"],
        ["queue", "show", awkward],
        ["group", "list"],
        ["group", "show", _GROUP],
        ["dlq", "list"],
        ["dlq", "errors"],
        ["schedule", "list"],
        ["stream", "list"],
        ["stream", "show", _STREAM],
        ["stream", "windows", _STREAM],
        ["stream", "windows", _STREAM, "--group", _GROUP],
        ["stream", "dead", _STREAM],
        ["stream", "explain", _STREAM],
        ["trace", "names"],
        ["trace", "name", f"order-{awkward}"[:200]],
        ["pop", awkward, "-n", "5", "--no-ack"],
        ["pipeline", "list"],
        ["spool", "list"],
        ["spool", "status"],
        ["token", "list"],
        ["maintenance", "show"],
        ["status"],
    ]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40)])
def test_every_list_fits_and_cuts_no_word(
    lists: list[list[str]], on_terminal: Run, run: Run, columns: int, rows: int
) -> None:
    for command in lists:
        shown = on_terminal(*command, columns=columns, lines=rows).out
        assert "__QUEUE_MODE__" not in shown, command
        known = _words(run(*command).out)
        for line in shown.splitlines():
            _check_line(line.rstrip(), columns, known, command)


def _check_line(line: str, columns: int, known: set[str], command: list[str]) -> None:
    """A line fits, unless a single name in it is longer than any line."""
    words = line.split()
    if width_of(line) > columns:
        # Of a record: left whole, so that it can be copied.
        whole = [word for word in words if width_of(word) > columns // 2 and "…" not in word]
        assert whole, (command, line)
        assert len(words) <= 4, (command, line)
        return
    for word in words:
        # A word that is the beginning of a longer one, and does not say so, was cut.
        plain = word.strip(",;:()")
        cut_from = [
            longer
            for longer in known
            if longer.startswith(plain) and len(plain) > 12 and plain not in known
        ]
        assert "…" in word or not cut_from, (command, word, cut_from)


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\s\"{}\[\],:]+", text))


def test_instants_are_ages(awkward: str, on_terminal: Run) -> None:
    assert awkward
    for command in (
        ["group", "list"],
        ["dlq", "list"],
        ["schedule", "list"],
        ["trace", "names"],
        ["queue", "show", awkward],
    ):
        shown = on_terminal(*command, columns=200).out
        assert not re.search(r"\d{4}-\d\d-\d\dT", shown), command
        assert re.search(r"\b\d+[smhd]\b", shown), command


def test_a_watched_status_keeps_its_problems(awkward: str, server: ServerProcess) -> None:
    """At 24 lines nothing is scrolled away: each look begins at the top, with the problems."""
    assert awkward
    ours, theirs = pty.openpty()
    size = {"COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [QUEEN, "status", "--watch", "--every", "0.1"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment(server.url), **size},
        start_new_session=True,
    )
    with bound(process):
        os.close(theirs)
        shown = b""
        while shown.count(_CLEAR) < 3:
            shown += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        until(lambda: process.poll() is not None)
        os.close(ours)
    _, first, second, *_ = shown.split(_CLEAR)
    for screen in (first, second):
        lines = plain(screen.decode()).replace("\r", "").rstrip("\n").splitlines()
        assert len(lines) <= 23
        assert "dead letters: queen dlq errors" in "\n".join(lines[:15])


@pytest.mark.parametrize("width", [80, 100])
def test_help_names_every_option_in_full(on_terminal: Run, width: int) -> None:
    shown = on_terminal("serve", "-h", columns=width).out
    assert "…" not in shown
    for option in ("--metrics-retention-days", "--max-connections-per-address", "--log-format"):
        assert option in shown
    assert "<bool>" not in shown
    assert "QUEEN_MAX_CONNECTIONS_PER_ADDRESS" in shown
