"""One stream of events, three groups, each as careful as it has to be.

Groups with `auto_ack` have messages counted as done when the server sends them: nothing to ack,
and what is lost on the way is lost. A group that must not miss anything acks by itself.
"""

import asyncio
import uuid
from typing import Any

from queen import Queen, Received

EVENTS = f"user.events-{uuid.uuid4().hex[:8]}"
TOLD = ["login", "look", "pay", "logout"]


async def publish(queen: Queen) -> None:
    items = [{"queue": EVENTS, "partition": "anna", "payload": {"does": does}} for does in TOLD]
    await queen.request("POST", "/api/v1/push", {"items": items, "qos0": True})


async def watch(queen: Queen, group: str) -> list[Any]:
    """Read without acks until everything was seen."""
    seen: list[Any] = []
    while len(seen) < len(TOLD):
        batch = await queen.queue(EVENTS).group(group).pop(batch=10, wait_s=5, auto_ack=True)
        seen += [message.data["does"] for message in batch]
    return seen


async def bill(queen: Queen) -> list[str]:
    """Ack by hand: what fails comes again."""
    lines: list[str] = []

    async def handle(message: Received) -> None:
        if message.data["does"] == "pay" and message.retry_count == 0:
            raise ConnectionError("the bank is closed")
        lines.append(message.data["does"])

    # One more than there are: the one that fails comes twice.
    await queen.queue(EVENTS).group("billing").limit(len(TOLD) + 1).consume(handle)
    return lines


async def main() -> None:
    async with Queen() as queen:
        await queen.queue(EVENTS).config(retry_delay=0).create()
        await publish(queen)
        dashboard, analytics, billed = await asyncio.gather(
            watch(queen, "dashboard"), watch(queen, "analytics"), bill(queen)
        )
        print(f"dashboard: {dashboard}")
        print(f"analytics: {analytics}")
        print(f"billing, with a failure between: {billed}")
        again = await queen.queue(EVENTS).group("dashboard").pop(wait_s=0)
        print(f"left for the dashboard: {again}")


asyncio.run(main())
