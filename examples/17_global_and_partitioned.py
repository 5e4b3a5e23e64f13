"""One window of everything, or a window for each key.

A global stream puts all partitions of all its queues into one window. A partitioned stream cuts
each partition by itself, and partitions with the same name in several queues are one key: what
was said in a chat and the reactions to it arrive together, though they were pushed apart.
"""

import asyncio
import uuid

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
MESSAGES, REACTIONS = f"chat-messages-{RUN}", f"chat-reactions-{RUN}"


async def push_some(queen: Queen) -> None:
    # In one transaction, so at one time: nothing here depends on when a second ends.
    pushes = queen.transaction()
    for chat in ("chat-1", "chat-2"):
        pushes.push(MESSAGES, [{"text": "Hello!"}, {"text": "Anybody?"}], partition=chat)
    pushes.push(REACTIONS, {"reaction": "thumbs up"}, partition="chat-1")
    await pushes.commit()


async def main() -> None:
    async with Queen() as queen:
        base = queen.stream(f"everything-{RUN}", "chat").sources(MESSAGES, REACTIONS)
        everything = base.tumbling_time(1).grace_period(0)
        await everything.define()
        chats = queen.stream(f"chats-{RUN}", "chat").sources(MESSAGES, REACTIONS)
        await chats.partitioned().tumbling_time(1).grace_period(0).define()
        await push_some(queen)

        async def show(window: Window) -> None:
            texts = sum("text" in message.data for message in window.all_messages)
            print(f"{window.key}: {texts} texts, {window.count - texts} reactions")

        print("global:")
        await queen.consumer(everything.name, "monitoring").limit(1).process(show)
        print("partitioned:")
        await queen.consumer(chats.name, "chat-service").limit(2).process(show)
        await everything.delete()
        await chats.delete()


asyncio.run(main())
