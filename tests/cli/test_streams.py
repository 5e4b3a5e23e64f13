"""`queen stream` and `queen window`."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import typer

from queen import SyncQueen
from queen.cli.commands.streams import _cut
from tests.cli.conftest import Run
from tests.conftest import ServerProcess

Start = Callable[..., subprocess.Popen[str]]


def define(run: Run, queue: str, *more: str) -> None:
    run("stream", "define", queue, queue, "--count", "2", "--grace", "0", *more)


def test_a_stream_is_defined_shown_and_deleted(run: Run, queue: str) -> None:
    options = ("--namespace", "n", "--partitioned", "--sliding", "1m", "--slide", "10")
    numbers = ("--grace", "1.5", "--lease", "2m", "--retry-limit", "7", "--retry-delay", "3s")
    rest = ("--max-in-flight", "4", "--emit-empty")
    made = run("stream", "define", queue, queue, f"{queue}-b", *options, *numbers, *rest).row
    assert made["created"] is True
    shown = run("stream", "show", queue).row
    expected = {
        "name": queue,
        "namespace": "n",
        "partitioned": True,
        "windowType": "sliding",
        "windowDurationMs": 60_000,
        "windowSlideMs": 10_000,
        "windowGracePeriodMs": 1_500,
        "windowLeaseTimeoutMs": 120_000,
        "retryLimit": 7,
        "retryDelayMs": 3_000,
        "maxInFlight": 4,
        "emitEmpty": True,
        "consumers": [],
    }
    assert {name: shown[name] for name in expected} == expected
    assert queue in [row["name"] for row in run("stream", "list").rows]
    assert "[y/N]" in run("stream", "delete", queue, text="n\n", code=1).err
    assert run("stream", "delete", queue, "--yes", "--json").row["deleted"] is True
    assert "is not there" in run("stream", "delete", queue, "--yes", code=3).err
    run("stream", "show", queue, code=3)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({}, {}),
        ({"tumbling": "90"}, {"tumbling_time": 90.0}),
        ({"session": "30m"}, {"session": 1800.0}),
        ({"sliding": "1h", "slide": "90s"}, {"sliding_time": (3600.0, 90.0)}),
        ({"count": 10}, {"count": (10, None)}),
        ({"count": 10, "slide": "2"}, {"count": (10, 2)}),
    ],
)
def test_one_option_says_how_it_is_cut(given: dict[str, Any], meant: dict[str, Any]) -> None:
    assert cut_of(**given) == meant


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tumbling": "60", "count": 3}, "one kind"),
        ({"slide": "5"}, "--sliding or --count"),
        ({"sliding": "60"}, "--sliding or --count"),
        ({"count": 3, "slide": "5s"}, "no number of messages"),
        ({"tumbling": "soon"}, "no duration"),
    ],
)
def test_what_contradicts_itself_is_wrong_usage(given: dict[str, Any], said: str) -> None:
    with pytest.raises(typer.BadParameter, match=said):
        cut_of(**given)


def cut_of(**given: Any) -> dict[str, Any]:
    names = ("tumbling", "sliding", "session", "count", "slide")
    return _cut(*(given.get(name) for name in names))


def test_what_the_server_refuses_is_wrong_usage(run: Run, queue: str) -> None:
    wrong = ("--sliding", "10", "--slide", "3")
    assert "multiple" in run("stream", "define", queue, queue, *wrong, code=2).err


def test_a_change_that_cuts_other_windows_has_to_be_meant(run: Run, queue: str) -> None:
    define(run, queue)
    run("push", queue, "1", "2")
    run("window", "tail", queue, "--group", "g", "--limit", "1")
    refused = run("stream", "define", queue, queue, "--count", "3", "--grace", "0", code=1)
    assert "window_size_count: 2 -> 3" in refused.err
    assert "--recut" in refused.err
    define(run, queue, "--recut")


def test_windows_reasons_and_moves(run: Run, queue: str) -> None:
    define(run, queue)
    run("push", queue, "1", "2", "3", "4")
    followed = run("window", "tail", queue, "--group", "g", "--limit", "2").rows
    assert [row["count"] for row in followed] == [2, 2]
    done = run("stream", "windows", queue, "--group", "g", "--state", "done").rows
    assert {row["id"] for row in done} == {row["id"] for row in followed}
    assert len(run("stream", "windows", queue).rows) == 2
    assert run("stream", "explain", queue, "--group", "g").row["stream"] == queue
    for target in ("1h", "beginning"):
        moved = run("stream", "seek", queue, "g", "--to", target, "--json").row
        assert (moved["stream"], moved["group"]) == (queue, "g")
    assert "nobody" in run("stream", "seek", queue, "nobody", "--to", "1h", code=3).err
    assert run("stream", "pause", queue, "g").row["paused"] is True
    assert run("stream", "resume", queue, "g").row["paused"] is False
    assert run("window", "tail", queue, "-g", "g", "--limit", "1").row["id"] == followed[0]["id"]
    run("stream", "delete", queue, "--group", "g", "--yes")
    assert run("stream", "show", queue).row["consumers"] == []


def test_dead_windows_are_shown_and_retried(run: Run, server: ServerProcess, queue: str) -> None:
    define(run, queue, "--retry-limit", "0")
    run("push", queue, "1", "2")
    with SyncQueen(server.url) as queen:
        window = queen.consumer(queue, "g").poll_window(20)
        assert window is not None
        window.nack("no such user")
    (dead,) = run("stream", "dead", queue, "--group", "g").rows
    assert dead["error"] == "no such user"
    retried = run("stream", "retry", queue, "g", "--window", dead["id"]).row
    assert retried["retried"] == 1
    assert run("stream", "dead", queue).out == ""


def test_tail_prints_messages(run: Run, queue: str) -> None:
    define(run, queue)
    run("push", queue, '{"n": 1}', "2")
    row = run("window", "tail", queue, "--group", "g", "--limit", "1", "--messages").row
    assert [one["data"] for one in row["messages"]] == [{"n": 1}, 2]
    assert row["consumerGroup"] == "g"


def test_tail_without_ack_gives_back_what_it_has_shown(run: Run, queue: str) -> None:
    define(run, queue, "--max-in-flight", "5", "--retry-limit", "0")
    run("push", queue, "1", "2", "3", "4")
    for _ in range(2):
        rows = run("window", "tail", queue, "-g", "g", "--no-ack", "--limit", "2").rows
        assert [row["attempt"] for row in rows] == [1, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tail_follows_what_is_new_until_ctrl_c(
    start: Start, run: Run, queue: str, number: signal.Signals
) -> None:
    define(run, queue)
    run("push", queue, '"old"', '"old"')
    # The group of the tail begins now: what was written before it is in no window of it.
    process = start("window", "tail", queue, "--messages")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("following ")
    run("push", queue, '"new"', '"new"')
    assert process.stdout is not None
    row = json.loads(process.stdout.readline())
    assert [one["data"] for one in row["messages"]] == ["new", "new"]
    process.send_signal(number)
    assert process.wait(timeout=20) == 0
    assert run("stream", "show", queue).row["consumers"] == []


def test_tail_from_a_place(run: Run, queue: str) -> None:
    define(run, queue)
    run("push", queue, "1", "2")
    assert run("window", "tail", queue, "--from", "1h", "--limit", "1").row["count"] == 2
    run("window", "tail", queue, "--group", "g", "--from", "now", code=2)
    run("window", "tail", f"{queue}-none", "--limit", "1", code=3)


def test_tables_on_a_terminal(run: Run, on_terminal: Run, queue: str) -> None:
    define(run, queue)
    run("push", queue, '{"total":12}', "2")
    shown = on_terminal("window", "tail", queue, "-g", "g", "-m", "--limit", "1").out
    assert "__GLOBAL__  2 messages" in shown
    assert f'{queue}/Default:0 {{"total":12}}' in shown
    assert "stream" in on_terminal("stream", "list").out
    assert "group" in on_terminal("stream", "show", queue).out
    assert "state" in on_terminal("stream", "windows", queue, "--group", "g").out
    assert "why" in on_terminal("stream", "explain", queue, "--group", "g").out
    assert "failed" in on_terminal("stream", "dead", queue).out
