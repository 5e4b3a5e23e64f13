"""A chat with a pipeline behind it: translate, then answer, each chat in its own order.

Every chat is a partition, so its messages stay in order while different chats are worked on
side by side. Each stage acks what it read and pushes what it made in one transaction: a crash
between the two cannot lose a message or pass it on twice.
"""

import asyncio
import uuid

from queen import Queen, Received

RUN = uuid.uuid4().hex[:8]
SAID, TRANSLATED, ANSWERS = (f"chat-{stage}-{RUN}" for stage in ("said", "translated", "answers"))
WORDS = {"ciao": "hello", "grazie": "thank you", "aiuto": "help"}
REPLIES = {"hello": "Hello! What can I do?", "thank you": "My pleasure.", "help": "I am here."}


async def main() -> None:
    async with Queen() as queen:

        async def translate(message: Received) -> None:
            english = WORDS[message.data["text"]]
            async with queen.transaction() as transaction:
                transaction.ack(message)
                transaction.push(TRANSLATED, {"text": english}, partition=message.partition)

        async def answer(message: Received) -> None:
            reply = REPLIES[message.data["text"]]
            async with queen.transaction() as transaction:
                transaction.ack(message)
                transaction.push(ANSWERS, {"text": reply}, partition=message.partition)

        for chat in ("anna", "bruno"):
            await (
                queen.queue(SAID)
                .partition(chat)
                .push([{"text": "ciao"}, {"text": "aiuto"}, {"text": "grazie"}])
            )
        translator = queen.queue(SAID).group("translator").limit(6).concurrency(2)
        agent = queen.queue(TRANSLATED).group("agent").limit(6).concurrency(2)
        await asyncio.gather(translator.consume(translate), agent.consume(answer))

        for chat in ("anna", "bruno"):
            answers = await queen.queue(ANSWERS).partition(chat).pop(batch=10, auto_ack=True)
            print(f"{chat} was told: {' '.join(one.data['text'] for one in answers)}")


asyncio.run(main())
