"""The claim: one transaction for all pops that are waiting for one."""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Awaitable
from typing import Any, NamedTuple, Protocol

from queen.core.cursor import bits_from_bytes
from queen.core.ids import new_lease
from queen.errors import OutcomeUnknown, QueenError
from queen.service.batcher import Batcher
from queen.service.catalog import Catalog, Partition
from queen.service.cursors import failures_of
from queen.service.dispatch import Attempt, Dispatcher
from queen.service.feeds import Feed, Grant
from queen.service.leases import LeaseBook, Span, span_of
from queen.service.segments import SegmentCache, Stored
from queen.service.vault import Vault
from queen.storage.database import Database, Record

_log = logging.getLogger(__name__)

_GRANTED, _EMPTY, _HELD, _MISSING, _SPENT, _EXHAUSTED, _PAUSED = range(7)
_KNOWS_HEAD = {_GRANTED, _EMPTY, _HELD, _EXHAUSTED}
# What is read of one partition for one pop, as it is stored.
_MAX_READ_BYTES = 16 * 1024 * 1024


class Entry(NamedTuple):
    """One partition that one attempt wants to claim."""

    partition: Partition
    group_id: int
    number: int
    # Where this server believed it to end when it asked.
    head: int


class Hooks(Protocol):
    """What a claim leaves to others."""

    async def give_up(
        self, partition: Partition, group: str, group_id: int, offset: int, attempts: int
    ) -> None:
        """Set aside a message that no consumer ever came back from."""

    def unwanted(self, grants: list[Grant]) -> None:
        """Take grants for which nobody waits any more."""

    async def pass_over(self, span: Span, lease_id: uuid.UUID) -> None:
        """End a lease of which the group is shown nothing."""

    def missing(self, feed: Feed) -> None:
        """Find out whether the group of a feed is gone."""


class Claims:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        cache: SegmentCache,
        leases: LeaseBook,
        vault: Vault,
        dispatcher: Dispatcher,
        hooks: Hooks,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._cache = cache
        self._leases = leases
        self._dispatcher = dispatcher
        self._vault = vault
        self.hooks = hooks
        self._batcher: Batcher[Attempt] = Batcher(
            self._flush, max_items=512, max_weight=1000, max_waiting_weight=100_000
        )
        dispatcher.submit = self._batcher.submit

    def drained(self) -> Awaitable[None]:
        return self._batcher.drained()

    async def _flush(self, attempts: list[Attempt]) -> None:
        try:
            granted = await self._claim(attempts)
            for number, grants in granted.items():
                feed = attempts[number].feed
                granted[number] = [one for one in grants if await self._book(feed, one)]
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
            attempt.pop.fail(error)

    async def _claim(self, attempts: list[Attempt]) -> dict[int, list[Grant]]:
        """Claim for all attempts; return the grants by the number of the attempt."""
        lease_ids = [new_lease() for _ in attempts]
        entries = sorted(
            (
                Entry(partition, attempt.feed.group_id, number, partition.head)
                for number, attempt in enumerate(attempts)
                for partition in attempt.partitions
            ),
            key=lambda entry: (entry.partition.id, entry.group_id),
        )
        rows = await self._claim_rows(attempts, entries, lease_ids)
        granted: dict[int, list[Grant]] = defaultdict(list)
        for entry, row in zip(entries, rows, strict=True):
            attempt = attempts[entry.number]
            attempt.feed.claiming.discard(entry.partition.id)
            self._saw_head(entry, row)
            if row["outcome"] == _GRANTED:
                lease_id = None if attempt.pop.auto_ack else lease_ids[entry.number]
                grant = self._grant(attempt, entry.partition, lease_id, row)
                granted[entry.number].append(grant)
            else:
                await self._not_granted(attempt.feed, entry.partition, row)
        await self._read([grant for grants in granted.values() for grant in grants])
        return granted

    def _saw_head(self, entry: Entry, row: Record) -> None:
        if row["outcome"] not in _KNOWS_HEAD:
            return
        if row["erasures"] != entry.partition.erasures:
            # A message was erased since: what is cached may still have it.
            entry.partition.erasures = row["erasures"]
            self._cache.forget(entry.partition.id)
        # Believed when it asked, and still: another answer may have told already.
        believed = min(entry.head, entry.partition.head)
        if row["head"] < believed:
            self._catalog.went_back(entry.partition, row["head"])
        else:
            entry.partition.saw_head(row["head"])

    async def _claim_rows(
        self, attempts: list[Attempt], entries: list[Entry], lease_ids: list[uuid.UUID]
    ) -> list[Record]:
        options = [attempt.feed.queue.options for attempt in attempts]
        arguments: tuple[list[Any], ...] = (
            [entry.partition.id for entry in entries],
            [entry.group_id for entry in entries],
            [entry.number + 1 for entry in entries],
            lease_ids,
            [one.lease_time * 1000 for one in options],
            [attempt.pop.auto_ack for attempt in attempts],
            [attempt.pop.batch for attempt in attempts],
            [one.retry_ceiling for one in options],
            [one.delayed_processing * 1000 for one in options],
            [one.window_buffer * 1000 for one in options],
            [one.expiry_seconds * 1000 for one in options],
        )
        try:
            return await self._database.fetch("claim", *arguments)
        except OutcomeUnknown:
            # A lease is recognised by its id when it is claimed again. What was committed at
            # once is not: asking again would skip it.
            if any(attempt.pop.auto_ack for attempt in attempts):
                raise
            return await self._database.fetch("claim", *arguments)

    def _grant(
        self, attempt: Attempt, partition: Partition, lease_id: uuid.UUID | None, row: Record
    ) -> Grant:
        feed = attempt.feed
        grant = Grant(
            partition,
            feed.group,
            lease_id,
            row["committed"],
            row["batch_end"],
            row["epoch"],
            row["attempt"],
            row["seen"],
            bits_from_bytes(row["acked"]),
            failures_of(row["failures"]) if row["failures"] else {},
            row["wait_ms"],
        )
        if lease_id is None:
            feed.lease_ended(partition, None, grant.stop)
        elif attempt.generation != feed.generation:
            # The group was moved meanwhile. Whether before or after this grant, the next claim
            # finds out.
            feed.offer_again(partition)
        else:
            feed.granted(partition, lease_id, grant.stop)
            self._dispatcher.set_timer(feed, partition, lease_id, grant.lease_ms)
        return grant

    async def _not_granted(self, feed: Feed, partition: Partition, row: Record) -> None:
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
            self.hooks.missing(feed)
        elif outcome == _EXHAUSTED:
            await self.hooks.give_up(
                partition, feed.group, feed.group_id, row["committed"], row["attempt"]
            )
            # Whoever held it has lost it, even if this server's timer has not rung yet.
            feed.leased.pop(partition.id, None)
            feed.offer_again(partition, first=True)
        elif outcome == _PAUSED:
            self._dispatcher.group_paused(feed)
            feed.offer_again(partition, first=True)

    def _deliver(self, attempt: Attempt, grants: list[Grant]) -> None:
        pop = attempt.pop
        errors = [grant.error for grant in grants if grant.error is not None]
        if not grants:
            self._dispatcher.unserved(pop)
        elif errors or pop.done.done():
            pop.busy = False
            self.hooks.unwanted(grants)
            if errors:
                pop.fail(errors[0])
        else:
            pop.busy = False
            pop.finish(grants)
        self._dispatcher.pump(attempt.feed)

    async def _book(self, feed: Feed, grant: Grant) -> bool:
        """Remember which messages a lease covers; return whether there is one to show."""
        if grant.error is not None:
            return True
        span = span_of(
            grant.partition, feed.group, feed.group_id, grant.start, grant.stop, grant.stored
        )
        for offset in span.hidden:
            grant.skip |= 1 << (offset - grant.start)
        if grant.lease_id is not None:
            self._leases.add(grant.lease_id, span)
            if not grant.shown:
                await self.hooks.pass_over(span, grant.lease_id)
        return bool(grant.shown)

    async def _read(self, grants: list[Grant]) -> None:
        """Fill in the messages, from the cache where it has them all."""
        missing: list[Grant] = []
        for grant in grants:
            found = self._cache.span(grant.partition.id, grant.start, grant.stop)
            if found is None:
                missing.append(grant)
            else:
                grant.stored.extend(found)
        if missing:
            await self._read_stored(missing)

    async def _read_stored(self, grants: list[Grant]) -> None:
        """Read messages from the database, no more of a partition at once than fits an answer."""
        rows = await self._database.fetch(
            "read_some",
            [grant.partition.id for grant in grants],
            [grant.start if not grant.stored else grant.stored[-1].end_offset for grant in grants],
            [grant.stop for grant in grants],
            _MAX_READ_BYTES,
        )
        for row in rows:
            grant = grants[row["span"] - 1]
            try:
                segment = self._vault.segment(row)
            except QueenError as error:
                grant.error = error
                continue
            grant.stored.append(Stored(row["base_offset"], row["created_at"], segment))
        cut = [grant for grant in grants if _is_cut(grant)]
        for grant in cut:
            if grant.lease_id is not None:
                await self._shorten(grant, grant.stored[-1].end_offset)
        at_once = [grant for grant in cut if grant.lease_id is None]
        if at_once:
            # Committed already: all of it must be delivered.
            await self._read_stored(at_once)

    async def _shorten(self, grant: Grant, stop: int) -> None:
        """Lease no more than was read; the rest stays for the next pop."""
        feed = self._dispatcher.feed(grant.partition.queue.id, grant.group)
        if feed is None:
            return
        await self._database.fetch(
            "shorten_lease", grant.partition.id, feed.group_id, grant.lease_id, stop
        )
        grant.stop = stop
        feed.moved(grant.partition, stop)


def _is_cut(grant: Grant) -> bool:
    return grant.error is None and bool(grant.stored) and grant.stored[-1].end_offset < grant.stop
