"""Completion of names in the shell, from the server, when it answers at once."""

from __future__ import annotations

import asyncio
import contextlib

import typer

# Nobody who presses Tab waits for a server that is not there.
_PATIENCE_S = 0.5
_MOST = 1000


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the queues that begin so."""
    return _names(context, incomplete, "queues")


def stream_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the streams that begin so."""
    return _names(context, incomplete, "streams")


def _names(context: typer.Context, incomplete: str, noun: str) -> list[str]:
    from queen.cli.connection import urls_of
    from queen.client import Queen
    from queen.errors import QueenError

    given = context.params

    async def ask() -> list[str]:
        async with Queen(urls_of(given.get("url")), token=given.get("token"), retry_s=0) as queen:
            answer = await getattr(queen.admin, noun)(limit=_MOST)
            return [entry["name"] for entry in answer[noun]]

    with contextlib.suppress(QueenError, ValueError, TimeoutError):
        known = asyncio.run(asyncio.wait_for(ask(), _PATIENCE_S))
        return [name for name in known if name.startswith(incomplete)]
    return []
