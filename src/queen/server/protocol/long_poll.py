"""Waiting for a long poll, and for nobody who has hung up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from queen.server.protocol.http import Request

T = TypeVar("T")


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Wait for work, but not longer than the client does."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.connection.wait_until_gone())
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            return None
        return working.result()
    finally:
        gone.cancel()
