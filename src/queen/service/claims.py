"""The claim: one transaction for all pops that are waiting for one."""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from queen.core.cursor import bits_from_bytes
from queen.core.frame import stored_segment
from queen.core.ids import new_lease
from queen.errors import OutcomeUnknown, QueenError
from queen.service.batcher import Batcher
from queen.service.catalog import Catalog, Partition
from queen.service.dispatch import Attempt, Dispatcher
from queen.service.feeds import Feed, Grant
from queen.service.leases import LeaseBook, Span
from queen.service.segments import SegmentCache, Stored
from queen.storage.database import Database, Record

_log = logging.getLogger(__name__)

_GRANTED, _EMPTY, _HELD, _MISSING, _SPENT = range(5)


class Claims:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        cache: SegmentCache,
        leases: LeaseBook,
        dispatcher: Dispatcher,
        unwanted: Callable[[list[Grant]], None],
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._cache = cache
        self._leases = leases
        self._dispatcher = dispatcher
        # Called with grants for which nobody waits any more.
        self._unwanted = unwanted
        self._batcher: Batcher[Attempt] = Batcher(
            self._flush, max_items=512, max_weight=1000, max_waiting_weight=100_000
        )
        dispatcher.submit = self._batcher.submit

    def drained(self) -> Awaitable[None]:
        return self._batcher.drained()

    async def _flush(self, attempts: list[Attempt]) -> None:
        try:
            granted = await self._claim(attempts)
        except Exception as error:
            if not isinstance(error, QueenError):
                _log.exception("a claim failed")
            self._fail(attempts, error if isinstance(error, QueenError) else QueenError())
        else:
            for number, attempt in enumerate(attempts):
                self._deliver(attempt, granted[number])

    def _fail(self, attempts: list[Attempt], error: QueenError) -> None:
        for attempt in attempts:
            for partition in attempt.partitions:
                attempt.feed.claiming.discard(partition.id)
                attempt.feed.offer_again(partition)
            attempt.pop.busy = False
            if not attempt.pop.done.done():
                attempt.pop.done.set_exception(error)
            attempt.pop.end_turn()

    async def _claim(self, attempts: list[Attempt]) -> dict[int, list[Grant]]:
        """Claim for all attempts; return the grants by the number of the attempt."""
        lease_ids = [new_lease() for _ in attempts]
        entries = sorted(
            (
                (partition, attempt.feed.group_id, number)
                for number, attempt in enumerate(attempts)
                for partition in attempt.partitions
            ),
            key=lambda entry: (entry[0].id, entry[1]),
        )
        lease_ms = [attempt.feed.queue.options.lease_time * 1000 for attempt in attempts]
        rows = await self._claim_rows(
            any(attempt.pop.auto_ack for attempt in attempts),
            [entry[0].id for entry in entries],
            [entry[1] for entry in entries],
            [lease_ids[number] for _, _, number in entries],
            [lease_ms[number] for _, _, number in entries],
            [attempts[number].pop.auto_ack for _, _, number in entries],
            [number + 1 for _, _, number in entries],
            [attempt.pop.batch for attempt in attempts],
        )
        granted: dict[int, list[Grant]] = defaultdict(list)
        for (partition, _, number), row in zip(entries, rows, strict=True):
            attempt = attempts[number]
            attempt.feed.claiming.discard(partition.id)
            partition.saw_head(row["head"])
            if row["outcome"] == _GRANTED:
                lease_id = None if attempt.pop.auto_ack else lease_ids[number]
                granted[number].append(self._grant(attempt.feed, partition, lease_id, row))
            else:
                self._not_granted(attempt.feed, partition, row)
        await self._read([grant for grants in granted.values() for grant in grants])
        return granted

    async def _claim_rows(self, any_auto: bool, *arguments: list[Any]) -> list[Record]:
        try:
            return await self._database.fetch("claim", *arguments)
        except OutcomeUnknown:
            # A lease is recognised by its id when it is claimed again. What was committed at
            # once is not: asking again would skip it.
            if any_auto:
                raise
            return await self._database.fetch("claim", *arguments)

    def _grant(
        self, feed: Feed, partition: Partition, lease_id: uuid.UUID | None, row: Record
    ) -> Grant:
        grant = Grant(
            partition,
            feed.group,
            lease_id,
            row["committed"],
            row["batch_end"],
            row["epoch"],
            row["attempt"],
            bits_from_bytes(row["acked"]),
            [],
            row["wait_ms"],
        )
        if lease_id is None:
            feed.lease_ended(partition, None, grant.stop)
        else:
            feed.granted(partition, lease_id, grant.stop)
            self._dispatcher.set_timer(feed, partition, lease_id, grant.lease_ms)
        return grant

    def _not_granted(self, feed: Feed, partition: Partition, row: Record) -> None:
        outcome = row["outcome"]
        if outcome == _EMPTY:
            feed.moved(partition, row["committed"])
            # It may have been written while the claim was on its way.
            feed.offer(partition)
        elif outcome == _HELD:
            feed.held[partition.id] = partition
            self._dispatcher.set_timer(feed, partition, None, row["wait_ms"])
        elif outcome == _SPENT:
            feed.offer_again(partition, first=True)
        elif outcome == _MISSING:
            feed.forget(partition.id)
            self._catalog.forget_partition(partition.id)

    def _deliver(self, attempt: Attempt, grants: list[Grant]) -> None:
        pop = attempt.pop
        if not grants:
            self._dispatcher.unserved(pop)
        else:
            pop.busy = False
            for grant in grants:
                self._book(attempt.feed, grant)
            if pop.done.done():
                self._unwanted(grants)
            else:
                pop.finish(grants)
        self._dispatcher.pump(attempt.feed)

    def _book(self, feed: Feed, grant: Grant) -> None:
        """Remember which transaction ids a lease covers."""
        if grant.lease_id is None:
            return
        ids: list[str] = []
        for stored in grant.stored:
            ids += stored.segment.transaction_ids(*stored.part(grant.start, grant.stop))
        span = Span(grant.partition, feed.group, feed.group_id, grant.start, grant.stop, ids)
        self._leases.add(grant.lease_id, span)

    async def _read(self, grants: list[Grant]) -> None:
        """Fill in the messages, from the cache where it has them all."""
        missing: list[Grant] = []
        for grant in grants:
            found = self._cache.span(grant.partition.id, grant.start, grant.stop)
            if found is None:
                missing.append(grant)
            else:
                grant.stored.extend(found)
        if not missing:
            return
        rows = await self._database.fetch(
            "read_spans",
            [grant.partition.id for grant in missing],
            [grant.start for grant in missing],
            [grant.stop for grant in missing],
        )
        for row in rows:
            segment = stored_segment(row["codec"], row["body"])
            stored = Stored(row["base_offset"], row["created_at"], segment)
            missing[row["span"] - 1].stored.append(stored)
