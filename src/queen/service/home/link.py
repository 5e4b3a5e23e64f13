"""One end of the stream between a front and its home.

What is said in one turn of the event loop is written at once, and what arrives together is read
together: under load a write carries many calls, and a lone one waits for nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from queen.service.home.calls import HEADER, Kind

_HEADER_BYTES = HEADER.size
_NEVER_S = 1e9

Hear = Callable[[int, int, bytes], None]


class Link(asyncio.Protocol):
    """Calls `hear(kind, call, body)` for each frame, and `lost` once, when it is over."""

    def __init__(
        self, hear: Hear, lost: Callable[[], None], opened: Callable[[], None] | None = None
    ) -> None:
        self._hear = hear
        self._lost = lost
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._said: list[bytes] = []
        # How soon it is going to be written.
        self._due_within_s = _NEVER_S
        self._buffer = bytearray()
        self.heard_at = time.monotonic()
        self.is_open = False

    # ---- saying ----

    def say(self, kind: Kind, call: int = 0, body: bytes = b"", within_s: float = 0.0) -> None:
        """Say something, in this turn of the event loop or, with what others say, a bit later."""
        if not self.is_open:
            return
        if within_s < self._due_within_s:
            self._due_within_s = within_s
            if within_s:
                self._loop.call_later(within_s, self._write)
            else:
                self._loop.call_soon(self._write)
        self._said += (HEADER.pack(len(body), kind, call), body)

    def _write(self) -> None:
        said, self._said = self._said, []
        self._due_within_s = _NEVER_S
        if self._transport is not None and said:
            self._transport.write(b"".join(said))

    def close(self) -> None:
        """Write what was said, and end."""
        self._write()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ---- hearing ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self.is_open = True
        if self._opened is not None:
            self._opened()

    def data_received(self, data: bytes) -> None:
        self.heard_at = time.monotonic()
        if self._buffer:
            self._buffer += data
            data = self._take_whole()
        at, end = 0, len(data)
        while end - at >= _HEADER_BYTES:
            size, kind, call = HEADER.unpack_from(data, at)
            after = at + _HEADER_BYTES + size
            if after > end:
                break
            self._hear(kind, call, data[at + _HEADER_BYTES : after])
            at = after
        if at < end:
            self._buffer += data[at:]

    def _take_whole(self) -> bytes:
        """Return what has arrived, once its first frame is whole; nothing before that."""
        if len(self._buffer) >= _HEADER_BYTES:
            size = HEADER.unpack_from(self._buffer)[0]
            if len(self._buffer) >= _HEADER_BYTES + size:
                data = bytes(self._buffer)
                self._buffer = bytearray()
                return data
        return b""

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._transport = None
        self._lost()
