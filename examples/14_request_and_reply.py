"""Ask and wait for the answer, over one queue.

Requests go to the partition `requests`, the answer to a partition that is named after the
request. The asker waits for that partition before it exists: a long poll is answered when the
first message is pushed to it.
"""

import asyncio
import uuid

from queen import Message, Queen, Received

SUMS = f"sums-{uuid.uuid4().hex[:8]}"


async def ask(queen: Queen, numbers: list[int]) -> int:
    request = Message({"numbers": numbers})
    queue = queen.queue(SUMS)
    answer = asyncio.create_task(
        queue.partition(f"response-{request.transaction_id}").pop(wait_s=10, auto_ack=True)
    )
    await queue.partition("requests").push(request)
    (message,) = await answer
    return int(message.data["sum"])


async def main() -> None:
    async with Queen() as queen:

        async def add(message: Received) -> None:
            answer = {"sum": sum(message.data["numbers"])}
            async with queen.transaction() as transaction:
                transaction.ack(message)
                transaction.push(SUMS, answer, partition=f"response-{message.transaction_id}")

        requests = queen.queue(SUMS).partition("requests").group("adders")
        consumer = requests.consume(add)
        adding = asyncio.create_task(consumer.run())

        answers = await asyncio.gather(ask(queen, [1, 2, 3]), ask(queen, [20, 22]))
        print(f"1 + 2 + 3 = {answers[0]}")
        print(f"20 + 22 = {answers[1]}")

        consumer.stop()
        await adding


asyncio.run(main())
