"""Whatever a client sends, the server lives on within its memory, and others are served."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil  # type: ignore[import-untyped,unused-ignore]
import pytest

from tests.resp.standalone import HELD_BYTES, UNREAD_BYTES
from tests.resp.wire import packed
from tests.waiting import until

_MB = 1024 * 1024
_SESSION = (
    packed("HELLO", "3")
    + packed("XADD", "s", "*", "f", b"v\r\nw")
    + b"PING\r\n"
    + packed("MULTI")
    + packed("XLEN", "s")
    + packed("EXEC")
    + packed("XREAD", "COUNT", "1", "STREAMS", "s", "0")
    + packed("ECHO", "end")
)


class Standalone:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.resp.standalone"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self._neighbour = self.connect()

    def connect(self) -> socket.socket:
        opened = socket.create_connection(("127.0.0.1", self.port))
        opened.settimeout(30)
        return opened

    def serves_others(self) -> None:
        """A neighbour that has been there all the time is answered."""
        self._neighbour.sendall(packed("PING"))
        assert self._neighbour.recv(100) == b"+PONG\r\n"

    def memory_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def stop(self) -> None:
        self._neighbour.close()
        _, errors = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, errors
        assert "Traceback" not in errors, errors


@pytest.fixture(scope="module")
def hardy() -> Iterator[Standalone]:
    """One process takes all of it, and has nothing left of it at the end."""
    running = Standalone()
    yield running
    running.stop()


def _answer(server: Standalone, data: bytes) -> bytes:
    """Send bytes and the end, and return all that is answered."""
    with server.connect() as client:
        try:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            answer = b""
            while part := client.recv(65536):
                answer += part
        except OSError:
            # It was hung up on.
            return b""
    return answer


def test_a_session_may_end_anywhere(hardy: Standalone) -> None:
    whole = _answer(hardy, _SESSION)
    assert whole.endswith(b"$3\r\nend\r\n")
    # The id of the client is another one each time.
    number = whole.index(b":", whole.index(b"$2\r\nid"))
    for end in range(len(_SESSION)):
        answer = _answer(hardy, _SESSION[:end])
        assert answer[:number] == whole[: min(number, len(answer))]
    hardy.serves_others()


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_any_byte_of_a_session_may_be_wrong(mask: int, hardy: Standalone) -> None:
    for at in range(len(_SESSION)):
        damaged = bytearray(_SESSION)
        damaged[at] ^= mask
        # A count that has grown only waits for more, and that does not come.
        _answer(hardy, bytes(damaged))
    hardy.serves_others()


@pytest.mark.parametrize(
    "bomb",
    [
        b"*2147483647\r\n",
        b"*1048576\r\n$536870912\r\n",
        b"*1\r\n" * 100_000,
        b"*1048576\r\n" + b"$0\r\n\r\n" * 100_000,
        b"*2\r\n$4\r\nECHO\r\n$8000000\r\n" + b"x" * 1000,
        b"$" * _MB,
        b"\r\n" * 200_000,
        b"\0" * _MB,
        b"*0\r\n" * 200_000,
        b"x " * 30_000 + b"\r\n",
        b'"' * 60_000 + b"\r\n",
        packed("MULTI") + packed("ECHO", b"x" * 100) * 200_000,
        packed("XREAD", "BLOCK", "0", "STREAMS", "s", "$") + packed("ECHO", b"x" * 1000) * 20_000,
        packed("CLIENT", "REPLY", "OFF") + packed("ECHO", b"x" * 1000) * 20_000,
        packed("QUUX", *[b"\r\n-ERR\0\xff" * 20] * 20) * 100,
        packed("HELLO", *[b"AUTH"] * 1000) * 10,
        packed("CLIENT", *[b"x"] * 1000) * 10,
    ],
    ids=lambda bomb: repr(bomb[:24]),
)
def test_a_bomb_is_defused(bomb: bytes, hardy: Standalone) -> None:
    before = hardy.memory_bytes()
    _answer(hardy, bomb)
    hardy.serves_others()
    assert hardy.memory_bytes() - before < 2 * HELD_BYTES


def test_others_are_served_while_floods_go_on(hardy: Standalone) -> None:
    floods = (
        b"\r\n" * 100_000,
        packed("PING") * 20_000,
        packed("XADD", "s", "*", "f", "a\r\nb") * 5_000,
        b"*1048576\r\n" + b"$0\r\n\r\n" * 50_000,
        packed("QUUX") * 10_000,
    )
    with ThreadPoolExecutor(len(floods)) as pool:
        flooding = [pool.submit(_answer, hardy, flood) for flood in floods]
        served = 0
        while not all(flood.done() for flood in flooding):
            hardy.serves_others()
            served += 1
        assert served > 5
        assert flooding[1].result() == b"+PONG\r\n" * 20_000
        assert flooding[2].result() == b"*-1\r\n" * 5_000


def test_clients_that_never_read_take_no_more_than_they_may(hardy: Standalone) -> None:
    before = hardy.memory_bytes()
    asked = packed("XRANGE", "s", "-", "+") * 5000
    with ExitStack() as ends:
        for _ in range(5):
            client = ends.enter_context(hardy.connect())
            client.sendall(asked)
        for _ in range(100):
            hardy.serves_others()
        assert hardy.memory_bytes() - before < 5 * UNREAD_BYTES


def test_half_commands_of_many_clients_are_bounded_together(hardy: Standalone) -> None:
    before = hardy.memory_bytes()
    half = packed("ECHO", b"x" * 6 * _MB)[:-1]
    with ExitStack() as ends:
        for _ in range(30):
            client = ends.enter_context(hardy.connect())
            try:
                client.sendall(half)
            except (ConnectionResetError, BrokenPipeError):
                # It was hung up on while it sent.
                continue
        hardy.serves_others()
        assert hardy.memory_bytes() - before < 3 * HELD_BYTES


def test_a_thousand_clients_are_served(hardy: Standalone) -> None:
    with ExitStack() as ends:
        clients = [ends.enter_context(hardy.connect()) for _ in range(1000)]
        for client in clients:
            client.sendall(packed("XLEN", "s") + packed("PING"))
        for client in clients:
            answer = b""
            while len(answer) < 12:
                answer += client.recv(100)
            assert answer == b"*-1\r\n+PONG\r\n"
        # Some drip a byte at a time, some wait, and the others are served.
        for at, client in enumerate(clients):
            sent = packed("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
            client.sendall(sent if at % 2 else sent[: at % len(sent)])
        hardy.serves_others()
    until(lambda: _clients(hardy) == 1)


def _clients(server: Standalone) -> int:
    listed = _answer(server, packed("INFO", "clients"))
    return int(listed.partition(b"connected_clients:")[2].partition(b"\r\n")[0]) - 1
