"""Three answers to a window that cannot be handled.

Let it fail: it comes again after a pause that doubles, and after its last retry it is a dead
window, which waits for somebody to mend the reason and send it back. Set it aside yourself: push
it to a queue of failures and ack. Or nack it by hand, with a text that says why.
"""

import asyncio
import uuid

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
PAYMENTS, FAILED = f"payments-{RUN}", f"failed-windows-{RUN}"

bank_is_open = asyncio.Event()


async def book(window: Window) -> None:
    amounts = [message.data["amount"] for message in window.all_messages]
    if not all(isinstance(amount, int) for amount in amounts):
        # Trying again will not help: set it aside, and be done with it.
        window.push(FAILED, {"window": window.id, "why": "not a number", "amounts": amounts})
    elif window.key == "bruno" and not bank_is_open.is_set():
        raise ConnectionError("the bank is closed")
    elif window.key == "carla" and window.attempt == 1:
        await window.nack("carla asked to be served second")
    else:
        print(f"booked {sum(amounts)} for {window.key}")


async def main() -> None:
    async with Queen() as queen:
        stream = queen.stream(f"bookings-{RUN}").sources(PAYMENTS).partitioned().tumbling_time(0.5)
        await stream.grace_period(0).retry_limit(1).retry_delay(0.1).define()
        for user, amount in (("anna", 10), ("bruno", 20), ("carla", 30), ("dario", "??")):
            await queen.queue(PAYMENTS).partition(user).push({"amount": amount})

        # anna and dario come once, bruno and carla twice.
        consumer = queen.consumer(stream.name, "bank")
        await consumer.limit(6).process(book)

        (failure,) = await queen.queue(FAILED).pop(auto_ack=True)
        print(f"set aside: {failure.data['why']} in {failure.data['amounts']}")
        for window in await stream.dead("bank"):
            print(f"dead: {window['key']} after {window['attempts']} attempts, {window['error']}")

        bank_is_open.set()
        print(f"sent back: {await stream.retry_dead('bank')}")
        await consumer.limit(1).process(book)
        print(f"still dead: {await stream.dead('bank')}")
        await stream.delete()


asyncio.run(main())
