"""Jobs: messages that call a task, and the ids they go by.

A job is an ordinary message. Its payload says what to call with what, and is plain JSON that
anybody may push:

    {"task": "shop.mail.send", "arguments": {"to": "ann@example.org", "copies": 2}}

Its id is its transaction id, and ends with the name of its partition, so that whoever has the id
knows where to look: `8f0c…@7`.
"""

from __future__ import annotations

from datetime import datetime

from queen.core.names import DEFAULT_PARTITION, MAX_TRANSACTION_ID_BYTES

SCHEDULED = "scheduled"
WAITING = "waiting"
RUNNING = "running"
DONE = "done"
FAILED = "failed"
UNKNOWN = "unknown"
# What no longer changes by itself.
ENDED = frozenset((DONE, FAILED))

MAX_KEY_BYTES = 255
MAX_RESULT_BYTES = 256 * 1024
MAX_ERROR_CHARACTERS = 10_000
DEFAULT_KEEP_S = 86_400
MAX_KEEP_S = 30 * 86_400
MAX_SCHEDULE_NAME_BYTES = 100


def job_id_of(number: str, partition: str) -> str:
    """Return the id of a job: a number of its own, and where it is.

    >>> job_id_of("8f0c", "7")
    '8f0c@7'
    """
    job_id = f"{number}@{partition}"
    # Under a name that long a partition has to be told with the id.
    return job_id if len(job_id.encode()) <= MAX_TRANSACTION_ID_BYTES else number


def partition_of(job_id: str) -> str:
    """Return the partition that an id names.

    >>> partition_of("8f0c@7"), partition_of("order-1042")
    ('7', 'Default')
    """
    return job_id.partition("@")[2] or DEFAULT_PARTITION


def tick_id(schedule: str, tick: datetime, partition: str) -> str:
    """Return the id of what a schedule pushes for a tick: the same, whoever pushes it."""
    return job_id_of(f"cron:{schedule.replace('@', '%')}:{tick:%Y-%m-%dT%H:%MZ}", partition)
