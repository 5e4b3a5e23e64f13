"""Limits: how much groups are given, on any number of servers.

Claims for queues with a limit are a transaction of their own kind: lock the buckets of the groups,
see what they may be given, claim no more than that, and take the tokens of what was granted. The
lock lets one server at a time claim for such a group, so no limit is ever passed. What is on leases
is not counted up and down: the cursors and the spans say it.

What the groups of a queue may be given together is a bucket of the queue, locked before theirs.

Where a partition has a limit of its own, a claim takes one partition: how much several of them
would bring is not known before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from queen.core.cursor import bits_from_bytes
from queen.core.pacing.limits import GroupLimits, Rate, whole
from queen.service.catalog import Partition
from queen.service.consume.dispatch import Attempt, Dispatcher
from queen.service.consume.feeds import Feed
from queen.storage.database import Record, Transaction

_GRANTED = 0
# Tokens are waited for so long at least, so that a high rate is not claimed one by one; what is on
# leases, and long waits, are looked at again after so long at most.
_SHORTEST_WAIT_MS = 20
_LONGEST_WAIT_MS = 1000

# Group and partition.
Place = tuple[int, int]
# What a claim says of a candidate.
Row = Record | dict[str, Any]


class Candidate(Protocol):
    """A partition that an attempt wants to claim."""

    @property
    def partition(self) -> Partition: ...
    @property
    def group_id(self) -> int: ...
    @property
    def number(self) -> int: ...


class Refusal(NamedTuple):
    """Why a candidate is not claimed: None says that others come first."""

    wait_ms: int | None


@dataclass(slots=True)
class Room:
    """What a group, or a partition of it, may still be given."""

    # As of now, before anything was granted; None where there is no such limit.
    tokens: float | None = None
    free: int | None = None
    # How long until there is a token.
    wait_ms: int = 0
    # What attempts of this flush may get of it.
    reserved: int = 0

    @property
    def is_full(self) -> bool:
        """Whether as much is on leases as may be."""
        return self.free is not None and self.free <= self.reserved

    def cut(self, budget: int) -> int:
        """Return how much of a budget there is room for."""
        if self.tokens is not None:
            budget = min(budget, whole(self.tokens) - self.reserved)
        if self.free is not None:
            budget = min(budget, self.free - self.reserved)
        return max(budget, 0)


@dataclass(slots=True)
class Admitted:
    """Which candidates may be claimed, and how much each attempt may get."""

    budgets: list[int]
    # When the bucket of each queue and group was looked at: what is stored of it is as of then.
    queue_times: dict[int, datetime] = field(default_factory=dict)
    times: dict[int, datetime] = field(default_factory=dict)
    admitted: list[int] = field(default_factory=list)
    refused: dict[int, Refusal] = field(default_factory=dict)
    queues: dict[int, Room] = field(default_factory=dict)
    groups: dict[int, Room] = field(default_factory=dict)
    partitions: dict[Place, Room] = field(default_factory=dict)

    def rooms(self, feed: Feed) -> list[Room]:
        """Return what a group shares with others, and what it has for itself."""
        rooms = self.queues.get(feed.queue.id), self.groups.get(feed.group_id)
        return [room for room in rooms if room is not None]

    def take_held(self, queue_id: int | None, group_id: int, partition_id: int, held: int) -> None:
        """A group has so much of a partition on leases: there is less room for more."""
        place = group_id, partition_id
        shared = None if queue_id is None else self.queues.get(queue_id)
        for room in (shared, self.groups.get(group_id), self.partitions.get(place)):
            if room is not None and room.free is not None:
                room.free -= held


class ClaimLimits:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def admit(
        self,
        transaction: Transaction,
        attempts: Sequence[Attempt],
        candidates: Sequence[Candidate],
        budgets: Sequence[int],
        wait_ms: int,
    ) -> Admitted:
        """Lock the buckets of queues and groups; say what may be claimed for them. A bucket that
        somebody holds is waited for so long; with 0, its group gets nothing now."""
        limits = {attempt.feed.group_id: _limits_of(attempt) for attempt in attempts}
        together = {
            attempt.feed.queue.id: limits[attempt.feed.group_id]
            for attempt in attempts
            if limits[attempt.feed.group_id].has_queue_limits
        }
        admission = Admitted(list(budgets))
        if wait_ms:
            await transaction.execute("limit_lock_wait", str(wait_ms))
        if together:
            await self._lock_queues(transaction, admission, together, wait_ms)
        await self._lock_groups(transaction, admission, limits, wait_ms)
        await self._read_partitions(transaction, admission, limits, candidates)
        await self._count_held(transaction, admission, limits, together)
        by_attempt: dict[int, list[int]] = {}
        for index, candidate in enumerate(candidates):
            by_attempt.setdefault(candidate.number, []).append(index)
        for number, indexes in by_attempt.items():
            feed = attempts[number].feed
            rooms = admission.rooms(feed)
            _admit_attempt(admission, number, indexes, candidates, limits[feed.group_id], rooms)
        admission.admitted.sort()
        return admission

    async def _lock_queues(
        self,
        transaction: Transaction,
        admission: Admitted,
        limits: Mapping[int, GroupLimits],
        wait_ms: int,
    ) -> None:
        lock = "lock_paced_queues" if wait_ms else "lock_free_paced_queues"
        rows = await transaction.fetch(lock, list(limits))
        if len(rows) < len(limits):
            await transaction.execute("ensure_paced_queues", list(limits))
            rows = await transaction.fetch(lock, list(limits))
        if not wait_ms:
            admission.queues.update((queue_id, Room(tokens=0.0)) for queue_id in limits)
        for row in rows:
            queue_id = row["queue_id"]
            admission.queue_times[queue_id] = row["now"]
            admission.queues[queue_id] = _room_of(row, limits[queue_id].queue_rate)

    async def _lock_groups(
        self,
        transaction: Transaction,
        admission: Admitted,
        limits: Mapping[int, GroupLimits],
        wait_ms: int,
    ) -> None:
        lock = "lock_paced_groups" if wait_ms else "lock_free_paced_groups"
        rows = await transaction.fetch(lock, list(limits))
        if len(rows) < len(limits):
            await transaction.execute("ensure_paced_groups", list(limits))
            rows = await transaction.fetch(lock, list(limits))
        if not wait_ms:
            admission.groups.update((group_id, Room(tokens=0.0)) for group_id in limits)
        for row in rows:
            group_id = row["group_id"]
            admission.times[group_id] = row["now"]
            admission.groups[group_id] = _room_of(row, limits[group_id].rate)

    async def _read_partitions(
        self,
        transaction: Transaction,
        admission: Admitted,
        limits: Mapping[int, GroupLimits],
        candidates: Sequence[Candidate],
    ) -> None:
        places = [
            (candidate.group_id, candidate.partition.id)
            for candidate in candidates
            if limits[candidate.group_id].has_partition_limits
        ]
        if not places:
            return
        rows = await transaction.fetch(
            "read_paced_partitions", [place[0] for place in places], [place[1] for place in places]
        )
        stored = {(row["group_id"], row["partition_id"]): row for row in rows}
        for place in places:
            room, rate, row = Room(), limits[place[0]].partition_rate, stored.get(place)
            if rate is not None:
                now = admission.times.get(place[0])
                elapsed_ms = _ms_between(row["filled_at"], now) if row and now else 0.0
                room.tokens = rate.tokens(row["tokens"] if row else None, elapsed_ms)
                room.wait_ms = rate.wait_ms(room.tokens)
            room.free = limits[place[0]].partition_in_flight
            admission.partitions[place] = room

    async def _count_held(
        self,
        transaction: Transaction,
        admission: Admitted,
        limits: Mapping[int, GroupLimits],
        together: Mapping[int, GroupLimits],
    ) -> None:
        """Take what is on leases off the room that there is."""
        for group_id, room in admission.groups.items():
            room.free = limits[group_id].in_flight
        for queue_id, room in admission.queues.items():
            room.free = together[queue_id].queue_in_flight
        counted = {group_id for group_id, each in limits.items() if each.counts_held}
        queue_of = await self._queues_of(transaction, together)
        if not counted and not queue_of:
            return
        rows = await transaction.fetch("messages_held", list(counted | queue_of.keys()))
        for row in rows:
            group_id = row["group_id"]
            admission.take_held(queue_of.get(group_id), group_id, row["partition_id"], row["held"])
        gone = [row for row in rows if not row["held"]]
        if gone:
            await transaction.execute(
                "let_go_partitions",
                [row["group_id"] for row in gone],
                [row["partition_id"] for row in gone],
            )

    async def _queues_of(
        self, transaction: Transaction, together: Mapping[int, GroupLimits]
    ) -> dict[int, int]:
        """Return the groups of queues that say how much they may hold together, and the queues."""
        queues = [queue_id for queue_id, each in together.items() if each.queue_in_flight]
        if not queues:
            return {}
        rows = await transaction.fetch("groups_of_queues", queues)
        return {row["id"]: row["queue_id"] for row in rows}

    async def charge(
        self,
        transaction: Transaction,
        admission: Admitted,
        attempts: Sequence[Attempt],
        claimed: Sequence[tuple[Candidate, Row]],
    ) -> None:
        """Take the tokens of what was granted, and remember where it is."""
        granted = [pair for pair in claimed if pair[1]["outcome"] == _GRANTED]
        if not granted:
            return
        limits = {attempt.feed.group_id: _limits_of(attempt) for attempt in attempts}
        taken: dict[int, int] = {}
        places: dict[Place, int] = {}
        for candidate, row in granted:
            messages, group_id = _messages_in(row), candidate.group_id
            taken[group_id] = taken.get(group_id, 0) + messages
            if limits[group_id].counts_held or limits[group_id].has_partition_limits:
                place = group_id, candidate.partition.id
                places[place] = places.get(place, 0) + messages
        await _charge_queues(transaction, admission, attempts, taken)
        await transaction.execute(
            "store_paced_groups",
            list(taken),
            [_left(admission.groups[group_id], count) for group_id, count in taken.items()],
            [admission.times[group_id] for group_id in taken],
        )
        if places:
            await transaction.execute(
                "store_paced_partitions",
                [place[0] for place in places],
                [place[1] for place in places],
                [
                    _left(admission.partitions.get(place, Room()), count)
                    for place, count in places.items()
                ],
                [admission.times[place[0]] for place in places],
            )

    def hold(self, admission: Admitted, attempts: Sequence[Attempt]) -> None:
        """Leave groups alone until they may be given something."""
        for number, attempt in enumerate(attempts):
            closed = [room for room in admission.rooms(attempt.feed) if not room.cut(1)]
            if admission.budgets[number] or not closed:
                continue
            is_full = any(room.is_full for room in closed)
            attempt.feed.waits_for_room = is_full
            wait_ms = max(room.wait_ms for room in closed)
            self._dispatcher.hold_feed(
                attempt.feed, _LONGEST_WAIT_MS if is_full else _bounded(wait_ms)
            )


async def _charge_queues(
    transaction: Transaction,
    admission: Admitted,
    attempts: Sequence[Attempt],
    taken: Mapping[int, int],
) -> None:
    """Take the tokens of what groups were granted from the buckets of their queues."""
    queue_of = {attempt.feed.group_id: attempt.feed.queue.id for attempt in attempts}
    totals: dict[int, int] = {}
    for group_id, messages in taken.items():
        queue_id = queue_of[group_id]
        if queue_id in admission.queue_times:
            totals[queue_id] = totals.get(queue_id, 0) + messages
    if totals:
        await transaction.execute(
            "store_paced_queues",
            list(totals),
            [_left(admission.queues[queue_id], count) for queue_id, count in totals.items()],
            [admission.queue_times[queue_id] for queue_id in totals],
        )


def _room_of(row: Record, rate: Rate | None) -> Room:
    """Return what is in a bucket that was locked."""
    room = Room()
    if rate is not None:
        room.tokens = rate.tokens(row["tokens"], _ms_between(row["filled_at"], row["now"]))
        room.wait_ms = rate.wait_ms(room.tokens)
    return room


def _limits_of(attempt: Attempt) -> GroupLimits:
    return attempt.feed.queue.options.limits


def _admit_attempt(
    admission: Admitted,
    number: int,
    indexes: list[int],
    candidates: Sequence[Candidate],
    limits: GroupLimits,
    rooms: Sequence[Room],
) -> None:
    """Say how much an attempt may get, and of which of its candidates."""
    budget = admission.budgets[number]
    # A group that is gone meanwhile is claimed for: so it is found out.
    for room in rooms:
        budget = room.cut(budget)
    admitted = indexes
    if budget and limits.has_partition_limits:
        admitted, budget = _admit_first(admission, indexes, candidates, budget)
    admission.budgets[number] = budget
    if budget:
        admission.admitted += admitted
    for index in indexes:
        if not budget or index not in admitted:
            admission.refused.setdefault(index, Refusal(None))
    for room in rooms:
        room.reserved += budget


def _admit_first(
    admission: Admitted, indexes: list[int], candidates: Sequence[Candidate], budget: int
) -> tuple[list[int], int]:
    """Return the first candidate whose partition may give something, and how much that is."""
    for index in indexes:
        room = admission.partitions[candidates[index].group_id, candidates[index].partition.id]
        allowed = room.cut(budget)
        if allowed:
            room.reserved += allowed
            return [index], allowed
        admission.refused[index] = Refusal(_bounded(room.wait_ms or _LONGEST_WAIT_MS))
    return [], 0


def _ms_between(then: datetime, now: datetime) -> float:
    return (now - then) / timedelta(milliseconds=1)


def _bounded(wait_ms: int) -> int:
    return min(max(wait_ms, _SHORTEST_WAIT_MS), _LONGEST_WAIT_MS)


def _left(room: Room, messages: int) -> float | None:
    return None if room.tokens is None else room.tokens - messages


def _messages_in(row: Row) -> int:
    """Return how many messages were granted: those that are done already come to nobody."""
    count: int = row["batch_end"] - row["committed"]
    done = bits_from_bytes(row["acked"]) & (1 << count) - 1
    return count - done.bit_count()
