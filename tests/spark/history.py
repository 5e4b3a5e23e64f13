"""Events with a past of their own: written when the test says, as far as anybody can tell.

Messages are pushed for real; then their segments are moved to the instant at which they are
meant to have been written. Everything is hours ago, so that all of it is sealed.
"""

from __future__ import annotations

import json
import random
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from pyspark.sql import SparkSession

from queen.spark.pipelines.backfill import backfill, plain_rows
from queen.spark.pipelines.run import Options, Running, checked_definition
from tests.api import Api

if TYPE_CHECKING:
    from tests.conftest import ServerProcess

# Of the payloads of events.
SCHEMA = "user string, id string, ts timestamp, amount bigint"
BEGIN = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=12)
_PUSH = 2000


class Event(NamedTuple):
    queue: str
    user: str
    id: str
    # When it says that it happened; None when it does not say.
    ts: datetime | None
    amount: int
    # When it was written.
    written: datetime

    @property
    def payload(self) -> dict[str, Any]:
        ts = None if self.ts is None else self.ts.isoformat().replace("+00:00", "Z")
        return {"user": self.user, "id": self.id, "ts": ts, "amount": self.amount}


def made_up(count: int, queues: list[str], seed: int) -> list[Event]:
    """Events with every fault: late, repeated, from clocks an hour ahead, after idle gaps."""
    chance = random.Random(seed)
    now = BEGIN
    events: list[Event] = []
    repeats: list[Event] = []
    while len(events) < count:
        now += timedelta(milliseconds=chance.choice([700, 1500, 4000]))
        if chance.random() < 0.02:
            now += timedelta(seconds=chance.randrange(30, 200))
        due = [one for one in repeats if one.written <= now]
        repeats = [one for one in repeats if one.written > now]
        events += [one._replace(written=now) for one in due]
        for _ in range(chance.randrange(1, 30)):
            event = _event(chance, queues, len(events), now)
            events.append(event)
            if chance.random() < 0.05:
                again = timedelta(seconds=chance.randrange(0, 40))
                repeats.append(event._replace(written=now + again))
    return events


def _event(chance: random.Random, queues: list[str], number: int, now: datetime) -> Event:
    delay_ms = chance.randrange(0, 6000) if chance.random() < 0.9 else chance.randrange(0, 90_000)
    ts: datetime | None = now - timedelta(milliseconds=delay_ms)
    if chance.random() < 0.01:
        ts = now + timedelta(hours=1)
    if chance.random() < 0.005:
        ts = None
    user = f"u{chance.randrange(12)}"
    return Event(chance.choice(queues), user, f"e{number}", ts, chance.randrange(100), now)


def write(api: Api, dsn: str, events: Iterable[Event]) -> None:
    """Push events, and let them have been written when they say."""
    by_time: dict[datetime, list[Event]] = defaultdict(list)
    for event in events:
        by_time[event.written].append(event)
    with psycopg.connect(dsn, autocommit=True) as database:
        for written in sorted(by_time):
            many = by_time[written]
            for part in _parts(many):
                items = [
                    {
                        "queue": one.queue,
                        "partition": one.user,
                        "transactionId": uuid.uuid4().hex,
                        "payload": one.payload,
                    }
                    for one in part
                ]
                assert api.push(*items).status == 201
            move(database, {one.queue for one in many}, written)


def move(database: psycopg.Connection[Any], queues: set[str], written: datetime) -> None:
    """Let what was just pushed have been written then: it is what is not in the past yet."""
    database.execute(
        "update queen.segments s set created_at = %s from queen.queues q"
        " where q.id = s.queue_id and q.name = any(%s) and s.created_at > %s",
        (written, list(queues), datetime.now(UTC) - timedelta(hours=1)),
    )


def _parts(many: list[Event]) -> Iterator[list[Event]]:
    for first in range(0, len(many), _PUSH):
        yield many[first : first + _PUSH]


def messages(api: Api, queue: str) -> list[Any]:
    """The payloads of everything that is in a queue, whatever its partition."""
    return [one["data"] for one in popped(api, queue)]


def popped(api: Api, queue: str) -> list[Any]:
    """Everything that is in a queue, as it is popped."""
    found: list[Any] = []
    group = uuid.uuid4().hex
    # A query may have taken longer than the server keeps an idle connection.
    own = api.twin()
    while True:
        answer = own.call(
            "GET", f"/api/v1/pop/queue/{queue}?consumerGroup={group}&batch=10000&autoAck=true"
        )
        got = [] if answer.status == 204 else answer.json["messages"]
        if not got:
            own.close()
            return found
        found += got


def iso(at: datetime) -> str:
    """A time as results have it."""
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def run_to_end(stream: Any, spark: SparkSession, folder: Path, **options: Any) -> Running:
    """Run a pipeline live over all that there is."""
    given = {"checkpoint": str(folder), "available_now": True, "starting": "earliest", **options}
    running: Running = stream.run(spark, **given)
    assert running.wait()
    return running


def live_results(stream: Any, api: Api) -> list[str]:
    """What a pipeline has written into its queue."""
    return canonical(messages(api, stream.definition()["output"]["queue"]))


def past_rows(
    stream: Any,
    spark: SparkSession,
    server: ServerProcess,
    since: datetime | None = None,
    until: datetime | None = None,
    **mode: Any,
) -> list[Any]:
    """What a backfill gives."""
    made = checked_definition(stream.definition())
    return list(plain_rows(backfill(made, spark, Options(url=server.url), since, until, **mode)))


def past_results(
    stream: Any, spark: SparkSession, server: ServerProcess, until: datetime | None = None
) -> list[str]:
    """What a backfill gives, to be compared."""
    return canonical(past_rows(stream, spark, server, until=until))


def canonical(rows: Iterable[Any]) -> list[str]:
    """Rows in an order of their own, so that two lists can be compared."""
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)
