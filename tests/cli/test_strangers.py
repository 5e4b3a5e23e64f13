"""Names, payloads and errors of strangers: what a terminal and a shell make of them."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api import Api
from tests.cli.conftest import QUEEN, Run, environment, plain
from tests.cli.test_contexts import complete
from tests.conftest import ServerProcess
from tests.programs import bound
from tests.waiting import until

Start = Callable[..., subprocess.Popen[str]]

# It colours, turns the direction of writing, and rings.
_ACTING = "x\x1b[31m\u009b32m\u202eabc\u2066\u200f\u061c\x07\x7f"
_RAW = ("\u009b", "\u202e", "\u2066", "\u200f", "\u061c", "\x07", "\x7f", "\x1b[31m")


# ---- shells ----


def _typed_in_bash(server: ServerProcess, folder: Path, keys: str) -> str:
    """Type keys in a bash that has our completion; return what it shows, until it ends."""
    env = {**environment(server.url), "HOME": str(folder), "PATH": _path()}
    env["_QUEEN_COMPLETE"] = "source_bash"
    script = subprocess.run([QUEEN], env=env, capture_output=True, text=True, check=True).stdout
    (folder / "completion.sh").write_text(f"{script}\nPS1='ready> '\n")
    env.pop("_QUEEN_COMPLETE")
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--noprofile", "--rcfile", "completion.sh", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
        cwd=folder,
        start_new_session=True,
    )
    with bound(shell):
        os.close(theirs)
        shown = _read_until(ours, "ready> ")
        # A Tab takes the time of a command: what follows is typed when its end is seen.
        for part in keys.split("|"):
            os.write(ours, part.encode())
            shown += _read_quiet(ours)
        os.write(ours, b"\rexit\r")
        until(lambda: _read_quiet(ours, 0.2) is not None and shell.poll() is not None)
        os.close(ours)
    return plain(shown)


def _path() -> str:
    return f"{Path(QUEEN).parent}:{os.environ['PATH']}"


def _read_until(terminal: int, wanted: str) -> str:
    shown = ""
    while wanted not in shown:
        shown += os.read(terminal, 65536).decode()
    return shown


def _read_quiet(terminal: int, quiet_s: float = 4.0) -> str:
    """Return what comes until nothing has come for some time."""
    shown, deadline = "", time.monotonic() + 60
    while time.monotonic() < deadline and select.select([terminal], [], [], quiet_s)[0]:
        try:
            shown += os.read(terminal, 65536).decode()
        except OSError:
            break
    return shown


def test_completion_runs_nothing_in_bash(api: Api, server: ServerProcess, tmp_path: Path) -> None:
    run = uuid.uuid4().hex[:8]
    evil, good = f"pwn{run}$(touch${{IFS}}evil)", f"good.{run}-orders"
    for name in (evil, good):
        api.push_many(name, 1)
    shown = _typed_in_bash(server, tmp_path, f"queen queue show pwn{run}\t|\r")
    assert "touch" not in shown
    assert not (tmp_path / "evil").exists()
    assert good in _typed_in_bash(server, tmp_path, f"queen queue show good.{run}\t|")
    for name in (evil, good):
        api.delete_queue(name)


@pytest.mark.parametrize(
    "name",
    ["a b", "c?d", "e#f", "g&h", "i;j", "k'l", 'm"n', "o`p", "q:r", "s=t", "-u", "v*", "w\\"],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_name_that_means_something_to_a_shell_is_not_offered(
    api: Api, server: ServerProcess, queue: str, name: str, shell: str
) -> None:
    awkward = f"{name[0]}{queue}{name}"
    api.push_many(awkward, 1)
    words = f"queen queue show {name[0]}{queue}"
    more = {
        "_QUEEN_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    assert queue not in complete(server, words, **more).stdout
    api.delete_queue(awkward)


def test_groups_of_the_queue_or_the_stream_are_completed(
    api: Api, run: Run, server: ServerProcess, queue: str
) -> None:
    for name in (queue, f"other-{queue}"):
        api.push_many(name, 1)
        api.messages(name, consumerGroup=f"reads-{name}")
    run("stream", "define", f"s-{queue}", queue, "--tumbling", "1")
    run("stream", "pause", f"s-{queue}", "nobody", code=(0, 3))
    assert complete(server, f"queen seek {queue} reads-").stdout.split() == [f"reads-{queue}"]
    assert complete(server, "queen queue alter q --unset leas").stdout.split() == ["leaseTime"]
    until(lambda: run("stream", "windows", f"s-{queue}").out)
    run("window", "tail", f"s-{queue}", "-g", "rollup", "--limit", "1")
    offered = complete(server, f"queen stream seek s-{queue} r").stdout.split()
    assert offered == ["rollup"]
    api.delete_queue(f"other-{queue}")


# ---- terminals ----


def test_nothing_acts_on_a_terminal(api: Api, run: Run, on_terminal: Run, queue: str) -> None:
    run("queue", "create", queue, "-o", "retryLimit=0", "-o", "retryDelay=0")
    assert api.push({"queue": queue, "payload": {"a": _ACTING}}).status == 201
    (message,) = api.messages(queue, consumerGroup="g")
    assert api.ack(message, "failed", error=_ACTING).status == 200
    for command in (
        ["replay", queue],
        ["replay", queue, "--json"],
        ["pop", queue, "--no-ack", "-g", "a"],
        ["pop", queue, "--no-ack", "-g", "b", "--json"],
        ["tail", queue, "--from", "beginning", "--limit", "1"],
        ["dlq", "list", queue],
        ["dlq", "list", queue, "--json"],
        ["dlq", "errors", queue],
    ):
        shown = on_terminal(*command).out
        assert not [char for char in _RAW if char in shown], (command, shown)
        assert "\\u202e" in shown, command
    only = on_terminal("replay", queue, "--json").out
    assert json.loads(only)["data"]["a"] == _ACTING


def test_a_pipe_gets_what_was_pushed(api: Api, run: Run, queue: str) -> None:
    run("push", queue, '{"a":"\u009b\u202e"}')
    for command in (["replay", queue], ["pop", queue]):
        ran = run(*command)
        assert ran.row["data"]["a"] == "\u009b\u202e"
        assert "\u009b\u202e" in ran.out


def test_errors_are_broken_between_words(on_terminal: Run) -> None:
    shown = on_terminal("queue", "show", "no-such-queue-" + "x" * 20, columns=60, code=3).out
    assert "shows what there is" in " ".join(shown.split())
    assert all(len(line) <= 60 for line in shown.splitlines())


# ---- consumers without a group ----


def test_consumers_without_a_group_are_named_as_they_are_shown(
    api: Api, run: Run, on_terminal: Run, queue: str
) -> None:
    api.push_many(queue, 2)
    api.messages(queue)
    shown = on_terminal("group", "show", "(no group)", "-q", queue).out
    assert "Default" in shown
    for command in (
        ["seek", queue, "(no group)", "--to", "beginning"],
        ["group", "pause", "(no group)", "-q", queue],
        ["group", "resume", "(no group)", "-q", queue],
        ["dlq", "list", queue, "--group", "(no group)"],
        ["pop", queue, "--group", "(no group)", "--no-ack"],
        ["group", "delete", "(no group)", "-q", queue, "--yes"],
    ):
        assert "__QUEUE_MODE__" not in on_terminal(*command).out, command
    missing = on_terminal("group", "delete", "(no group)", "-q", queue, "--yes", code=3).out
    assert "__QUEUE_MODE__" not in missing
    api.messages(queue)
    (row,) = [row for row in run("group", "list").rows if row["queueName"] == queue]
    assert row["name"] == "__QUEUE_MODE__"


# ---- bench ----


@pytest.mark.parametrize("more", [["--seconds", "30"], ["--latency", "--messages", "100000"]])
def test_an_interrupted_bench_leaves_nothing(run: Run, start: Start, more: list[str]) -> None:
    bench = start("bench", *more)
    assert bench.stderr is not None
    name = ""
    while not name:
        words = bench.stderr.readline().split()
        name = next((word for word in words if word.startswith("bench-")), "")
    until(lambda: name in run("queue", "list").out)
    bench.send_signal(signal.SIGINT)
    bench.communicate(timeout=90)
    assert bench.returncode == 130
    assert name not in run("queue", "list").out


# ---- tokens ----


@pytest.mark.parametrize("days", ["-1", "0", "99999", "nan"])
def test_a_lifetime_that_cannot_be_is_wrong_usage(run: Run, days: str) -> None:
    ran = run("token", "create", "--name", "n", f"--expires-in-days={days}", code=2)
    assert "--expires-in-days" in ran.err
    assert "JSON" not in ran.err
