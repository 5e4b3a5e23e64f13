"""Windows as work: lease, ack, nack, renew, seek, for each consumer group.

A lease names its group and its window and carries a secret, so whoever shows it need not be
looked up, on any server. Every decision is one statement in the database that compares the
lease and its time; what is decided here is only whom to wake.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections import Counter
from datetime import datetime
from typing import NamedTuple

import msgspec

from queen.core.streams import StreamDefinition
from queen.errors import BadRequest, LeaseLost, NotFound
from queen.service.events import Events
from queen.service.log.append import Append
from queen.service.outbox.scheduled import Scheduled
from queen.service.scope import Viewer
from queen.service.signals import Signals
from queen.service.sinks.publish import Publisher
from queen.service.sinks.sinks import Batch
from queen.service.stats.flows import Flows
from queen.service.streams.content import WindowSpan
from queen.service.streams.definitions import Stream
from queen.service.streams.ttl_cache import TtlCache
from queen.service.transactions.transact import Transactor
from queen.storage.database import Abandoned, Database, Record, Transaction

# A wake-up that was lost costs this much.
_NET_S = 1.0

_LEASED, _NOTHING, _EXHAUSTED, _PAUSED, _NO_GROUP = range(5)
_definition = msgspec.json.Decoder(StreamDefinition)

_STALE = "Invalid or expired lease"


class Lease(NamedTuple):
    """What a lease says of itself."""

    id: uuid.UUID
    group_id: int
    window_id: int


def parse_window_lease(text: str) -> Lease | None:
    """Return the lease of a text, or None for one that was never given."""
    try:
        lease_id = uuid.UUID(text)
    except ValueError:
        return None
    digits = lease_id.hex
    group_id, window_id = int(digits[:8], 16), int(digits[8:20], 16)
    return Lease(lease_id, group_id, window_id) if group_id < 2**31 else None


def window_lease(text: str) -> Lease:
    """Return the lease of a text; raises when it is none."""
    if not text:
        raise BadRequest("Missing leaseId")
    lease = parse_window_lease(text)
    if lease is None:
        raise LeaseLost(_STALE)
    return lease


class LeasedWindow(NamedTuple):
    """A window, and the lease that a member of a group has on it."""

    stream: Stream
    group: str
    lease: Lease
    lease_until: datetime
    attempt: int
    key: str
    starts_at: datetime
    ends_at: datetime
    spans: list[WindowSpan]
    messages: int
    bytes: int


class Owner(NamedTuple):
    """Stream and group that a lease belongs to."""

    stream_id: int
    stream: str
    namespace: str
    group: str
    definition: StreamDefinition


class _AlreadyDone(Abandoned):
    """Leaves a transaction whose window was settled before, so that nothing is done twice."""


class Work:
    def __init__(
        self,
        database: Database,
        transactor: Transactor,
        publisher: Publisher,
        signals: Signals,
        flows: Flows,
        events: Events,
    ) -> None:
        self._database = database
        self._transactor = transactor
        self._publisher = publisher
        self._signals = signals
        self._flows = flows
        events.windows_planned.subscribe(self.look)
        events.windows_elsewhere.subscribe(self.look)
        # Who waits for windows of a stream, in order of arrival, and in which group.
        self._waiting: dict[int, dict[asyncio.Event, int]] = {}
        self._closed = False
        # Ids of groups, and whose they are, for as long as they are surely true.
        self._groups: TtlCache[tuple[int, str], int] = TtlCache()
        self._owners: TtlCache[int, Owner] = TtlCache()
        # For whoever watches: windows that were settled here, by outcome.
        self.settled: Counter[str] = Counter()

    # ---- waking ----

    def look(self, stream_id: int) -> None:
        """Windows of a stream may be ready: all who wait look again."""
        for event in self._waiting.get(stream_id, ()):
            event.set()

    def look_at_all(self) -> None:
        """Windows of any stream may be ready."""
        for stream_id in self._waiting:
            self.look(stream_id)

    def _look_everywhere(self, stream_id: int) -> None:
        self.look(stream_id)
        self._signals.windows_planned(stream_id)

    def _let_one_look(self, stream_id: int, group_id: int) -> None:
        """One more window of a group may be ready: one of it is enough, here or elsewhere."""
        for event, waits_for in self._waiting.get(stream_id, {}).items():
            if waits_for == group_id and not event.is_set():
                event.set()
                return
        self._signals.windows_planned(stream_id)

    def close(self) -> None:
        """Answer everybody who waits: the server ends."""
        self._closed = True
        self.look_at_all()

    # ---- lease ----

    async def group(self, stream: Stream, name: str, starts_at: datetime | None) -> int:
        """Return the id of a group; a new one begins at an instant, or with the first message."""
        group_id = await self._database.fetchval("open_stream_group", stream.id, name, starts_at)
        if group_id is None:
            raise NotFound(f"Stream {stream.name!r} not found")
        self._groups.put((stream.id, name), int(group_id))
        return int(group_id)

    async def recent_group(self, stream: Stream, name: str, starts_at: datetime | None) -> int:
        """Return the id that a group has, or had a moment ago."""
        group_id = self._groups.get((stream.id, name))
        return await self.group(stream, name, starts_at) if group_id is None else group_id

    def forget_group(self, stream: Stream, name: str) -> None:
        """A group was deleted: who comes by its name afterwards is a new one."""
        self._groups.forget((stream.id, name))

    async def find_group(self, stream: Stream, name: str) -> int:
        group_id = await self._database.findval("stream_group", stream.id, name)
        if group_id is None:
            raise NotFound("Consumer group not found")
        return int(group_id)

    async def find_leased(self, viewer: Viewer, text: str) -> Record:
        """Return the window of a lease that lives and is the viewer's."""
        lease = window_lease(text)
        window = await self._database.findrow(
            "leased_window", lease.group_id, lease.window_id, lease.id
        )
        if window is None or not viewer.sees(window["namespace"]):
            raise LeaseLost(_STALE)
        return window

    async def poll(
        self, stream: Stream, group: str, group_id: int, consumer: str, timeout_s: float
    ) -> LeasedWindow | None:
        """Lease a window; wait for one that long."""
        deadline = time.monotonic() + timeout_s
        event = asyncio.Event()
        self._waiting.setdefault(stream.id, {})[event] = group_id
        try:
            while not self._closed:
                event.clear()
                window, pause_s = await self._claim(stream, group, group_id, consumer)
                left_s = deadline - time.monotonic()
                if window is not None or left_s <= 0:
                    return window
                await _wait(event, min(pause_s, left_s))
            return None
        finally:
            waiting = self._waiting[stream.id]
            del waiting[event]
            if not waiting:
                del self._waiting[stream.id]
            if event.is_set() and not self._closed:
                # Whoever goes with what it was told unread leaves it to the next.
                self._let_one_look(stream.id, group_id)

    async def _claim(
        self, stream: Stream, group: str, group_id: int, consumer: str
    ) -> tuple[LeasedWindow | None, float]:
        """Return a window, or how long to wait before another look."""
        definition = stream.definition
        while True:
            row = await self._database.fetchrow(
                "claim_window",
                group_id,
                secrets.token_hex(6),
                consumer,
                definition.window_lease_timeout_ms,
                definition.retry_limit,
            )
            if row["outcome"] == _NO_GROUP:
                self._groups.forget((stream.id, group))
                raise NotFound("The stream or its group was deleted")
            if row["outcome"] == _EXHAUSTED:
                await self._bury(stream, group_id, row["window_id"])
                continue
            if row["outcome"] == _LEASED:
                return _leased_window(stream, group, group_id, row), 0.0
            wait_ms = row["wait_ms"]
            return None, _NET_S if wait_ms is None else min(wait_ms / 1000, _NET_S)

    async def _bury(self, stream: Stream, group_id: int, window_id: int) -> None:
        """Set a window aside whose consumers never came back."""
        definition = stream.definition
        outcome = await self._database.fetchval(
            "settle_window",
            group_id,
            window_id,
            None,
            False,
            None,
            definition.retry_limit,
            definition.retry_delay_ms,
        )
        if outcome == "dead":
            self.settled[outcome] += 1
        self._look_everywhere(stream.id)

    async def give_back(self, window: LeasedWindow) -> None:
        """Take back a window that its client did not wait for."""
        lease = window.lease
        await self._database.execute("return_window", lease.group_id, lease.window_id, lease.id)
        self._look_everywhere(window.stream.id)

    # ---- settle ----

    async def owner(self, lease: Lease) -> Owner:
        """Return whose lease it is; a lease of a group that is gone is lost."""
        owner = self._owners.get(lease.group_id)
        if owner is not None:
            return owner
        row = await self._database.findrow("stream_of_group", lease.group_id)
        if row is None:
            raise LeaseLost
        owner = Owner(
            row["id"],
            row["name"],
            row["namespace"],
            row["group_name"],
            _definition.decode(row["definition"]),
        )
        self._owners.put(lease.group_id, owner)
        return owner

    async def settle(
        self,
        owner: Owner,
        lease: Lease,
        *,
        success: bool,
        error: str | None,
        appends: list[Append],
        scheduled: list[Scheduled],
        batch: Batch | None = None,
        give_up: bool = False,
    ) -> bool:
        """Ack or nack a window, with what is pushed or staged, or raise and change nothing.

        Returns false when the same lease had settled the window before.
        """
        definition = owner.definition
        # It was tried once at least, which is more than no retries allow.
        limits = 0 if give_up else definition.retry_limit, definition.retry_delay_ms
        if batch is not None:
            batch = batch._replace(origin=("stream", owner.stream_id, owner.group))
        decision = (*lease[1:], lease.id, success, error, *limits)

        outcome = ""

        async def decide(transaction: Transaction) -> None:
            nonlocal outcome
            outcome = _check_outcome(await transaction.fetchval("settle_window", *decision))

        try:
            if appends or scheduled:
                await self._transactor.run(appends, scheduled, [], [], decide)
                self._flows.count_pushed("stream", owner.stream_id, owner.group, appends)
            elif batch is None or not (await self._publisher.publish(batch, decide)).is_new:
                # A batch that is published already was so with this ack, or without any.
                outcome = _check_outcome(await self._database.fetchval("settle_window", *decision))
        except _AlreadyDone:
            return False
        self.settled[outcome] += 1
        self._let_one_look(owner.stream_id, lease.group_id)
        return True

    async def release(self, owner: Owner, lease: Lease) -> None:
        """Give a window back without fault: it comes again at once and nothing is counted."""
        key = lease.group_id, lease.window_id, lease.id
        if not await self._database.findval("release_window", *key):
            raise LeaseLost(_STALE)
        self._look_everywhere(owner.stream_id)

    async def renew(self, lease: Lease, extend_ms: int) -> datetime | None:
        """Let a live lease end so long from now; None when it is not one."""
        until: datetime | None = await self._database.findval(
            "renew_window", lease.group_id, lease.window_id, lease.id, extend_ms
        )
        return until

    async def retry_dead(
        self,
        stream: Stream,
        group_id: int,
        key: str | None,
        starts_at: datetime | None,
        ends_at: datetime | None,
        number: int | None,
    ) -> int:
        """Put dead windows of a group back to work: one, or without a key all; return how many."""
        async with self._database.transaction() as transaction:
            await transaction.execute("hold_retention_of_group", group_id)
            await transaction.execute("lock_stream_group", group_id)
            retried: int = await transaction.fetchval(
                "retry_dead_windows", group_id, key, starts_at, ends_at, number
            )
            await transaction.execute("balance_group", group_id, key)
        self._look_everywhere(stream.id)
        return retried

    async def seek(self, stream: Stream, group_id: int, at: datetime) -> None:
        """Make the window that contains an instant the next one; leases end."""
        if not await self._database.fetchval("seek_stream", group_id, at):
            raise NotFound("Consumer group not found")
        self._look_everywhere(stream.id)


def _check_outcome(outcome: str) -> str:
    if outcome == "lost":
        raise LeaseLost(_STALE)
    if outcome == "already":
        raise _AlreadyDone
    return outcome


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(max(seconds, 0.001)):
            await event.wait()
    except TimeoutError:
        pass


def _leased_window(stream: Stream, group: str, group_id: int, row: Record) -> LeasedWindow:
    return LeasedWindow(
        stream,
        group,
        Lease(row["lease_id"], group_id, row["window_id"]),
        row["lease_until"],
        row["attempt"],
        row["key"],
        row["starts_at"],
        row["ends_at"],
        spans_of(row),
        row["messages"],
        row["bytes"],
    )


def spans_of(row: Record) -> list[WindowSpan]:
    """Return the ranges of a window's row."""
    columns = row["partitions"], row["from_offsets"], row["to_offsets"]
    return [WindowSpan(*span) for span in zip(*columns, strict=True)]
