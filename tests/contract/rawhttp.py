"""HTTP by hand, for what a proper client would never send."""

from __future__ import annotations

import json
import select
import socket
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

GET_HEALTH = b"GET /health/live HTTP/1.1\r\nHost: queen\r\n\r\n"


@dataclass
class RawAnswer:
    version: str
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RawConnection:
    def __init__(self, url: str, timeout_s: float = 30) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=timeout_s)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    @property
    def port(self) -> int:
        """Its own end."""
        port: int = self._socket.getsockname()[1]
        return port

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_until_refused(self, part: bytes, limit_bytes: int) -> None:
        """Send the same part again and again; the server may hang up in between."""
        try:
            for _ in range(0, limit_bytes, len(part)):
                self._socket.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def set_timeout(self, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)

    def send_in_background(self, data: bytes, times: int) -> threading.Thread:
        """Send the same several times while answers are read."""

        def run() -> None:
            for _ in range(times):
                self._socket.sendall(data)

        sender = threading.Thread(target=run, daemon=True)
        sender.start()
        return sender

    def answer(self, *, to_head: bool = False) -> RawAnswer:
        """Read one answer; one to HEAD has no body whatever its headers say."""
        version, status, _ = self.line().split(" ", 2)
        headers: dict[str, str] = {}
        while line := self.line():
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        if int(status) < 200:
            return self.answer()
        body = b"" if to_head or status == "204" else self._body(headers)
        return RawAnswer(version, int(status), headers, body)

    def line(self) -> str:
        """Read one line of the head of an answer."""
        line = self._file.readline()
        assert line.endswith(b"\r\n"), f"the server hung up, the last it sent was {line!r}"
        return line[:-2].decode()

    def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            return b"".join(iter(self._chunk, b""))
        if "content-length" in headers:
            return self._file.read(int(headers["content-length"]))
        return self._file.read()

    def _chunk(self) -> bytes:
        size = int(self.line(), 16)
        data = self._file.read(size)
        assert self.line() == ""
        return data

    def everything(self) -> bytes:
        """Read until the server hangs up."""
        parts: list[bytes] = []
        try:
            while part := self._file.read1(65536):
                parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts)

    def is_readable(self, within_s: float) -> bool:
        """Whether the server says anything within some seconds."""
        return bool(select.select([self._socket], [], [], within_s)[0])

    def is_closed(self) -> bool:
        """Wait for the server to hang up; false when it sends something else first."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True


def request(
    method: str, path: str, body: bytes = b"", headers: str = "", version: str = "1.1"
) -> bytes:
    """Return the bytes of a request; `headers` are whole lines."""
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    head = f"{method} {path} HTTP/{version}\r\nHost: queen\r\n{headers}{length}\r\n"
    return head.encode() + body
