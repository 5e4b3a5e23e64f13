"""Turn windows into results in another queue, exactly once.

`window.push` collects results and sends them with the ack: both are stored in one transaction,
or neither is. A handler that fails, a consumer that dies, an ack whose answer got lost: whoever
reads the results sees those of each window once.
"""

import asyncio
import uuid

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
READINGS, RESULTS = f"sensor-data-{RUN}", f"processed-metrics-{RUN}"


async def main() -> None:
    async with Queen() as queen:
        stream = queen.stream(f"raw-events-{RUN}", "pipeline").sources(READINGS)
        await stream.tumbling_time(1).grace_period(0).retry_delay(0.1).define()
        await queen.queue(READINGS).push([{"value": value} for value in (18, 21, 24)])

        async def compute(window: Window) -> None:
            found = window.aggregate(count=True, avg="data.value", max="data.value")
            result = {name: found[name]["data.value"] for name in ("avg", "max")}
            window.push(RESULTS, {**result, "count": found["count"]}, partition="all")
            print(f"attempt {window.attempt}: computed")
            if window.attempt == 1:
                raise ConnectionError("the network fails after the work was done")

        done = await queen.consumer(stream.name, "processor").limit(2).process(compute)
        print(f"{done.failed} failed, {done.handled} handled")

        results = await queen.queue(RESULTS).batch(10).pop(auto_ack=True)
        print(f"results: {[message.data for message in results]}")
        await stream.delete()


asyncio.run(main())
