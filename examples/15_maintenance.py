"""Maintenance: hold pushes or pops back on all servers, then let them go on.

A push in maintenance is refused with an error that may pass, so a client sends it again with
the same ids, and a program does not notice more than a pause. Pops in maintenance are answered
with nothing. Do not run this against a broker that others use.
"""

import asyncio
import uuid

from queen import Queen
from queen.errors import InMaintenance

QUEUE = f"work-{uuid.uuid4().hex[:8]}"


async def hold_pushes(queen: Queen, impatient: Queen) -> None:
    await queen.admin.maintenance(True)
    try:
        await impatient.queue(QUEUE).push("refused")
    except InMaintenance as error:
        print(f"an impatient push is refused: {error.code}")
    patient = asyncio.create_task(queen.queue(QUEUE).push("delivered late"))
    await asyncio.sleep(0.5)
    print(f"a patient push waits: {not patient.done()}")
    await queen.admin.maintenance(False)
    (pushed,) = await patient
    print(f"after maintenance it is {pushed.status}")


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
