"""Maintenance: hold pushes or pops back on all servers, then let them go on.

Pushes in maintenance are kept in the spools of the servers, on disk, and answered `buffered`; they
are stored, in order, when it ends. What no spool takes, such as a scheduled message, is refused
with an error that may pass. Pops in maintenance are answered with nothing. Do not run this against
a broker that others use.
"""

import asyncio
import uuid

from queen import Message, Queen
from queen.errors import InMaintenance

QUEUE = f"work-{uuid.uuid4().hex[:8]}"


async def hold_pushes(queen: Queen, impatient: Queen) -> None:
    await queen.admin.maintenance(True)
    (held,) = await queen.queue(QUEUE).push("delivered late")
    print(f"a push is {held.status}")
    try:
        await impatient.queue(QUEUE).push(Message("tomorrow", delay=86_400))
    except InMaintenance as error:
        print(f"a scheduled message is refused: {error.code}")
    print(f"consumers find {await queen.queue(QUEUE).pop(wait_s=0)}")
    await queen.admin.maintenance(False)


async def hold_pops(queen: Queen) -> None:
    await queen.admin.pop_maintenance(True)
    print(f"pops get nothing: {await queen.queue(QUEUE).pop(wait_s=0)}")
    await queen.admin.pop_maintenance(False)
    (message,) = await queen.queue(QUEUE).pop(wait_s=5, auto_ack=True)
    print(f"and then: {message.data}")


async def main() -> None:
    async with Queen() as queen, Queen(retry_s=0) as impatient:
        try:
            await hold_pushes(queen, impatient)
            await hold_pops(queen)
        finally:
            await queen.admin.maintenance(False)
            await queen.admin.pop_maintenance(False)
        state = await queen.admin.maintenance()
        print(f"maintenance is on: {state['maintenanceMode'] or state['popMaintenanceMode']}")


asyncio.run(main())
