"""Dead letters: what a group has given up on, why, and how it goes back.

A handler that raises has its message delivered again; after `retry_limit` retries the message
is set aside with its error. It stays there until somebody sends it back or forgets it.
"""

import asyncio
import uuid

from queen import Queen, Received

PAYMENTS = f"payments-{uuid.uuid4().hex[:8]}"


async def main() -> None:
    async with Queen() as queen:
        payments = queen.queue(PAYMENTS).group("bank")
        await payments.config(retry_limit=1, retry_delay=0).create()
        await payments.push([{"amount": 12}, {"amount": -1}, {"amount": 30}])
        bank_is_open = False

        async def pay(message: Received) -> None:
            if message.data["amount"] < 0:
                raise ValueError("a negative amount")
            if not bank_is_open:
                raise ConnectionError("the bank is closed")
            print(f"paid {message.data['amount']}")

        # Three messages, each tried twice.
        consumer = await payments.limit(6).consume(pay)
        print(f"{consumer.failed} attempts failed")

        page = await payments.dlq().get()
        for letter in sorted(page.messages, key=lambda letter: letter.data["amount"]):
            print(f"dead: {letter.data} {letter.error_message}")
        for row in await payments.dlq().errors():
            print(f"{row['count']} times {row['error']}")

        # What was the bank's fault goes back; what can never work is forgotten.
        bank_is_open = True
        closed = payments.dlq().error("ConnectionError: the bank is closed")
        print(f"sent back: {await closed.retry()}")
        await payments.limit(2).consume(pay)
        print(f"forgotten: {await payments.dlq().purge()}")


asyncio.run(main())
