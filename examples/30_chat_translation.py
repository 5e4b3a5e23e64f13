"""Chats that are translated as they happen, and read with their translations.

A translator reads messages from a queue and writes translations into another one, in the same
partition, together with its ack: every message is translated once. A stream over both queues
then gives windows of a chat in which originals and translations stand side by side.
"""

import asyncio
import uuid
from collections import Counter

from queen import Queen, Received, Window

RUN = uuid.uuid4().hex[:8]
MESSAGES, TRANSLATIONS = f"chat-messages-{RUN}", f"chat-translations-{RUN}"
SPANISH = {"Hello, world!": "¡Hola, mundo!", "Good bye.": "Adiós."}
TOTAL = 12


async def main() -> None:
    async with Queen() as queen:
        stream = queen.stream(f"chat-complete-{RUN}", "chat").sources(MESSAGES, TRANSLATIONS)
        await stream.partitioned().tumbling_time(1).grace_period(0.2).define()

        async def produce() -> None:
            for number in range(TOTAL):
                chat = queen.queue(MESSAGES).partition(f"chat-{number % 3 + 1}")
                await chat.push({"user": "anna", "text": list(SPANISH)[number % 2]})
                await asyncio.sleep(0.05)

        async def translate(message: Received) -> None:
            translation = {"of": message.data["text"], "es": SPANISH[message.data["text"]]}
            step = queen.transaction().ack(message)
            await step.push(TRANSLATIONS, translation, partition=message.partition).commit()

        snapshots: dict[str, Counter[str]] = {}
        aggregator = queen.consumer(stream.name, "chat-aggregator")

        async def save(window: Window) -> None:
            chat = snapshots.setdefault(window.key, Counter())
            for message in window.all_messages:
                chat["originals" if message.queue == MESSAGES else "translations"] += 1
            if sum(one.total() for one in snapshots.values()) == 2 * TOTAL:
                aggregator.stop()

        translator = queen.queue(MESSAGES).auto_ack(False).limit(TOTAL)
        await asyncio.gather(produce(), translator.consume(translate), aggregator.process(save))
        for chat, counts in sorted(snapshots.items()):
            print(f"{chat}: {counts['originals']} originals, {counts['translations']} translations")
        await stream.delete()


asyncio.run(main())
