"""A worker of a stream: read, work, ack; and what becomes of the work of one that dies.

`STREAMS_URL` says where the stream is: `memory://` (the default), `queen://localhost:6632`,
`redis://localhost:6379`. The program is the same.
"""

import asyncio
import os
import uuid

from queen.streambroker import StreamBroker, StreamMessage, stream_broker_from_url

URL = os.environ.get("STREAMS_URL", "memory://")
JOBS = f"jobs-{uuid.uuid4().hex[:8]}"
GROUP = "job-workers"


def run(job: StreamMessage) -> str:
    match job.data:
        case {"type": "echo", "text": text}:
            return str(text)
        case other:
            raise ValueError(f"no such job: {other['type']}")


async def work(broker: StreamBroker, name: str) -> None:
    """Work until nothing came for a moment; a real worker goes on for ever."""
    # What somebody else has had for 50 ms comes first; minutes are usual.
    while jobs := await broker.xreadgroup(GROUP, name, JOBS, 10, 200, claim_idle_ms=50):
        for job in jobs:
            try:
                print(f"{name}: {run(job)}, delivery {job.delivery_count}")
            except ValueError as error:
                print(f"{name}: {error}, delivery {job.delivery_count}")
                await broker.nack(JOBS, GROUP, [job.id])
            else:
                await broker.xack(JOBS, GROUP, [job.id])


async def main() -> None:
    async with stream_broker_from_url(URL) as broker:
        await broker.create_group(JOBS, GROUP, "0")
        await broker.set_delivery_limit(JOBS, GROUP, 2)
        await broker.xadd(JOBS, {"type": "echo", "text": "hello"})
        await broker.xadd(JOBS, {"type": "echo", "text": "taken over"})
        await broker.xadd(JOBS, {"type": "fly"})

        await broker.xreadgroup(GROUP, "worker-1", JOBS, 2)  # and worker-1 dies
        await work(broker, "worker-2")

        (letter,) = await broker.xrange(f"{JOBS}.dlq")
        assert letter.dead_letter is not None
        print(f"dead after {letter.dead_letter.deliveries} deliveries: {letter.data}")
        info = await broker.get_stream_group_info(JOBS, GROUP)
        assert info is not None
        print(f"pending {info.total_pending}, not delivered yet {info.lag}")
        assert (info.total_pending, info.lag) == (0, 0)


asyncio.run(main())
