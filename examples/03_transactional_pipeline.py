"""Two stages joined by transactions, without asyncio.

`queen.SyncQueen` is the same client for programs without an event loop. A transaction acks
what was read and pushes what follows from it: both happen, or neither. Here the first attempt
fails half-way and leaves nothing behind.
"""

import uuid

from queen import SyncQueen, SyncReceived

RUN = uuid.uuid4().hex[:8]
ORDERS, INVOICES, PARCELS = (f"{name}-{RUN}" for name in ("orders", "invoices", "parcels"))


def main() -> None:
    with SyncQueen() as queen:
        queen.queue(ORDERS).config(retry_delay=0).create()
        queen.queue(ORDERS).partition("customer-7").push([{"order": 1}, {"order": 2}])
        failures = ["the printer is on fire"]

        def fulfil(message: SyncReceived) -> None:
            with queen.transaction() as transaction:
                transaction.ack(message)
                transaction.push(INVOICES, {"invoice for": message.data["order"]})
                transaction.push(PARCELS, {"parcel for": message.data["order"]})
                if failures:
                    raise RuntimeError(failures.pop())

        consumer = queen.queue(ORDERS).group("fulfilment").limit(3).consume(fulfil)
        print(f"handled {consumer.handled}, failed {consumer.failed} and tried again")

        for name, label in ((INVOICES, "invoices"), (PARCELS, "parcels")):
            found = queen.queue(name).pop(batch=10, auto_ack=True)
            print(f"{label}: {[message.data for message in found]}")


if __name__ == "__main__":
    main()
