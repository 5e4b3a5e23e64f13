"""The claim: one transaction for all pops that are waiting for one.

Claim, read, hand over. Whatever is wrong with one partition (a message that cannot be read or
set aside, a cursor that somebody holds) is told to the pop that asked for it, or passed over
where the pop has others; pops that share the transaction go on.

A pop with `autoAck` is leased like any other. What could be read is acked by the server before
it is handed over, so nothing is done that nobody could be given.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from queen.core.cursor import acked_up_to, bits_from_bytes
from queen.core.pacing.shares import FairOrder
from queen.errors import Contended, OutcomeUnknown, QueenError, Unavailable
from queen.service.acks.ack import Acker
from queen.service.acks.cursors import decode_failures
from queen.service.background import Background
from queen.service.catalog import Catalog, Partition
from queen.service.consume.dispatch import Attempt, Dispatcher
from queen.service.consume.feeds import Feed, Grant
from queen.service.consume.give_back import GiveBack
from queen.service.consume.granted_reads import Claimed, Reader
from queen.service.consume.lease_book import BareSpan, LeaseBook, SpanBuilder
from queen.service.events import Events
from queen.service.holders import Holders
from queen.service.log.batcher import Batcher
from queen.service.log.segment_cache import SegmentCache, StoredSegment
from queen.service.pacing.breakers import Breakers
from queen.service.pacing.limits import Admitted, ClaimLimits, Refusal, Row
from queen.service.stats.steps import Steps
from queen.storage.database import Database, Record, Transaction

_log = logging.getLogger(__name__)

_GRANTED, _EMPTY, _HELD, _MISSING, _SPENT, _EXHAUSTED, _PAUSED, _BUSY, _OTHER_KIND = range(9)
_KNOWS_HEAD = {_GRANTED, _EMPTY, _HELD, _EXHAUSTED}
# How long all wait for one cursor; longer than another server is at work on it.
_LOCK_WAIT_MS = 100
# An ack by the server follows its claim at once. Should it die between them, the messages
# are not to be held for as long as a consumer may hold them.
_AUTO_LEASE_MS = 15_000
# When a partition is tried again that could not be read, or of which a message could not be
# set aside.
_UNREADABLE_PAUSE_MS = 1_000


# Which of the arguments of a claim they are.
_BUDGETS = 6


class Entry(NamedTuple):
    """One partition that one attempt wants to claim."""

    partition: Partition
    group_id: int
    number: int
    # Where this server believed it to end when it asked.
    head: int


class _Asked(NamedTuple):
    """What a flush asks the database for, all of one kind."""

    attempts: list[Attempt]
    entries: list[Entry]
    # Those of `queen.claim`: the first of them for each entry, the others for each attempt.
    arguments: tuple[list[Any], ...]
    is_shared: bool
    is_limited: bool

    async def run(
        self,
        connection: Database | Transaction,
        arguments: tuple[list[Any], ...],
        wait_ms: int,
        is_again: bool,
    ) -> list[Row]:
        if self.is_shared:
            return list(await connection.fetch("claim_shared", *arguments, wait_ms, is_again))
        return list(await connection.fetch("claim", *arguments, wait_ms))

    def arguments_of(self, admission: Admitted) -> tuple[list[Any], ...]:
        """Return the arguments for what limits allow."""
        of_entries = [
            [column[index] for index in admission.admitted] for column in self.arguments[:3]
        ]
        of_attempts = list(self.arguments[3:])
        of_attempts[_BUDGETS - 3] = admission.budgets
        return (*of_entries, *of_attempts)


class Claims:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        cache: SegmentCache,
        leases: LeaseBook,
        reader: Reader,
        dispatcher: Dispatcher,
        acker: Acker,
        give_back: GiveBack,
        background: Background,
        holders: Holders,
        events: Events,
        steps: Steps,
        breakers: Breakers,
        limits: ClaimLimits,
        weights: Mapping[str, int],
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._cache = cache
        self._leases = leases
        self._dispatcher = dispatcher
        self._reader = reader
        self._acker = acker
        self._give_back = give_back
        self._background = background
        self._holders = holders
        self._events = events
        self._steps = steps
        self._breakers = breakers
        self._limits = limits
        self._batcher: Batcher[Attempt] = Batcher(
            self._flush,
            max_items=512,
            max_weight=1000,
            max_waiting_weight=100_000,
            at_once=True,
            order=FairOrder(weights, _owner_of) if weights else None,
        )
        events.claim_wanted.subscribe(self._batcher.submit)

    def drain(self) -> Awaitable[None]:
        return self._batcher.drain()

    def _note(self, step: str, attempts: list[Attempt]) -> None:
        if self._steps.queue is not None and len(attempts) == 1:
            self._steps.note(attempts[0].feed.queue.name, step)

    async def _flush(self, attempts: list[Attempt]) -> None:
        await self._renew_limits(attempts)
        if len(attempts) == 1:
            await self._flush_alike(attempts)
            return
        # Each kind has a statement of its own.
        kinds: dict[tuple[bool, bool], list[Attempt]] = {}
        for attempt in attempts:
            kinds.setdefault(_kind_of(attempt), []).append(attempt)
        for alike in kinds.values():
            await self._flush_alike(alike)

    async def _renew_limits(self, attempts: list[Attempt]) -> None:
        """Look whether limits are still what they were: whoever waits for them asks for nothing
        else by which that would be noticed."""
        limited = {
            attempt.feed.queue.name for attempt in attempts if attempt.feed.queue.options.is_limited
        }
        if limited:
            # When the database is away, the claim says so.
            with suppress(QueenError):
                await self._catalog.queues(limited)

    async def _flush_alike(self, attempts: list[Attempt]) -> None:
        """Claim for attempts of one kind: of shared groups or others, with limits or without."""
        self._note("claimed", attempts)
        try:
            claims = await self._claim(attempts)
        except Exception as error:
            if len(attempts) > 1 and not isinstance(error, Unavailable):
                # One of them is to blame; each finds out by itself.
                for attempt in attempts:
                    await self._flush_alike([attempt])
                return
            self._fail(attempts, _report(error, "a claim failed"))
            return
        await self._hand_over_all(claims)
        self._note("handed", attempts)

    def _fail(self, attempts: list[Attempt], error: QueenError) -> None:
        for attempt in attempts:
            for partition in attempt.partitions:
                attempt.feed.claiming.discard(partition.id)
                attempt.feed.offer_again(partition)
            attempt.pop.busy = False
            attempt.pop.fail(error)

    # ---- claiming ----

    async def _claim(self, attempts: list[Attempt]) -> list[Claimed]:
        """Claim for all attempts; return what each was granted."""
        lease_ids = [self._holders.new_lease(attempt.pop.consumer) for attempt in attempts]
        entries = sorted(
            (
                Entry(partition, attempt.feed.group_id, number, partition.head)
                for number, attempt in enumerate(attempts)
                for partition in attempt.partitions
            ),
            key=lambda entry: (entry.partition.id, entry.group_id),
        )
        self._note("asked", attempts)
        budgets, probes = await self._breakers.admit(attempts, lease_ids)
        is_shared = attempts[0].feed.is_shared
        rows = await self._claim_rows(attempts, entries, lease_ids, budgets)
        self._note("leased", attempts)
        claims = [Claimed(attempt, self._reader.budget) for attempt in attempts]
        for entry, row in zip(entries, rows, strict=True):
            claim, partition = claims[entry.number], entry.partition
            claim.attempt.feed.claiming.discard(partition.id)
            self._saw_head(entry, row)
            if row["outcome"] == _GRANTED:
                grant = self._grant(claim.attempt, partition, lease_ids[entry.number], row)
                grant.is_shared = is_shared
                claim.grants.append(grant)
                self._note_grant(claim.attempt, grant, row["handed"] if is_shared else 0)
            elif row["outcome"] == _OTHER_KIND:
                claim.attempt.feed.turn(is_shared=not is_shared)
                claim.attempt.feed.offer_again(partition, first=True)
            else:
                await self._note_refusal(claim, partition, row)
        for number in probes:
            await self._note_probe(claims[number], lease_ids[number])
        return claims

    async def _note_probe(self, claim: Claimed, lease_id: uuid.UUID) -> None:
        partition_id = claim.grants[0].partition.id if claim.grants else None
        await self._breakers.note_probe(claim.attempt.feed.group_id, lease_id, partition_id)

    def _saw_head(self, entry: Entry, row: Row) -> None:
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
        self,
        attempts: list[Attempt],
        entries: list[Entry],
        lease_ids: list[uuid.UUID],
        budgets: list[int],
    ) -> list[Row]:
        is_shared, is_limited = _kind_of(attempts[0])
        options = [attempt.feed.queue.options for attempt in attempts]
        arguments: tuple[list[Any], ...] = (
            [entry.partition.id for entry in entries],
            [entry.group_id for entry in entries],
            [entry.number + 1 for entry in entries],
            lease_ids,
            [lease_ms(attempt) for attempt in attempts],
            [attempt.pop.auto_ack for attempt in attempts],
            budgets,
            [queue_options.retry_ceiling for queue_options in options],
            [queue_options.delayed_processing * 1000 for queue_options in options],
            [queue_options.window_buffer * 1000 for queue_options in options],
            [queue_options.expiry_seconds * 1000 for queue_options in options],
        )
        asked = _Asked(attempts, entries, arguments, is_shared, is_limited)
        try:
            is_plain = budgets[0] == attempts[0].pop.batch and not (is_shared or is_limited)
            if len(entries) == 1 and is_plain:
                row = await self._claim_lone(attempts[0], entries[0], lease_ids[0])
                if row is not None:
                    return [row]
            return await self._fetch(asked, _LOCK_WAIT_MS)
        except OutcomeUnknown:
            try:
                # A lease is recognised by its id when it is claimed again.
                return await self._fetch(asked, _LOCK_WAIT_MS, is_again=True)
            except Unavailable:
                self._leave_unclear(attempts, entries, lease_ids)
                raise
        except Contended:
            # Somebody holds a cursor for long: go on without it.
            return await self._fetch(asked, 0)

    async def _fetch(self, asked: _Asked, wait_ms: int, *, is_again: bool = False) -> list[Row]:
        if not asked.is_limited:
            return await asked.run(self._database, asked.arguments, wait_ms, is_again)
        async with self._database.transaction() as transaction:
            admission = await self._limits.admit(
                transaction, asked.attempts, asked.entries, asked.arguments[_BUDGETS], wait_ms
            )
            rows: list[Row] = []
            if admission.admitted:
                arguments = asked.arguments_of(admission)
                rows = await asked.run(transaction, arguments, wait_ms, is_again)
            admitted = [asked.entries[index] for index in admission.admitted]
            claimed = list(zip(admitted, rows, strict=True))
            await self._limits.charge(transaction, admission, asked.attempts, claimed)
        self._limits.hold(admission, asked.attempts)
        granted = dict(zip(admission.admitted, rows, strict=True))
        return [
            granted.get(index) or _refused_row(admission.refused[index])
            for index in range(len(asked.entries))
        ]

    async def _claim_lone(
        self, attempt: Attempt, entry: Entry, lease_id: uuid.UUID
    ) -> Record | None:
        """Claim one partition for one pop, if nothing is in the way."""
        options = attempt.feed.queue.options
        if options.delayed_processing or options.window_buffer or options.expiry_seconds:
            return None
        return await self._database.findrow(
            "claim_lone",
            entry.partition.id,
            entry.group_id,
            lease_id,
            lease_ms(attempt),
            attempt.pop.batch,
        )

    def _leave_unclear(
        self, attempts: list[Attempt], entries: list[Entry], lease_ids: list[uuid.UUID]
    ) -> None:
        """Leases that may have been given are nobody's: end them when the database is back."""
        for entry in entries:
            group, lease_id = attempts[entry.number].feed.group, lease_ids[entry.number]
            self._give_back.unclear(entry.partition, group, entry.group_id, lease_id)

    def _grant(
        self, attempt: Attempt, partition: Partition, lease_id: uuid.UUID, row: Row
    ) -> Grant:
        return Grant(
            partition,
            attempt.feed.group,
            lease_id,
            row["committed"],
            row["batch_end"],
            row["epoch"],
            row["attempt"],
            row["seen"],
            bits_from_bytes(row["acked"]),
            decode_failures(row["failures"]) if row["failures"] else {},
            row["wait_ms"],
        )

    def _note_grant(self, attempt: Attempt, grant: Grant, handed: int = 0) -> None:
        feed, partition, lease_id = attempt.feed, grant.partition, grant.lease_id
        assert lease_id is not None
        if attempt.generation != feed.generation:
            # The group was moved meanwhile. Whether before or after this grant, the next claim
            # finds out.
            feed.offer_again(partition)
        elif grant.is_shared:
            feed.note_shared_grant(partition, handed)
            self._dispatcher.set_timer(feed, partition, lease_id, grant.lease_ms)
        else:
            feed.note_grant(partition, lease_id, grant.stop)
            self._dispatcher.set_timer(feed, partition, lease_id, grant.lease_ms)

    async def _note_refusal(self, claim: Claimed, partition: Partition, row: Row) -> None:
        """Note in the feed why a partition could not be leased, and when to try it again."""
        feed, outcome = claim.attempt.feed, row["outcome"]
        if outcome == _EMPTY:
            feed.set_position(partition, row["committed"])
            # It may have been written while the claim was on its way.
            feed.offer(partition)
        elif outcome in (_HELD, _BUSY):
            self._hold_back(feed, partition, row["wait_ms"])
            if feed.is_shared and outcome == _HELD and partition.head > row["head"]:
                # More was written meanwhile, which nobody holds.
                feed.offer_again(partition)
        elif outcome == _SPENT:
            feed.offer_again(partition, first=True)
        elif outcome == _MISSING:
            feed.forget(partition.id)
            self._catalog.forget_partition(partition.id)
            self._events.group_missing(feed)
        elif outcome == _EXHAUSTED:
            await self._give_up(claim, partition, row)
        elif outcome == _PAUSED:
            self._dispatcher.group_paused(feed)
            feed.offer_again(partition, first=True)

    def _hold_back(self, feed: Feed, partition: Partition, wait_ms: int) -> None:
        feed.held[partition.id] = partition
        self._dispatcher.set_timer(feed, partition, None, wait_ms)

    async def _give_up(self, claim: Claimed, partition: Partition, row: Row) -> None:
        """Have a message set aside that nobody comes back from."""
        feed = claim.attempt.feed
        # Whoever held it has lost it, even if this server's timer has not rung yet.
        feed.leased.pop(partition.id, None)
        try:
            await self._acker.give_up(
                partition, feed.group, feed.group_id, row["committed"], row["attempt"]
            )
        except Exception as error:
            claim.error = _report(error, "a message could not be set aside")
            self._hold_back(feed, partition, _UNREADABLE_PAUSE_MS)
        else:
            feed.offer_again(partition, first=True)

    # ---- handing over ----

    def deliver(self, attempt: Attempt, grant: Grant, stored: StoredSegment) -> None:
        """Hand over what a push has leased for a pop with what it stored: at once, if there is
        nothing special about it."""
        claim = Claimed(attempt, self._reader.budget)
        claim.grants.append(grant)
        attempt.feed.claiming.discard(grant.partition.id)
        self._note_grant(attempt, grant)
        claim.add(grant, stored)
        span = None if grant.is_cut else self._span_of(attempt, grant)
        if span is None or span.hidden:
            self._background.start(self._hand_over_all([claim]))
            return
        assert grant.lease_id is not None
        self._leases.add(grant.lease_id, span)
        self._note("handed", [attempt])
        self._deliver(claim)
        attempt.pop.tell()

    async def _hand_over_all(self, claims: list[Claimed]) -> None:
        """Read what was claimed, and hand over whatever is read, until all of it is."""
        self._reader.read_cached(claims)
        waiting = claims
        while waiting:
            ready = [claim for claim in waiting if not claim.unread]
            waiting = [claim for claim in waiting if claim.unread]
            await self._hand_over(ready)
            if not waiting:
                return
            try:
                await self._reader.read_some(waiting)
            except Exception as error:
                reported = _report(error, "reading failed")
                for claim in waiting:
                    self._withdraw(claim, reported)
                return

    def _withdraw(self, claim: Claimed, error: QueenError) -> None:
        """Give everything back, and tell why."""
        pop = claim.attempt.pop
        pop.busy = False
        self._give_back.grants(claim.grants)
        pop.fail(error)
        self._dispatcher.pump(claim.attempt.feed)

    async def _hand_over(self, claims: list[Claimed]) -> None:
        leased = [claim for claim in claims if not claim.attempt.pop.auto_ack]
        for claim in leased:
            await self._finish(claim)
        at_once = [claim for claim in claims if claim.attempt.pop.auto_ack]
        if at_once:
            await self._ack_at_once(at_once)
            for claim in at_once:
                await self._finish(claim)

    async def _finish(self, claim: Claimed) -> None:
        """Answer one pop; what is wrong with one of its grants leaves the others as they are."""
        shown: list[Grant] = []
        for grant in claim.grants:
            try:
                if await self._prepare(claim.attempt, grant):
                    shown.append(grant)
            except Exception as error:
                claim.error = _report(error, "a grant could not be handed over")
                self._give_back.grants([grant])
        claim.grants = shown
        self._deliver(claim)

    async def _prepare(self, attempt: Attempt, grant: Grant) -> bool:
        """Remember which messages a lease covers; return whether there is one to show."""
        feed = attempt.feed
        if grant.start == grant.stop:
            # What did not fit is there for the next pop.
            self._give_back.grants([grant], _UNREADABLE_PAUSE_MS if grant.is_unreadable else 0)
            return False
        if grant.is_cut and grant.lease_id is not None:
            await self._shorten(feed, grant)
        span = self._span_of(attempt, grant)
        for offset in span.hidden:
            grant.skip |= 1 << (offset - grant.start)
        if grant.lease_id is not None:
            self._leases.add(grant.lease_id, span)
            if not grant.shown:
                await self._acker.pass_over(span, grant.lease_id)
        if not grant.shown:
            self._reader.release([grant])
        return bool(grant.shown)

    def _span_of(self, attempt: Attempt, grant: Grant) -> BareSpan:
        # Acks of frames name offsets, and what is acked already needs none.
        with_ids = grant.lease_id is not None and not attempt.pop.is_framed
        span = _span_of(grant, attempt.feed, with_ids=with_ids)
        span.is_shared = grant.is_shared
        return span

    async def _shorten(self, feed: Feed, grant: Grant) -> None:
        """Lease no more than was read; the rest stays for the next pop."""
        if grant.is_shared:
            await self._database.execute(
                "shorten_shared_lease",
                grant.partition.id,
                feed.group_id,
                grant.lease_id,
                grant.stop,
            )
            self._dispatcher.lease_ended(grant.partition, feed.group, None, grant.stop, 1)
            return
        await self._database.execute(
            "shorten_lease", grant.partition.id, feed.group_id, grant.lease_id, grant.stop
        )
        feed.set_position(grant.partition, grant.stop)

    def _deliver(self, claim: Claimed) -> None:
        attempt = claim.attempt
        pop = attempt.pop
        if not claim.grants:
            # There may be others that can be given.
            pop.error = claim.error or pop.error
            self._dispatcher.try_next(pop)
        elif pop.done.done():
            pop.busy = False
            self._give_back.grants(claim.grants)
        else:
            pop.busy = False
            pop.finish(claim.grants)
        self._dispatcher.pump(attempt.feed)

    # ---- autoAck ----

    async def _ack_at_once(self, claims: list[Claimed]) -> None:
        """Ack what was read for pops that want no lease. What could not be acked is not given."""
        granted = [
            (claim, grant)
            for claim in claims
            for grant in claim.grants
            # Nobody acks for a client that has gone, nor what nobody could read.
            if not claim.attempt.pop.done.done() and grant.stop > grant.start
        ]
        granted.sort(
            key=lambda pair: (pair[1].partition.id, pair[0].attempt.feed.group_id, pair[1].start)
        )
        try:
            acked = await self._ack_spans(granted, _LOCK_WAIT_MS)
        except Exception as error:
            _report(error, "an autoAck failed")
            acked = [await self._ack_alone(*pair) for pair in granted]
        for (claim, grant), is_acked in zip(granted, acked, strict=True):
            if is_acked:
                feed = claim.attempt.feed
                feed.lease_ended(grant.partition, grant.lease_id, grant.stop)
                grant.lease_id = None
            else:
                self._give_back.grants([grant])
                claim.grants.remove(grant)

    async def _ack_alone(self, claim: Claimed, grant: Grant) -> bool:
        """Ack one grant, and find out whether an ack that got no answer was done."""
        try:
            if (await self._ack_spans([(claim, grant)], None))[0]:
                return True
            key = [grant.partition.id], [claim.attempt.feed.group_id]
            rows = await self._database.fetch("cursor_spans", *key)
            assert grant.lease_id is not None
            return any(acked_up_to(row["receipts"], grant.lease_id) is not None for row in rows)
        except Exception as error:
            claim.error = _report(error, "an autoAck failed")
            return False

    async def _ack_spans(
        self, granted: list[tuple[Claimed, Grant]], wait_ms: int | None
    ) -> list[bool]:
        if not granted:
            return []
        if granted[0][1].is_shared:
            return await self._ack_shared_spans(granted, wait_ms)
        rows = await self._database.fetch(
            "ack_spans",
            [grant.partition.id for _, grant in granted],
            [claim.attempt.feed.group_id for claim, _ in granted],
            [grant.lease_id for _, grant in granted],
            [grant.stop for _, grant in granted],
            [True] * len(granted),
            wait_ms,
        )
        return [row["done"] for row in rows]

    async def _ack_shared_spans(
        self, granted: list[tuple[Claimed, Grant]], wait_ms: int | None
    ) -> list[bool]:
        rows = await self._database.fetch(
            "ack_shared",
            [grant.partition.id for _, grant in granted],
            [claim.attempt.feed.group_id for claim, _ in granted],
            [grant.lease_id for _, grant in granted],
            [grant.start for _, grant in granted],
            [grant.stop for _, grant in granted],
            True,
            wait_ms,
        )
        for claim, grant in granted:
            if grant.is_cut:
                # What was not read is free again.
                self._dispatcher.lease_ended(
                    grant.partition, claim.attempt.feed.group, None, grant.stop, 1
                )
        return [bool(row["done"]) for row in rows]


def _span_of(grant: Grant, feed: Feed, *, with_ids: bool) -> BareSpan:
    """Return what a lease covers of segments that are at hand."""
    builder = SpanBuilder(grant.start, grant.stop, feed.group, with_ids=with_ids)
    for stored in grant.stored:
        builder.add(stored)
    make = builder.span if with_ids else builder.bare_span
    return make(grant.partition, feed.group_id)


def _owner_of(attempt: Attempt) -> tuple[str, str]:
    """By what the order of an attempt is kept, and its namespace."""
    queue = attempt.feed.queue
    return queue.name, queue.namespace


def _kind_of(attempt: Attempt) -> tuple[bool, bool]:
    """Whether an attempt is for a shared group, and whether there are limits for it."""
    return attempt.feed.is_shared, attempt.feed.queue.options.is_limited


def _refused_row(refusal: Refusal) -> Row:
    """Return what a claim would say of a partition that limits hold back."""
    if refusal.wait_ms is None:
        return {"outcome": _SPENT}
    return {"outcome": _BUSY, "wait_ms": refusal.wait_ms}


def lease_ms(attempt: Attempt) -> int:
    """Return how long what an attempt claims is leased."""
    wanted_ms = attempt.feed.queue.options.lease_time * 1000
    return min(wanted_ms, _AUTO_LEASE_MS) if attempt.pop.auto_ack else wanted_ms


def _report(error: Exception, log_text: str) -> QueenError:
    """Log an error that is not ours; return what a client is told of it."""
    if isinstance(error, QueenError):
        return error
    _log.error(log_text, exc_info=error)
    return QueenError()
