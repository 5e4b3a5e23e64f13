"""Exit codes and the line that goes with them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from queen.cli.exits import INTERRUPTED, MEANINGS
from tests.cli.conftest import QUEEN, Run, environment
from tests.conftest import ServerProcess
from tests.ports import free_port


def test_help_names_the_exit_codes(run: Run) -> None:
    said = " ".join(run("--help").out.split())
    for code, meaning in MEANINGS.items():
        assert f"{code} {meaning}" in said


@pytest.mark.parametrize(
    "arguments",
    [("push", "q", "1"), ("pop", "q"), ("tail", "q"), ("replay", "q"), ("status",), ("bench",)],
    ids=lambda arguments: str(arguments[0]),
)
def test_no_server_is_5_and_says_how_to_start_one(run: Run, arguments: tuple[str, ...]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    ran = run(*arguments, "--url", url, code=5)
    (line,) = [line for line in ran.err.splitlines() if line.startswith("queen:")]
    assert url in line
    assert "queen serve" in line
    assert ran.out == ""


def test_one_of_several_servers_is_enough(run: Run, server: ServerProcess, queue: str) -> None:
    urls = f"http://127.0.0.1:{free_port()},{server.url}"
    run("push", queue, "1", "--url", urls)
    assert run("pop", queue, "--url", urls).row["data"] == 1
    assert run("replay", queue, "--url", urls).row["data"] == 1


def test_a_url_that_is_none_is_wrong_usage(run: Run) -> None:
    assert "http://localhost:6632" in run("status", "--url", "ftp://x", code=2).err


def test_no_token_or_a_weak_one_is_4(
    run: Run, start_server: Callable[..., ServerProcess], tmp_path: Path, queue: str
) -> None:
    server = start_server("--auth", "tokens", "--data-dir", str(tmp_path))
    admin = server.said[-1].rsplit(" ", 1)[1].strip()
    assert "--token" in run("status", "--url", server.url, code=4).err
    assert "--token" in run("push", queue, "1", "--url", server.url, code=4).err
    assert "--token" in run("replay", queue, "--url", server.url, code=4).err
    run("push", queue, "1", "--url", server.url, "--token", admin)
    made = server.api().call(
        "POST",
        "/api/v1/tokens",
        '{"name":"reader","role":"read-only"}',
        headers={"authorization": f"Bearer {admin}"},
    )
    weak = made.json["token"]
    run("status", "--url", server.url, "--token", weak)
    ran = run("queue", "delete", queue, "-y", "--url", server.url, "--token", weak, code=4)
    assert "use a token that may" in ran.err


def test_help_needs_neither_a_server_nor_tables() -> None:
    heavy = ["asyncpg", "rich.table", "rich.progress", "uvloop", "queen.server"]
    code = f"import sys, queen.cli.main; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "[]"


def completed(url: str, line: str) -> list[str]:
    asked = {"_QUEEN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "2"}
    done = subprocess.run(
        [QUEEN],
        capture_output=True,
        text=True,
        env=environment(url) | asked,
        timeout=30,
        check=False,
    )
    return done.stdout.split()


def test_queue_names_are_completed_from_the_server(
    run: Run, server: ServerProcess, queue: str
) -> None:
    run("queue", "create", queue)
    assert completed(server.url, f"queen pop {queue[:8]}") == [queue]
    assert completed(f"http://127.0.0.1:{free_port()}", f"queen pop {queue[:8]}") == []


def test_no_input_at_all_is_fine(run: Run, queue: str) -> None:
    assert "0 stored" in run("push", queue, text="").err


def test_a_token_of_two_lines_is_wrong_usage(run: Run) -> None:
    assert "--token" in run("status", "--token", "a\r\nx-b: c", code=2).err


def test_debug_says_what_is_asked_and_no_secret(run: Run, queue: str) -> None:
    given = ("--token", "hidden-token", "--log-level", "debug")
    said = run("push", queue, '"hidden-payload"', *given).err
    assert re.search(r"queen: POST /api/v1/\S+ at 127.0.0.1:\d+: 20\d, [\d.]+ ms", said)
    assert "hidden" not in said
    assert "selector" not in said


def test_ctrl_c_is_130(start: Callable[..., subprocess.Popen[str]], run: Run, queue: str) -> None:
    process = start("push", queue, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("1\n")
    process.stdin.flush()
    assert run("pop", queue, "--wait", "20").row["data"] == 1
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == INTERRUPTED
