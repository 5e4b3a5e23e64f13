"""Two real servers on one database, as the machine uses them, and what it does behind them.

Time does not pass in a run: leases lapse, waits end and messages grow old by SQL, so that no
step sleeps.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

import psycopg

from queen.service.upkeep.jobs import Jobs
from queen.service.upkeep.retention import Retention
from queen.storage.database import Database, Transaction
from tests.api import Answer, Api

QUEUE_MODE = "__QUEUE_MODE__"
AGE_S = 3600

_LAPSE = "update queen.cursors set lease_until = clock_timestamp() where lease_id = %s"
_LAPSE_SPANS = "update queen.shared_spans set due_at = clock_timestamp() where lease_id = %s"
_END_SPAN_WAITS = """
update queen.shared_spans s set due_at = clock_timestamp()
from queen.partitions p join queen.queues q on q.id = p.queue_id
where p.id = s.partition_id and q.name = %s and s.lease_id is null
"""
_SPANS = """
select c.committed, c.handed, c.in_flight, array(
    select o from queen.shared_spans s
    cross join lateral generate_series(s.first_offset, s.end_offset - 1) o
    where s.partition_id = c.partition_id and s.group_id = c.group_id
      and queen.bits_within(s.acked, s.failed, o - s.first_offset, o - s.first_offset + 1) is null)
from queen.queues q
join queen.groups g on g.queue_id = q.id
join queen.cursors c on c.group_id = g.id
where q.name = %s and g.name = %s
"""
_DEAD = """
select d.message_offset from queen.dead_letters d join queen.queues q on q.id = d.queue_id
where q.name = %s order by 1
"""
_END_WAITS = """
update queen.cursors c set retry_at = clock_timestamp()
from queen.partitions p join queen.queues q on q.id = p.queue_id
where p.id = c.partition_id and q.name = %s and c.retry_at is not null
"""
_AGE = """
with mine as (select id from queen.queues where name = %(queue)s),
moved as (
    update queen.segments set created_at = created_at - make_interval(secs => %(age)s)
    where queue_id in (select id from mine)
),
groups as (
    update queen.groups set starts_at = starts_at - make_interval(secs => %(age)s)
    where queue_id in (select id from mine)
)
update queen.partitions set head_at = head_at - make_interval(secs => %(age)s)
where queue_id in (select id from mine)
"""
_OPTIONS = "update queen.queues set options = options || %s::jsonb where name = %s"
_CURSORS = """
select p.name, g.name, c.committed
from queen.queues q
join queen.partitions p on p.queue_id = q.id
join queen.groups g on g.queue_id = q.id
join queen.cursors c on c.partition_id = p.id and c.group_id = g.id
where q.name = %s
"""
_LOGS = """
select p.name, p.tail, p.head,
       (select coalesce(sum(s.end_offset - s.base_offset), 0)::bigint from queen.segments s
        where s.partition_id = p.id)
from queen.partitions p join queen.queues q on q.id = p.queue_id
where q.name = %s and p.head > 0
"""


class Broker:
    def __init__(self, servers: list[Api], dsn: str) -> None:
        self.servers = servers
        self._sql = psycopg.connect(dsn, autocommit=True)
        self._loop = asyncio.Runner()
        self._database = self._loop.run(Database.connect(dsn, size=1))

    def close(self) -> None:
        for api in self.servers:
            api.close()
        self._loop.run(self._database.close())
        self._loop.close()
        self._sql.close()

    # ---- over HTTP ----

    def configure(self, queue: str, **options: Any) -> None:
        assert self.servers[0].configure(queue, **options).status == 201

    def letters(self, at: int, queue: str) -> list[dict[str, Any]]:
        """Return the dead letters, the oldest first."""
        path = f"/api/v1/dlq?{urlencode({'queue': queue, 'limit': 1000})}"
        answer = self.servers[at].call("GET", path)
        assert answer.status == 200, answer.raw
        found: list[dict[str, Any]] = answer.json["messages"]
        assert answer.json["total"] == len(found)
        return found[::-1]

    def retry_letters(self, at: int, **body: Any) -> int:
        answer = self.servers[at].call("POST", "/api/v1/dlq/retry", body)
        assert answer.status == 200, answer.raw
        count: int = answer.json["retried"]
        return count

    def purge_letters(self, at: int, queue: str, group: str) -> int:
        query = urlencode({"queue": queue, "consumerGroup": group})
        answer = self.servers[at].call("DELETE", f"/api/v1/dlq?{query}")
        assert answer.status == 200, answer.raw
        count: int = answer.json["purged"]
        return count

    def message(self, at: int, method: str, partition_id: str, one: str, verb: str = "") -> Answer:
        path = f"/api/v1/messages/{partition_id}/{quote(one, safe='')}{verb}"
        return self.servers[at].call(method, path)

    def seek(self, at: int, group: str, queue: str, partition: str | None, **body: Any) -> Answer:
        path = f"/api/v1/consumer-groups/{group}/queues/{queue}"
        if partition is not None:
            path += f"/partitions/{partition}"
        return self.servers[at].call("POST", f"{path}/seek", body)

    # ---- behind the servers ----

    def lapse(self, lease_id: str) -> None:
        self._sql.execute(_LAPSE, [uuid.UUID(lease_id)])
        self._sql.execute(_LAPSE_SPANS, [uuid.UUID(lease_id)])

    def end_waits(self, queue: str) -> None:
        self._sql.execute(_END_WAITS, [queue])
        self._sql.execute(_END_SPAN_WAITS, [queue])

    def spans(self, queue: str, group: str) -> list[tuple[int, int | None, int, list[int]]]:
        """Return where a group stands in each partition: up to where all is done, and was handed
        out, how many messages are in flight, and which."""
        return self._sql.execute(_SPANS, [queue, group]).fetchall()

    def dead_offsets(self, queue: str) -> list[int]:
        return [offset for (offset,) in self._sql.execute(_DEAD, [queue]).fetchall()]

    def grow_older(self, queue: str) -> None:
        self._sql.execute(_AGE, {"queue": queue, "age": AGE_S})

    def cursors(self, queue: str) -> dict[tuple[str, str], int]:
        """Return where each group stands in each partition that it has opened."""
        rows = self._sql.execute(_CURSORS, [queue]).fetchall()
        return {(partition, group): committed for partition, group, committed in rows}

    def logs(self, queue: str) -> dict[str, list[int]]:
        """Return tail, head and the number of stored messages of each partition."""
        return {name: rest for name, *rest in self._sql.execute(_LOGS, [queue]).fetchall()}

    @contextmanager
    def _options(self, queue: str, **options: Any) -> Iterator[None]:
        """Change options for a moment: the servers' own clean-up must not come between."""
        self._sql.execute(_OPTIONS, [json.dumps(options), queue])
        try:
            yield
        finally:
            off = {"retentionEnabled": False, "retentionSeconds": 0, "completedRetentionSeconds": 0}
            self._sql.execute(_OPTIONS, [json.dumps(off), queue])

    def retain(self, queue: str, **options: int) -> None:
        """Run the clean-up to its end, as a server's job does."""
        with self._options(queue, retentionEnabled=True, **options):
            self._loop.run(self._retain())

    async def _retain(self) -> None:
        retention, jobs = Retention(7, 30), Jobs(self._database)
        rounds: list[bool] = []

        async def work(transaction: Transaction) -> bool:
            rounds.append(await retention.remove_old(transaction))
            return rounds[-1]

        jobs.add("retention", 1, work)
        # The servers run the same job; then it is not our turn.
        while not rounds or rounds[-1]:
            await jobs.run_once("retention")
