"""Tasks: functions that a worker calls, on ordinary queues.

jobs = queen.queue("jobs")

@jobs.task
async def send_mail(to: str, copies: int = 1) -> str: ...

job = await send_mail.delay("ann@example.org", copies=2)
print(await job.result(timeout=10))
"""

from __future__ import annotations

from queen.client.tasks.job import Job, JobStatus
from queen.client.tasks.running import CurrentJob, current_job
from queen.client.tasks.task import Task

__all__ = [
    "CurrentJob",
    "Job",
    "JobStatus",
    "Task",
    "current_job",
]
