"""A front in a process of its own, on the event loop that servers use.

    python -m tests.resp.standalone

It prints its port, and ends when its input does. Commands are answered with how many words they
have.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import uvloop

from queen.server.resp.front import Front, RespLimits
from queen.streambroker.replies import NO_ARRAY, Reply

REQUEST_BYTES = 8 * 1024 * 1024
HELD_BYTES = 32 * 1024 * 1024
UNREAD_BYTES = 16 * 1024 * 1024


class _Counting:
    async def execute(
        self, commands: Sequence[Sequence[bytes]], *, is_atomic: bool = False
    ) -> list[Reply]:
        if not is_atomic and any(b"BLOCK" in command for command in commands):
            await asyncio.Event().wait()
        replies: list[Reply] = []
        for command in commands:
            replies.append(b"x" * 100_000 if command[0] == b"XRANGE" else NO_ARRAY)
        return replies


async def _serve() -> None:
    limits = RespLimits(
        request_bytes=REQUEST_BYTES, held_bytes=HELD_BYTES, unread_bytes=UNREAD_BYTES
    )
    front = Front(lambda _caller: _Counting(), limits=limits)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(front.protocol, "127.0.0.1", 0, backlog=1024)
    watching = asyncio.create_task(front.watch())
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()
    await front.stop(grace_s=5)
    watching.cancel()
    counts = front.counts
    left = (front.held_bytes, counts.connections, counts.waiting, len(front.clients))
    assert left == (0, 0, 0, 0), left


if __name__ == "__main__":
    uvloop.run(_serve())
