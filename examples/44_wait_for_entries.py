"""A reader that waits is told at once when something is added."""

import asyncio
import os
import time
import uuid

from queen.streambroker import stream_broker_from_url

URL = os.environ.get("STREAMS_URL", "memory://")
STREAM, GROUP = f"events-{uuid.uuid4().hex[:8]}", "listeners"


async def main() -> None:
    async with stream_broker_from_url(URL) as broker:
        await broker.create_group(STREAM, GROUP)
        assert await broker.xreadgroup(GROUP, "listener", STREAM) == [], "does not wait unless told"

        began_at = time.monotonic()
        waiting = asyncio.create_task(broker.xreadgroup(GROUP, "listener", STREAM, block_ms=10_000))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await broker.xadd(STREAM, {"event": "login"})
        (entry,) = await waiting
        print(f"told of {entry.data}")
        print(f"long before its time was over: {time.monotonic() - began_at < 5}")
        await broker.xack(STREAM, GROUP, [entry.id])

        print(f"nothing came: {await broker.xreadgroup(GROUP, 'listener', STREAM, block_ms=100)}")


asyncio.run(main())
