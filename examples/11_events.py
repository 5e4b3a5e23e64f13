"""Events: typed payloads, several subscribers, and a look back.

A queue is a log as well. A new group starts at the beginning, or with what comes after it
subscribed, and `replay` reads what is stored without any group.
"""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from queen import Queen, Received

EVENTS = f"events-{uuid.uuid4().hex[:8]}"


@dataclass
class Event:
    kind: str
    user: str


async def main() -> None:
    async with Queen() as queen:
        events = queen.queue(EVENTS).into(Event)

        await events.partition("anna").push([Event("registered", "anna"), Event("paid", "anna")])

        # A group is registered by its first pop. This one sees what follows, and nothing before.
        alerts = events.group("alerts").subscription_mode("new")
        print(f"alerts, before anything new: {await alerts.pop(wait_s=0)}")
        await events.partition("bruno").push(Event("registered", "bruno"))

        def show(group: str) -> Callable[[Received], None]:
            def handle(message: Received) -> None:
                event: Event = message.data
                print(f"{group}: {event.user} has {event.kind}")

            return handle

        # This one starts at the beginning. Each partition is in order; between them there is none.
        await events.group("mail").limit(3).consume(show("mail"))
        await alerts.limit(1).consume(show("alerts"))

        users: dict[str, str] = {}
        async for stored in events.replay():
            users[stored.data["user"]] = stored.data["kind"]
        print(f"the latest of each user, from a replay: {dict(sorted(users.items()))}")


asyncio.run(main())
