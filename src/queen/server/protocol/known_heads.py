"""Heads of requests that came before: what they say is known, and nobody parses them again.

A client sends the same head with each request, but for the length of its body. The parser reads
a head once; the same bytes, at the same place between two requests, say the same again.

    data   POST /api/v1/push HTTP/1.1\\r\\n … content-length: 310\\r\\n\\r\\n{"items": …}
           └─────────────── the key, without the number ────────────┘└── the body ─┘

A head may hold a token. So all are forgotten after a while; those in use come back.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# How many are kept, how long one may be, and how long all are kept.
MOST = 1000
_MOST_BYTES = 1024
KEPT_S = 60.0

_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,9})\r\n", re.IGNORECASE)


class KnownHead(NamedTuple):
    """What a head says, of a request after which the connection is kept."""

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]


class Cut(NamedTuple):
    """A request that stands whole in what has come."""

    # The head without the length of the body.
    key: bytes
    body_at: int
    end: int


def cut(data: bytes, start: int) -> Cut | None:
    """Return the request that begins at a place; None unless it is there to its end."""
    body_at = data.find(_END, start, start + _MOST_BYTES) + len(_END)
    if body_at < len(_END):
        return None
    length = _LENGTH.search(data, start, body_at)
    if length is None:
        return Cut(data[start:body_at], body_at, body_at)
    end = body_at + int(length[1])
    if end > len(data):
        return None
    low, high = length.span(1)
    return Cut(data[start:low] + data[high:body_at], body_at, end)


class KnownHeads:
    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}
        self._forgotten_at = 0.0
        self.get = self._heads.get

    def __len__(self) -> int:
        return len(self._heads)

    def learn(self, key: bytes, head: KnownHead) -> None:
        if len(self._heads) >= MOST:
            self._heads.clear()
        self._heads[key] = head

    def forget_old(self, now: float) -> None:
        """Forget all of them, once in a while."""
        if now - self._forgotten_at > KEPT_S:
            self._forgotten_at = now
            self._heads.clear()
