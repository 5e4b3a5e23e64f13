"""A consumer of windows as users write it, in a process that is killed again and again.

Every delivery leaves a line in a file: which window, for which group, and a hash of all that
is in it. What the window held is pushed together with its ack, so that the results are a
ledger of acks: one entry for each, whatever happens to this process.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import sys

from queen import Queen
from queen.client.streams.window import Window
from tests.waiting import spend_async


async def main(urls: str, stream: str, results: str, groups: str, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def handler(window: Window) -> None:
        held = "\n".join(f"{one.id} {one.data}" for one in window.messages)
        digest = hashlib.sha256(held.encode()).hexdigest()[:16]
        seen = {"window": window.id, "group": window.consumer_group, "digest": digest}
        os.write(file, json.dumps(seen | {"attempt": window.attempt}).encode() + b"\n")
        # Now and then long enough to be killed at.
        await spend_async(random.choice([0.8] + [0.01] * 30))
        numbers = [one.data for one in window.messages]
        window.push(results, seen | {"numbers": numbers}, partition=str(os.getpid()))

    async with Queen(urls.split(",")) as queen:
        running = [
            queen.consumer(stream, group).concurrency(2).process(handler, signals=False).run()
            for group in groups.split(",")
        ]
        await asyncio.gather(*running)


asyncio.run(main(*sys.argv[1:]))
