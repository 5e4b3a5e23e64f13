"""The examples of the page about the command line run."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from queen.cli.exits import MEANINGS
from tests.cli.conftest import QUEEN, environment
from tests.conftest import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "command-line.md"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_every_example_runs(server: ServerProcess, queue: str, tmp_path: Path) -> None:
    text = PAGE.read_text().replace("orders", queue).replace("billing", f"b-{queue}")
    commands = [
        line.removeprefix("$ ") for block in _BLOCK.findall(text) for line in block.splitlines()
    ]
    assert len(commands) > 10
    for command in commands:
        done = subprocess.run(
            ["/bin/sh", "-c", f'queen() {{ "{QUEEN}" "$@"; }}; {command}'],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**environment(server.url), "XDG_CONFIG_HOME": str(tmp_path)},
            timeout=60,
            check=False,
        )
        # What the doctor finds depends on the machine: a disk that fills, for instance.
        codes = (0, 1) if command == "queen doctor" else (0,)
        assert done.returncode in codes, (command, done.stderr)
        for line in done.stdout.splitlines():
            json.loads(line)


def test_the_page_names_every_exit_code() -> None:
    text = PAGE.read_text()
    for code, meaning in MEANINGS.items():
        assert f"| {code} | {meaning} |" in text
