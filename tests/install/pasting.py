"""A reader at a Python prompt, who pastes the blocks of a page one after the other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.docs.test_python_pages import blocks

# In the order in which the README names them; Spark comes after them.
WAYS_IN = [
    "README.md",
    "docs/tutorial/first-queue.md",
    "docs/tutorial/first-stream.md",
    "docs/tutorial/first-stream-worker.md",
]


def pasted(page: str, prompt: str, folder: Path, env: dict[str, str]) -> list[str]:
    """Paste the blocks of a page where a command has started a prompt; return what is shown."""
    program, _ = blocks(page)
    program = program.replace("port=6379", f"port={env['QUEEN_RESP_PORT']}")
    program = program.replace("127.0.0.1:6632", f"127.0.0.1:{env['QUEEN_PORT']}")
    done = subprocess.run(
        ["sh", "-e", "-c", prompt],
        cwd=folder,
        env=env,
        # Who pastes presses Enter at the end.
        input=program + "\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "SyntaxError" not in done.stdout, done.stdout
    return [re.sub(r"^(?:(?:>>>|\.\.\.) )*", "", line) for line in done.stdout.splitlines()]


def missing_of(said: list[str], shown: list[str]) -> list[str]:
    """Return the lines that were not shown in their order."""
    rest = iter(shown)
    return [line for line in said if line not in rest]
