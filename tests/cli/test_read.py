"""`queen pop`, `tail` and `replay` print messages, and only messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import QUEEN, Run, environment
from tests.conftest import ServerProcess
from tests.programs import bound

Start = Callable[..., subprocess.Popen[str]]


def test_pop_takes_and_acks(run: Run, queue: str) -> None:
    run("push", queue, "1", "2", "3")
    assert [row["data"] for row in run("pop", queue, "--batch", "2").rows] == [1, 2]
    assert run("pop", queue).row["data"] == 3
    assert run("pop", queue).out == ""


def test_pop_without_ack_keeps_the_lease(run: Run, queue: str) -> None:
    run("push", queue, "1")
    assert run("pop", queue, "--group", "g", "--no-ack").row["leaseId"]
    assert run("pop", queue, "--group", "g").out == ""
    assert run("pop", queue, "--group", "other").row["data"] == 1


def test_pop_says_whether_the_group_is_shared(run: Run, queue: str) -> None:
    run("push", queue, "1")
    run("push", queue, "2")
    taken = [
        run("pop", queue, "--group", "g", "--no-ack", *kind).rows
        for kind in (("--shared",), (), ("--ordered",))
    ]
    assert [[row["data"] for row in rows] for rows in taken] == [[1], [2], []]


def test_pop_draws_a_table_on_a_terminal(run: Run, on_terminal: Run, queue: str) -> None:
    run("push", queue, '{"total": 12}', "2")
    shown = on_terminal("pop", queue).out
    assert "partition" in shown
    assert '{"total": 12}' in shown
    assert json.loads(on_terminal("pop", queue, "--json").out)["data"] == 2


def following(start: Start, *arguments: str) -> subprocess.Popen[str]:
    process = start("tail", *arguments)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("following ")
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tail_follows_what_is_new_until_ctrl_c(
    start: Start, run: Run, queue: str, number: signal.Signals
) -> None:
    run("push", queue, '"old"')
    process = following(start, queue)
    run("push", queue, '"new"')
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["data"] == "new"
    process.send_signal(number)
    assert process.wait(timeout=20) == 0
    groups = [row["name"] for row in run("group", "list").rows if row["queueName"] == queue]
    assert groups == []


def test_tail_from_the_beginning_ends_at_its_limit(run: Run, queue: str) -> None:
    run("push", queue, "1", "2", "3")
    for start in ("beginning", "1h"):
        ran = run("tail", queue, "--from", start, "--limit", "2")
        assert [row["data"] for row in ran.rows] == [1, 2]


def test_tail_of_a_group_is_that_group(run: Run, queue: str) -> None:
    run("push", queue, "1", "2")
    assert run("tail", queue, "--group", "g", "--limit", "1").row["data"] == 1
    assert run("pop", queue, "--group", "g").row["data"] == 2
    run("tail", queue, "--group", "g", "--from", "now", code=2)
    run("tail", queue, "--from", "yesterday-ish", code=2)


def test_tail_shows_lines_on_a_terminal(run: Run, on_terminal: Run, queue: str) -> None:
    run("push", queue, '{"total":12}')
    shown = on_terminal("tail", queue, "--from", "beginning", "--limit", "1").out
    assert 'Default:0 {"total":12}' in shown


def test_replay_to_another_queue_keeps_ids_and_partitions(run: Run, queue: str) -> None:
    run("push", queue, "--partition", "p", "1", "2")
    copy = f"{queue}-copy"
    assert "2 stored" in run("replay", queue, "--to", copy).err
    assert "2 duplicates" in run("replay", queue, "--to", copy).err
    kept = ("partition", "transactionId", "data")
    assert [[row[key] for key in kept] for row in run("replay", copy).rows] == [
        [row[key] for key in kept] for row in run("replay", queue).rows
    ]
    run("replay", queue, "--to", queue, code=2)


def test_replay_of_a_time(run: Run, queue: str) -> None:
    run("push", queue, "1")
    assert run("replay", queue, "--since", "1h").row["data"] == 1
    assert run("replay", queue, "--until", "1h").out == ""
    assert run("replay", queue, "--partition", "Default").row["data"] == 1
    run("replay", queue, "--partition", "none", code=3)
    run("replay", f"{queue}-none", code=3)
    run("replay", queue, "--since", "soon", code=2)


def test_replay_exports(run: Run, on_terminal: Run, queue: str, tmp_path: Path) -> None:
    run("push", queue, "1", "2")
    file = tmp_path / "out.ndjson"
    assert "2 messages" in run("replay", queue, "--output", str(file)).err
    assert [json.loads(line)["data"] for line in file.read_text().splitlines()] == [1, 2]
    assert "Default:1 2" in on_terminal("replay", queue).out
    run("replay", queue, "--output", str(tmp_path / "no" / "out"), code=2)


def test_a_reader_that_has_seen_enough_is_no_error(
    run: Run, server: ServerProcess, queue: str
) -> None:
    run("push", queue, text="".join(f'"{"x" * 100} {number}"\n' for number in range(20_000)))
    ours, theirs = os.pipe()
    command = [QUEEN, "replay", queue]
    pipe = subprocess.PIPE
    with bound(
        subprocess.Popen(
            command, stdout=theirs, stderr=pipe, text=True, env=environment(server.url)
        )
    ) as process:
        os.close(theirs)
        assert os.read(ours, 100)
        os.close(ours)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, "")


def test_a_queue_that_is_not_there_is_not_found(run: Run, queue: str) -> None:
    assert queue in run("pop", queue, code=3).err
    run("pop", queue, "--wait", "0.2", code=3)
    run("tail", queue, code=3)


def test_a_replay_ends_after_so_many(run: Run, queue: str) -> None:
    run("push", queue, *map(str, range(20)))
    assert [row["data"] for row in run("replay", queue, "--limit", "3").rows] == [0, 1, 2]
    run("replay", queue, "--limit", "5", "--to", f"{queue}-copy")
    assert len(run("replay", f"{queue}-copy").rows) == 5
