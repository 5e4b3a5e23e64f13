"""Functions as jobs: typed arguments, results, and one job at a time for each key.

`queen worker examples.48_tasks` would run them in processes of their own; here a worker runs in
the same program until nothing is left.
"""

import asyncio
import uuid
from dataclasses import dataclass

from queen import Queen
from queen.client.tasks import current_job
from queen.errors import JobFailed
from queen.testing import run_jobs

QUEUE = f"jobs-{uuid.uuid4().hex[:8]}"


@dataclass
class Picture:
    name: str
    width: int


async def main() -> None:
    async with Queen() as queen:
        jobs = queen.queue(QUEUE)
        await jobs.config(retry_limit=1, retry_delay=50).create()

        @jobs.task(name="resize")
        def resize(picture: Picture, by: float = 0.5) -> Picture:
            if not picture.width:
                raise ValueError(f"{picture.name} has no width")
            return Picture(picture.name, round(picture.width * by))

        @jobs.task(name="report", key=lambda month: f"report-{month}")
        async def report(month: str) -> str:
            job = current_job()
            return f"report of {month}, attempt {job.attempt if job else 0}"

        good = await resize.delay(Picture("cat", 800), by=0.25)
        bad = await resize.delay(Picture("dog", 0))
        first = await report.delay("January")
        again = await report.delay("January")
        print(f"the same job: {again.id == first.id}, it existed: {again.existed}")
        later = await report.with_options(key="later").after(3600, "February")
        print(f"{await run_jobs(queen)} jobs were done")

        small = await good.result(timeout=10)
        print(f"{small.name} is {small.width} wide now")
        try:
            await bad.result(timeout=10)
        except JobFailed as error:
            print(f"the other one failed: {error}")
        # Whoever has the id has the job.
        print(await queen.queue(QUEUE).job(first.id).result(timeout=10))
        print(f"February is {(await later.status()).state}, taken back: {await later.cancel()}")


asyncio.run(main())
