"""The server a command talks to, for as long as the command runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from queen.cli.contexts import Target, asked, target_of
from queen.cli.exits import USAGE, explain_errors, fail, say
from queen.cli.terminal.printable import configure_terminal_log
from queen.client import Queen
from queen.client.queen import DEFAULT_URL
from queen.client.queues.queue import Queue
from queen.client.transport.cluster import reason_against_token
from queen.errors import NotFound, QueenError, Unreachable

T = TypeVar("T")

# A server that is gone is waited for this long, once it has answered.
_PATIENCE_S = 30.0


def urls_of(url: str | None) -> list[str]:
    """Return the servers that were named, those of the context, or the one on this machine."""
    return target_of(url, None).urls


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
    configure_terminal_log("queen: %(message)s", asked().log_level)
    # Which selector a loop has is nothing about Queen.
    logging.getLogger("asyncio").setLevel(logging.INFO)
    target = target_of(url, token)
    reason = reason_against_token(target.token)
    if reason is not None:
        fail(USAGE, f"--token (QUEEN_TOKEN) cannot be used: {reason}")
    with explain_errors(target.urls):
        return asyncio.run(_run(target, work, spool))


async def _run(
    target: Target,
    work: Callable[[Queen], Awaitable[T]],
    spool: Path | None,
) -> T:
    try:
        queen = Queen(
            target.urls,
            token=target.token,
            retry_s=_PATIENCE_S,
            spool=spool,
            ssl_context=target.tls(),
        )
    except ValueError as error:
        fail(USAGE, f"{error}: it looks like {DEFAULT_URL}" if spool is None else str(error))
    except OSError as error:
        fail(USAGE, f"{spool} cannot be a spool: {error.strerror}")
    async with queen:
        if spool is None:
            await _check(queen)
        return await work(queen)


async def check_is_there(queen: Queen, queue: str) -> None:
    """Raise `NotFound` when there is no such queue, and nothing is scheduled that would make it."""
    try:
        await queen.admin.queue_options(queue)
    except NotFound:
        if not (await queen.admin.scheduled(queue, limit=1))["scheduled"]:
            raise
        say(f"{queue} comes with its first scheduled message: `queen schedule list -q {queue}`")


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
