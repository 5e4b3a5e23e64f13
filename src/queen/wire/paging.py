"""Which part of a list an answer is."""

from __future__ import annotations

import msgspec


class Pagination(msgspec.Struct):
    limit: int
    offset: int
    total: int
