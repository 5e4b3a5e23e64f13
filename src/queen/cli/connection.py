"""The server a command talks to, for as long as the command runs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from queen.cli.exits import USAGE, explain_errors, fail
from queen.client import Queen
from queen.client.queen import DEFAULT_URL
from queen.client.queues.queue import Queue
from queen.errors import QueenError, Unreachable

T = TypeVar("T")

# A server that is gone is waited for this long, once it has answered.
_PATIENCE_S = 30.0


def urls_of(url: str | None) -> list[str]:
    """Return the servers that were named, or the one on this machine."""
    given = url or os.environ.get("QUEEN_URL") or DEFAULT_URL
    return [part.strip() for part in given.split(",") if part.strip()]


def queue_of(queen: Queen, name: str, group: str | None, partition: str | None) -> Queue:
    """Return a queue; of a group, or of a partition, where one was named."""
    queue = queen.queue(name)
    queue = queue if group is None else queue.group(group)
    return queue if partition is None else queue.partition(partition)


def with_queen(
    url: str | None,
    token: str | None,
    work: Callable[[Queen], Awaitable[T]],
    spool: Path | None = None,
) -> T:
    """Do something with a server; whatever goes wrong ends in a line and an exit code. With a
    spool, the server may be away."""
    logging.basicConfig(format="queen: %(message)s", level=logging.WARNING)
    urls = urls_of(url)
    with explain_errors(urls):
        return asyncio.run(_run(urls, token, work, spool))


async def _run(
    urls: list[str],
    token: str | None,
    work: Callable[[Queen], Awaitable[T]],
    spool: Path | None,
) -> T:
    try:
        queen = Queen(urls, token=token, retry_s=_PATIENCE_S, spool=spool)
    except ValueError as error:
        fail(USAGE, f"{error}: it looks like {DEFAULT_URL}" if spool is None else str(error))
    except OSError as error:
        fail(USAGE, f"{spool} cannot be a spool: {error.strerror}")
    async with queen:
        if spool is None:
            await _check(queen)
        return await work(queen)


async def _check(queen: Queen) -> None:
    """Find out now, not after half a minute of trying, that nobody is there."""
    log = logging.getLogger("queen.client")
    # What it would warn about is in the one line that we say.
    log.setLevel(logging.ERROR)
    try:
        await queen.cluster.call("GET", "/health", retry_s=0)
    except Unreachable:
        raise
    except QueenError:
        # It is there; what comes next says what is wrong with it.
        return
    finally:
        log.setLevel(logging.NOTSET)
