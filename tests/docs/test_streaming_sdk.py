"""The example of the page on the streaming SDK runs in the environment of the published client."""

from __future__ import annotations

import re
import subprocess

from tests.conftest import ServerProcess
from tests.originals.environments import ROOT, bare_environment, python_of

_PAGE = (ROOT / "docs" / "howto" / "streaming-sdk.md").read_text()


def _block(kind: str) -> str:
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", _PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_example_prints_what_the_page_says(server: ServerProcess, queue: str) -> None:
    # Names of its own.
    program = _block("py").replace("payments", queue).replace('"totals"', f'"{queue}.totals"')
    ended = subprocess.run(
        [str(python_of("0.15.0")), "-c", program],
        env={**bare_environment(), "QUEEN_URL": server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    # The client talks about itself, too.
    printed = [line for line in ended.stdout.splitlines() if line.startswith("total:")]
    assert printed == _block("text").splitlines()
