"""Commands in processes of their own, without the time that each takes to import what it needs.

A process that has imported the command line forks for every command. The child has the words,
the environment and the three streams of that command, and then does what `queen` does.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack

import typer
from typer.testing import CliRunner

from queen.cli.main import app

_MOST_BYTES = 1 << 20
_STREAMS = 3


class Forking:
    """Start commands from a process that is ready for them, one after another."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])

    def run(
        self, arguments: tuple[str, ...], env: dict[str, str], text: bytes
    ) -> subprocess.CompletedProcess[bytes]:
        with ExitStack() as files:
            given, out, err = (
                files.enter_context(tempfile.TemporaryFile()) for _ in range(_STREAMS)
            )
            given.write(text)
            given.seek(0)
            message = json.dumps([arguments, env]).encode()
            streams = [one.fileno() for one in (given, out, err)]
            socket.send_fds(self._socket, [message], streams)
            code = int(self._socket.recv(100))
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(arguments, code, out.read(), err.read())

    def close(self) -> None:
        self._socket.close()
        self._process.wait(timeout=60)


def _serve(asking: socket.socket) -> bool:
    """Fork for every command; return true in a child, and false when there are no more."""
    while True:
        message, streams, *_ = socket.recv_fds(asking, _MOST_BYTES, _STREAMS)
        if not message:
            return False
        child = os.fork()
        if child == 0:
            arguments, env = json.loads(message)
            _become(arguments, env, streams)
            return True
        for stream in streams:
            os.close(stream)
        _, status = os.waitpid(child, 0)
        asking.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(arguments: list[str], env: dict[str, str], streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["queen", *arguments]


if __name__ == "__main__":
    command = typer.main.get_command(app)
    # Whatever is imported late is imported by a command, though it finds no server.
    CliRunner().invoke(app, ["status", "--url", "http://127.0.0.1:9"])
    # Its log went where nobody writes any more; every child sets up its own.
    logging.getLogger().handlers.clear()
    with socket.socket(fileno=int(sys.argv[1])) as asking:
        is_child = _serve(asking)
    if is_child:
        sys.exit(command())
