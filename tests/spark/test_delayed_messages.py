"""Messages that consumers get later: what Spark sees of them, and when.

Scheduled messages are not in the queue before they are due. What is in the queue is seen at
once, whatever its options say of pops. `QUEEN_ORACLE_CUTS` says how many histories are made up.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tests.api import Api
from tests.spark.test_batch import push
from tests.spark.test_streaming import Collected, Read, sealed
from tests.waiting import until

RUNS = int(os.environ.get("QUEEN_ORACLE_CUTS", "1"))
COLUMNS = "data STRING, createdAt TIMESTAMP"
_HOUR_MS = 3_600_000


class Outbox:
    """What is scheduled for a queue, and the time that passes there."""

    def __init__(self, api: Api, database: psycopg.Connection[Any], queue: str) -> None:
        self._api = api
        self._database = database
        self._queue = queue

    def put(self, number: int) -> None:
        """Schedule a number for in an hour."""
        item = {"queue": self._queue, "partition": f"p{number % 3}", "payload": number}
        answer = self._api.push({**item, "transactionId": f"t{number}", "delayMs": _HOUR_MS})
        assert answer.json[0]["status"] == "scheduled"

    def cancel(self, number: int) -> None:
        path = f"/api/v1/scheduled/{self._queue}/t{number}"
        assert self._api.call("DELETE", path).status == 200

    def pass_time(self, numbers: list[int]) -> None:
        """Let some be due now; returns when they are in the queue."""
        ids = [f"t{number}" for number in numbers]
        self._database.execute(
            "update queen.staged set deliver_at = clock_timestamp()"
            " where queue = %s and transaction_id = any(%s)",
            (self._queue, ids),
        )
        until(lambda: not self._is_waiting(ids))

    def _is_waiting(self, ids: list[str]) -> bool:
        page = self._api.call("GET", f"/api/v1/scheduled?queue={self._queue}&limit=1000").json
        return any(message["transactionId"] in ids for message in page["scheduled"])


@pytest.fixture
def outbox(api: Api, dsn: str, queue: str) -> Iterator[Outbox]:
    with psycopg.connect(dsn, autocommit=True) as database:
        yield Outbox(api, database, queue)


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_scheduled_message_is_read_when_it_is_due_and_was_written_then(
    api: Api, read_stream: Read, queue: str, checkpoint: str, outbox: Outbox, seed: int
) -> None:
    chance = random.Random(seed)
    collected = Collected(checkpoint)
    api.configure(queue)
    frame = read_stream(COLUMNS, queue=queue, maxMessagesPerTrigger=chance.randrange(2, 9))
    waiting: list[int] = []
    wanted: list[int] = []
    # When each was pushed that came at once, or was due: before that it was not written.
    since: dict[int, datetime] = {}
    number = 0
    # An hour is longer than this test.
    for never in (-1, -2):
        outbox.put(never)
    query = collected.start(frame)
    try:
        for _ in range(4):
            for _ in range(chance.randrange(4, 9)):
                if chance.random() < 0.5:
                    outbox.put(number)
                    waiting.append(number)
                else:
                    since[number] = _now(api, queue)
                    push(api, queue, number, partition=f"p{number % 3}")
                    wanted.append(number)
                number += 1
            chance.shuffle(waiting)
            due, off, waiting = waiting[:2], waiting[2:3], waiting[3:]
            for cancelled in off:
                outbox.cancel(cancelled)
            now = _now(api, queue)
            since |= dict.fromkeys(due, now)
            outbox.pass_time(due)
            wanted += due
            query.processAllAvailable()
            assert collected.values() == sorted(wanted)
    finally:
        query.stop()
    for data, created_at in (row for batch in collected.batches for row in batch):
        assert created_at.astimezone(UTC) >= since[int(data)]


def _now(api: Api, queue: str) -> datetime:
    """The database's clock: nothing that comes is written before it."""
    return datetime.fromtimestamp(sealed(api, queue) / 1e6, UTC)


@pytest.mark.parametrize("option", ["delayedProcessing", "windowBuffer"])
def test_what_consumers_must_wait_for_spark_reads_at_once(
    api: Api, read: Read, read_stream: Read, queue: str, checkpoint: str, option: str
) -> None:
    api.configure(queue, **{option: 3600})
    numbers = list(range(20))
    for number in numbers:
        push(api, queue, number, partition=f"p{number % 3}")
    assert api.messages(queue, batch=100, consumerGroup="late") == []
    assert Collected(checkpoint).run(read_stream("data STRING", queue=queue)).values() == numbers
    assert sorted(int(row.data) for row in read("data STRING", queue=queue).collect()) == numbers


@pytest.mark.parametrize("option", ["ttl", "maxWaitTimeSeconds"])
def test_what_has_expired_is_read_as_long_as_it_is_there(
    api: Api, read: Read, dsn: str, queue: str, option: str
) -> None:
    """A server may remove it at any moment; not always in between."""
    with psycopg.connect(dsn, autocommit=True) as database:
        for number in range(5):
            name = f"{queue}-{number}"
            api.configure(name, **{option: 60})
            push(api, name, 1, 2)
            database.execute(
                "update queen.segments s set created_at = s.created_at - interval '1 hour'"
                " from queen.queues q where q.id = s.queue_id and q.name = %s",
                (name,),
            )
            rows = sorted(int(row.data) for row in read("data STRING", queue=name).collect())
            assert api.messages(name, batch=100, consumerGroup="late") == []
            if rows == [1, 2]:
                return
    pytest.fail("it was gone each time")
