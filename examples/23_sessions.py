"""Group what a user does into visits.

A session of a key begins with a message and ends when nothing came for the gap; how long it
lasts is up to the user. The sessions of one user say nothing about those of another.
"""

import asyncio
import uuid

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
EVENTS = f"user-events-{RUN}"
GAP_S = 1


async def main() -> None:
    async with Queen() as queen:
        stream = queen.stream(f"user-sessions-{RUN}", "analytics").sources(EVENTS).partitioned()
        await stream.session(gap=GAP_S).grace_period(0).define()

        async def visit() -> None:
            anna, bruno = (queen.queue(EVENTS).partition(user) for user in ("anna", "bruno"))
            await anna.push([{"page": "/"}, {"page": "/tea"}, {"page": "/cart"}])
            await bruno.push([{"page": "/"}])
            await asyncio.sleep(GAP_S * 1.5)
            await anna.push([{"page": "/"}, {"page": "/orders"}])

        visits: list[str] = []

        async def save(window: Window) -> None:
            pages = " ".join(message.data["page"] for message in window.all_messages)
            last = window.all_messages[-1].created_at
            assert (window.end - last).total_seconds() == GAP_S
            visits.append(f"{window.key} saw {pages}")

        visiting = asyncio.create_task(visit())
        await queen.consumer(stream.name, "session-processor").limit(3).process(save)
        await visiting
        print("\n".join(sorted(visits)))
        await stream.delete()


asyncio.run(main())
