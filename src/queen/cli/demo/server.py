"""The server of a demo: `queen serve` in a temporary folder, gone when the demo ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import typer


class DemoServer(NamedTuple):
    port: int
    data_dir: Path


@contextmanager
def own_server() -> Iterator[DemoServer]:
    """Serve on a free port until the block ends; what the server logs is shown if it fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="queen-demo-") as folder:
        log, data_dir = Path(folder) / "log", Path(folder) / "data"
        process = _serve(port, data_dir, log)
        try:
            assert process.stdout is not None
            if not any(line.startswith("queen ready") for line in process.stdout):
                typer.echo(log.read_text(), err=True)
                raise typer.Exit(code=1)
            yield DemoServer(port, data_dir)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def _serve(port: int, data: Path, log: Path) -> subprocess.Popen[str]:
    code = "from queen.cli.main import app; app()"
    command = [sys.executable, "-c", code, "serve", "--port", str(port), "--data-dir", str(data)]
    environment = {key: value for key, value in os.environ.items() if not _misleads(key)}
    with log.open("w") as errors:
        return subprocess.Popen(  # noqa: S603 (our own program)
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )


def _misleads(variable: str) -> bool:
    """Whether a variable would send the demo to a server or database that is not its own."""
    return variable in ("HOST", "PORT") or variable.startswith(("QUEEN_", "PG_", "JWT_"))
