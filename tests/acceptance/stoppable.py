"""A consumer as users write it, in a process that is stopped again and again.

Each message takes 10 ms and has one effect: a line in a file. The line is written in one
piece, so that whatever happens to the process, it is there or it is not.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from queen import Queen, Received
from tests.waiting import spend_async, until_met


async def main(url: str, queue: str, effects: str) -> None:
    file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def handler(message: Received) -> None:
        await spend_async(0.01)
        os.write(file, f"{message.data} {message.attempt}\n".encode())

    async with Queen(url) as queen:
        consumer = queen.queue(queue).group("g").batch(20).each().concurrency(2)
        running = asyncio.create_task(consumer.consume(handler))
        # Before that a signal would end the process, as it ends any.
        await until_met(lambda: signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)
        print("ready", flush=True)
        await running


asyncio.run(main(*sys.argv[1:]))
