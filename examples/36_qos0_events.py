"""QoS 0: events that are answered before they are stored.

The server writes each message to a file, answers at once, and stores many of them in one
transaction a moment later. Until the next sync, a tenth of a second at most, a message is lost if
the machine dies; a server that is killed loses nothing.
"""

import asyncio
import uuid
from typing import Any

from queen import Queen

METRICS = f"metrics-{uuid.uuid4().hex[:8]}"
EVENTS = 300


async def push(queen: Queen, payload: Any, **how: Any) -> str:
    """Push as any HTTP client does; `qos0`, `bufferMs` and `bufferMax` stand beside the items."""
    item = {"queue": METRICS, "partition": "host-1", "payload": payload}
    (pushed,) = await queen.request("POST", "/api/v1/push", {"items": [item], **how})
    return str(pushed["status"])


async def take(queen: Queen, count: int) -> list[Any]:
    """Take messages as they are stored; the server counts them as done when it sends them."""
    taken: list[Any] = []
    while len(taken) < count:
        partition = queen.queue(METRICS).partition("host-1")
        taken += await partition.pop(batch=count, wait_s=5, auto_ack=True)
    return [message.data for message in taken]


async def main() -> None:
    async with Queen() as queen:
        before = await queen.request("GET", "/api/v1/spool")
        statuses = {await push(queen, number, qos0=True) for number in range(EVENTS)}
        print(f"answered: {statuses}")
        ticks = await take(queen, EVENTS)
        print(f"{len(ticks)} events, in order: {ticks == list(range(EVENTS))}")
        after = await queen.request("GET", "/api/v1/spool")
        batches = after["batches"] - before["batches"]
        print(f"stored in fewer transactions than events: {batches < EVENTS}")

        # What may wait for longer says so, and what must not be lost is pushed as ever. It goes
        # behind what waits for its partition, and is on the disk before the answer.
        print(f"patient: {await push(queen, 'look', bufferMs=5000, bufferMax=1000)}")
        print(f"behind it: {await push(queen, 'pay')}")
        print(f"in order: {await take(queen, 2)}")
        print(f"with nothing before it: {await push(queen, 'pay')}")


asyncio.run(main())
