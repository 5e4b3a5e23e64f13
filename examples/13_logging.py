"""What the client says, and how to hear it.

The client logs to the logger `queen.client` and configures nothing: the program decides where
it goes. Handlers that fail, leases that were lost and servers that do not answer are warnings.
Payloads and tokens are never logged.
"""

import asyncio
import logging
import sys
import uuid

from queen import Queen, Received
from queen.errors import Unreachable

JOBS = f"jobs-{uuid.uuid4().hex[:8]}"
NOBODY = "http://127.0.0.1:1"


async def main() -> None:
    logging.basicConfig(
        stream=sys.stdout, format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING
    )
    # To silence it:         logging.getLogger("queen.client").setLevel(logging.CRITICAL)
    # To hear everything:    logging.getLogger("queen.client").setLevel(logging.DEBUG)

    async with Queen(NOBODY, retry_s=0) as lost:
        try:
            await lost.admin.health()
        except Unreachable as error:
            print(f"the program sees {type(error).__name__}")

    async with Queen() as queen:
        jobs = queen.queue(JOBS)
        await jobs.config(retry_limit=0).create()
        await jobs.push([{"secret": "not in the log"}, {"secret": "nor this one"}])

        async def handle(message: Received) -> None:
            if message.offset == 0:
                raise RuntimeError("this text is kept with the dead letter")

        consumer = await jobs.limit(2).consume(handle)
        print(f"handled {consumer.handled}, failed {consumer.failed}")


asyncio.run(main())
