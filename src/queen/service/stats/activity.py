"""Activity: what this server does with each queue, counted in memory.

A request costs a look-up and a few additions. `activity_report` writes the counters to the
database every few seconds.
"""

from __future__ import annotations

import bisect
import socket
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from queen.service.stats.flows import Flows
from queen.service.stats.resp_counts import RespCounts

if TYPE_CHECKING:
    from queen.service.acks.ack_batch import AckBatch
    from queen.service.catalog import Queue
    from queen.service.consume.feeds import Grant
    from queen.service.log.append import Append
    from queen.service.log.flush_share import Share

# The order of the columns in `queen.activity` and of the totals in `queen.servers`.
FIELDS = (
    "push_requests",
    "push_messages",
    "push_duplicates",
    "push_bytes",
    "pop_requests",
    "pop_messages",
    "pop_empty",
    "auto_acked",
    "ack_requests",
    "ack_ok",
    "ack_failed",
    "dead_letters",
    "transactions",
    "partitions_created",
    "lag_count",
    "lag_sum_ms",
)


class ServerName(NamedTuple):
    """How a server process is told from others."""

    hostname: str = socket.gethostname()
    port: int = 0
    worker: int = 0


class Counters:
    """What happened to one queue since this server started."""

    __slots__ = (
        *FIELDS,
        "base",
        "bucket",
        "bucket_lag_max_ms",
        "bucket_parked",
        "lag_max_ms",
        "name",
        "parked",
        "sent",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.push_requests = self.push_messages = self.push_duplicates = self.push_bytes = 0
        self.pop_requests = self.pop_messages = self.pop_empty = self.auto_acked = 0
        self.ack_requests = self.ack_ok = self.ack_failed = self.dead_letters = 0
        self.transactions = self.partitions_created = 0
        self.lag_count = self.lag_sum_ms = 0
        # Since the last write.
        self.lag_max_ms = 0
        # Polls that are parked now.
        self.parked = 0
        # Where the counters stood at the last write, and when its minute began.
        self.sent = self.base = (0,) * len(FIELDS)
        self.bucket: datetime | None = None
        self.bucket_lag_max_ms = self.bucket_parked = 0

    def values(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in FIELDS)

    def turn_to(self, bucket: datetime) -> None:
        """Bring what belongs to a minute up to date."""
        if self.bucket != bucket:
            self.bucket, self.base = bucket, self.sent
            self.bucket_lag_max_ms = self.bucket_parked = 0
        self.bucket_lag_max_ms = max(self.bucket_lag_max_ms, self.lag_max_ms)
        self.bucket_parked = max(self.bucket_parked, self.parked)
        self.lag_max_ms = 0


class Count(NamedTuple):
    """The counters of one queue as they stood when a report took them."""

    queue_id: int
    counters: Counters
    values: tuple[int, ...]


class Histogram:
    """How often values fell below each of some bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, *bounds: float) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class Activity:
    def __init__(self, name: ServerName) -> None:
        self.name = name
        self.started = time.monotonic()
        # HTTP requests of any kind.
        self.requests = 0
        # What clients of the RESP port do.
        self.resp = RespCounts()
        # Through what messages go into which queue.
        self.flows = Flows()
        self.flush_seconds = Histogram(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
        self.flush_messages = Histogram(1, 10, 100, 1000, 10_000, 100_000)
        self._queues: dict[int, Counters] = {}
        self._touched: set[int] = set()
        self._was_parked: set[int] = set()
        self._totals = [0] * len(FIELDS)
        self._version = 0

    # ---- counting ----

    def of(self, queue: Queue) -> Counters:
        self._version += 1
        self._touched.add(queue.id)
        counters = self._queues.get(queue.id)
        if counters is None:
            counters = self._queues[queue.id] = Counters(queue.name)
        return counters

    def version(self) -> int:
        """Grows with everything that is counted."""
        return self._version

    def count_push(self, appends: Sequence[Append]) -> None:
        """Count a push request that was answered."""
        if len(appends) == 1:
            self._count_push_to(appends[0].target.queue if appends[0].target else None, appends)
            return
        by_queue: dict[Queue, list[Append]] = {}
        for append in appends:
            if append.target is not None:
                by_queue.setdefault(append.target.queue, []).append(append)
        for queue, of_queue in by_queue.items():
            self._count_push_to(queue, of_queue)

    def _count_push_to(self, queue: Queue | None, appends: Iterable[Append]) -> None:
        if queue is None:
            return
        counters = self.of(queue)
        counters.push_requests += 1
        for append in appends:
            if append.repeats:
                counters.push_duplicates += len(append.repeats)

    def count_stored(self, share: Share) -> None:
        """Count messages of one partition that were committed."""
        counters = self.of(share.partition.queue)
        counters.push_messages += share.total
        for built in share.segments:
            counters.push_bytes += len(built.body)

    def count_published(
        self, queue: Queue, messages: int, stored_bytes: int, duplicates: int
    ) -> None:
        """Count messages that a sink had staged and that were committed."""
        counters = self.of(queue)
        counters.push_messages += messages
        counters.push_bytes += stored_bytes
        counters.push_duplicates += duplicates

    def count_flush(self, messages: int, seconds: float) -> None:
        """Count appends that were written in one transaction."""
        self.flush_seconds.observe(seconds)
        self.flush_messages.observe(messages)

    def count_pop(self, queues: Sequence[Queue], grants: Sequence[Grant]) -> None:
        """Count a pop that was answered, with or without messages."""
        if not grants:
            for queue in queues:
                counters = self.of(queue)
                counters.pop_requests += 1
                counters.pop_empty += 1
            return
        # The database's clock wrote the times; a server whose clock is behind shows no lag.
        now_s = time.time()
        self.of(grants[0].partition.queue).pop_requests += 1
        for grant in grants:
            counters = self.of(grant.partition.queue)
            count = grant.shown
            counters.pop_messages += count
            if grant.lease_id is None:
                counters.auto_acked += count
                self.flows.count_acked(grant.partition.queue.id, grant.group, count)
            for stored in grant.stored:
                low, high = stored.part(grant.start, grant.stop)
                lag_ms = max(0, int((now_s - stored.created_at.timestamp()) * 1000))
                counters.lag_count += high - low
                counters.lag_sum_ms += (high - low) * lag_ms
                counters.lag_max_ms = max(counters.lag_max_ms, lag_ms)

    def count_acks(self, batch: AckBatch) -> None:
        """Count acknowledgments of one lease in one partition that were decided."""
        if not batch.weight:
            return
        counters, tally = self.of(batch.partition.queue), batch.tally()
        counters.ack_requests += 1
        counters.ack_ok += tally.done
        counters.ack_failed += tally.failed
        counters.dead_letters += tally.dead
        self.flows.count_acked(batch.partition.queue.id, batch.group, tally.done)

    def count_given_up(self, queue: Queue) -> None:
        """Count a message that was set aside because no consumer came back from it."""
        self.of(queue).dead_letters += 1

    def count_transaction(self, queues: Iterable[Queue]) -> None:
        for queue in set(queues):
            self.of(queue).transactions += 1

    def count_partitions(self, queue: Queue, count: int) -> None:
        self.of(queue).partitions_created += count

    # ---- reading what is in memory ----

    def by_queue(self) -> list[Counters]:
        return list(self._queues.values())

    def totals(self) -> dict[str, int]:
        """Return everything this server has counted, queues that are gone included."""
        totals = list(self._totals)
        for counters in self._queues.values():
            for at, (now, sent) in enumerate(zip(counters.values(), counters.sent, strict=True)):
                totals[at] += now - sent
        return dict(zip(FIELDS, totals, strict=True))

    # ---- for the report ----

    @property
    def is_touched(self) -> bool:
        """Whether something was counted since the last report took it."""
        return bool(self._touched)

    def take(self, parked: dict[int, int]) -> list[Count]:
        """Take what was counted since the last report, with the polls that wait now."""
        for queue_id in self._was_parked | parked.keys():
            if queue_id in self._queues:
                self._queues[queue_id].parked = parked.get(queue_id, 0)
                self._touched.add(queue_id)
        self._was_parked = set(parked)
        touched = sorted(self._touched & self._queues.keys())
        self._touched.clear()
        counters = [(queue_id, self._queues[queue_id]) for queue_id in touched]
        return [Count(queue_id, of_queue, of_queue.values()) for queue_id, of_queue in counters]

    def put_back(self, counts: list[Count]) -> None:
        """A report was not written: the next one has its numbers too."""
        self._touched.update(count.queue_id for count in counts)

    def totals_with(self, counts: list[Count]) -> list[int]:
        """Return what the totals are once a report is written."""
        totals = list(self._totals)
        for count in counts:
            for at, (now, before) in enumerate(zip(count.values, count.counters.sent, strict=True)):
                totals[at] += now - before
        return totals

    def note_report(self, counts: list[Count]) -> None:
        """A report was written: the next one begins where it ended."""
        self._totals = self.totals_with(counts)
        for count in counts:
            count.counters.sent = count.values

    def forget(self, queue_id: int) -> None:
        """A queue is gone, and its numbers with it."""
        self._queues.pop(queue_id, None)
