"""Servers in processes of their own, without the time that each takes to import what it needs.

A process that has imported the server forks for every one that is asked for. The child has the
words, the environment and the streams that were given, and then does what `queen` does: only
the imports are shared. Whoever started it has a handle like that of `subprocess`.

    test ── words, environment, three descriptors ──▶ nursery ── fork ──▶ server
      ▲                                                  │ reaps
      └──────────── exit code, on the third ─────────────┘
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO

import typer
from typer.testing import CliRunner

from queen.cli.main import app
from tests.clusters import copy_from

_MOST_BYTES = 1 << 20


class Forked:
    """A process that was forked for us, as `subprocess.Popen` shows one."""

    def __init__(self, command: Sequence[str], pid: int, ended: int, stdout: IO[str]) -> None:
        self.args = command
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _look(self, within_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], within_s)[0]:
            # The nursery has gone if there is nothing to read, and its children with it.
            self.returncode = int(os.read(self._ended, 100) or -signal.SIGKILL)
            os.close(self._ended)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """Starts `queen` from a process that is ready for it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            nothing = subprocess.DEVNULL
            self._process = subprocess.Popen(command, stdin=nothing, pass_fds=[theirs.fileno()])

    def start(self, arguments: Sequence[str], env: dict[str, str], errors: int) -> Forked:
        """Start a command; its standard output is a pipe to us."""
        ours, theirs = os.pipe()
        ended, ends = os.pipe()
        message = json.dumps([list(arguments), env]).encode()
        socket.send_fds(self._socket, [message], [theirs, errors, ends])
        os.close(theirs)
        os.close(ends)
        pid = int(self._socket.recv(100))
        return Forked(["queen", *arguments], pid, ended, os.fdopen(ours))

    def close(self) -> None:
        self._socket.close()
        self._process.wait(timeout=60)


@cache
def nursery() -> Nursery:
    """The one of this process, which ends with it."""
    made = Nursery()
    atexit.register(made.close)
    return made


# ---- in the process that forks ----


def _serve(asking: socket.socket) -> bool:
    """Fork for every command; return true in a child, and false when there are no more."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Whoever interrupts the tests interrupts the servers, and needs us to tell of their ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ends: dict[int, int] = {}
    while True:
        if woken in select.select([asking.fileno(), woken], [], [])[0]:
            os.read(woken, _MOST_BYTES)
            _reap(ends)
            continue
        message, received, *_ = socket.recv_fds(asking, _MOST_BYTES, 3)
        if not message:
            # Whoever asked has ended, and in haste if there are children.
            for child in ends:
                os.kill(child, signal.SIGTERM)
            return False
        *streams, end = received
        child = os.fork()
        if child == 0:
            arguments, env = json.loads(message)
            _become(arguments, env, streams)
            for own in (woken, wakes, end, *ends.values()):
                os.close(own)
            return True
        for stream in streams:
            os.close(stream)
        ends[child] = end
        asking.send(str(child).encode())


def _reap(ends: dict[int, int]) -> None:
    """Tell whoever waits for a child how it ended."""
    for child, end in list(ends.items()):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            os.write(end, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(end)
            del ends[child]


def _become(arguments: list[str], env: dict[str, str], streams: list[int]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["queen", *arguments]


def main() -> None:
    import uvloop  # noqa: F401 - imported late by a server, and now by none of them

    import queen.server.run  # noqa: F401 - the same

    command = typer.main.get_command(app)
    # Whatever else is imported late is imported by a command that ends at once.
    CliRunner().invoke(app, ["serve", "--show-settings"])
    logging.getLogger().handlers.clear()
    folder = Path(tempfile.mkdtemp())
    copy_from(folder)
    with socket.socket(fileno=int(sys.argv[1])) as asking:
        is_child = _serve(asking)
    if is_child:
        sys.exit(command())
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
