"""Everything that happened in a chat room, from three queues, a window at a time."""

import asyncio
import uuid

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
MESSAGES, REACTIONS, EDITS = (f"chat-{name}-{RUN}" for name in ("messages", "reactions", "edits"))


async def main() -> None:
    async with Queen() as queen:
        for name in (MESSAGES, REACTIONS, EDITS):
            await queen.queue(name).namespace("chat").create()
        stream = queen.stream(f"chat-activity-{RUN}", "chat").sources(MESSAGES, REACTIONS, EDITS)
        await stream.partitioned().tumbling_time(1).grace_period(0).define()

        room = "room-42"
        pushes = queen.transaction()
        pushes.push(MESSAGES, {"user": "anna", "text": "Helo!"}, partition=room)
        pushes.push(MESSAGES, {"user": "bruno", "text": "Hi."}, partition=room)
        pushes.push(REACTIONS, {"user": "bruno", "emoji": "wave"}, partition=room)
        pushes.push(EDITS, {"user": "anna", "edited": "Hello!"}, partition=room)
        pushes.push(MESSAGES, {"user": "carla", "text": "Anybody?"}, partition="room-43")
        await pushes.commit()

        async def summarize(window: Window) -> None:
            kinds = window.group_by("queue")
            said, liked, edited = (len(kinds.get(one, [])) for one in (MESSAGES, REACTIONS, EDITS))
            print(f"{window.key}: {said} messages, {liked} reactions, {edited} edits")
            by_user = {user: len(them) for user, them in window.group_by("data.user").items()}
            print(f"  by user: {dict(sorted(by_user.items()))}")

        await queen.consumer(stream.name, "chat-processor").limit(2).process(summarize)
        await stream.delete()


asyncio.run(main())
