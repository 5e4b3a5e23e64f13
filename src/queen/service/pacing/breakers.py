"""The circuit breakers of groups, in the database: right on any number of servers.

Acks of queues with the option `breaker` lock the breaker of their group before its cursors, and
write it back with them. Claims of such queues ask first whether the breaker is open. They do not
lock it: what is leased in the moment in which it opens is treated as if it had been leased before.
Of an open breaker one claim at a time gets the probe, and that is a single message.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace

from queen.core.cursor import bits_from_bytes, bits_to_bytes
from queen.core.pacing.group_breaker import GroupBreaker, Turn
from queen.service.acks.ack_batch import AckBatch
from queen.service.consume.dispatch import Attempt, Dispatcher
from queen.service.events import Events
from queen.storage.database import Database, Transaction

_log = logging.getLogger(__name__)

# How often a group is looked at whose breaker is open.
_LONGEST_PAUSE_MS = 1000


class LockedBreakers:
    """The breakers that the acks of a transaction are about, by group."""

    def __init__(self, breakers: Mapping[int, GroupBreaker]) -> None:
        self._before = breakers
        self._after: dict[int, GroupBreaker] = {}

    def begin(self, ack_batches: Iterable[AckBatch]) -> None:
        """Let acks be judged, as if none had been yet."""
        self._after = {group_id: replace(breaker) for group_id, breaker in self._before.items()}
        for batch in ack_batches:
            batch.breaker, batch.turn = self._after.get(batch.group_id), None

    async def store(self, transaction: Transaction) -> None:
        if not self._after:
            return
        rows = list(self._after.values())
        pauses = (Turn.OPENED, Turn.PROBE_FAILED)
        await transaction.execute(
            "store_breakers",
            list(self._after),
            [bits_to_bytes(row.outcomes) for row in rows],
            [row.counted for row in rows],
            [row.is_open for row in rows],
            [row.probe_lease for row in rows],
            [row.rule.pause_ms if row.turn in pauses else None for row in rows],
        )


class Breakers:
    def __init__(self, database: Database, dispatcher: Dispatcher, events: Events) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._events = events

    # ---- acks ----

    async def lock(
        self, transaction: Transaction, ack_batches: Iterable[AckBatch]
    ) -> LockedBreakers:
        """Return the breakers of groups that have one, locked until the transaction ends."""
        rules = {
            batch.group_id: batch.partition.queue.options.breaker_rule
            for batch in ack_batches
            if batch.partition.queue.options.breaker
        }
        if not rules:
            return LockedBreakers({})
        rows = await transaction.fetch("lock_breakers", list(rules))
        if len(rows) < len(rules):
            await transaction.execute("ensure_breakers", sorted(rules))
            rows = await transaction.fetch("lock_breakers", list(rules))
        breakers = {
            row["group_id"]: GroupBreaker(
                rules[row["group_id"]],
                bits_from_bytes(row["outcomes"]) & (1 << rules[row["group_id"]].outcomes) - 1,
                min(row["counted"], rules[row["group_id"]].outcomes),
                row["is_open"],
                # asyncpg has its own UUID class; ours compares equal to it, but not the other way.
                uuid.UUID(bytes=row["probe_lease"].bytes) if row["probe_lease"] else None,
            )
            for row in rows
        }
        return LockedBreakers(breakers)

    def tell(self, batch: AckBatch) -> None:
        """A batch of acks that turned a breaker is committed."""
        turn, queue = batch.turn, batch.partition.queue
        whose = f"group {batch.group!r} of queue {queue.name!r}"
        rule = queue.options.breaker_rule
        if turn is Turn.OPENED:
            _log.warning(
                "the breaker of %s has opened: at least %d %% of its last %d outcomes were "
                "failures; one message is tried every %.1f s",
                whose,
                rule.share,
                rule.outcomes,
                rule.pause_ms / 1000,
            )
        elif turn is Turn.CLOSED:
            _log.warning("the breaker of %s has closed: a message succeeded", whose)
            self._events.group_resumed(queue.id, batch.group_id)

    # ---- claims ----

    async def admit(
        self, attempts: list[Attempt], lease_ids: list[uuid.UUID]
    ) -> tuple[list[int], list[int]]:
        """Return how many messages each attempt may get, and which attempts are probes."""
        budgets = [attempt.pop.batch for attempt in attempts]
        guarded = {a.feed.group_id for a in attempts if a.feed.queue.options.breaker}
        if not guarded:
            return budgets, []
        rows = await self._database.fetch("open_breakers", list(guarded))
        waits_ms = {row["group_id"]: row["wait_ms"] for row in rows}
        probes: list[int] = []
        for number, attempt in enumerate(attempts):
            wait_ms = waits_ms.get(attempt.feed.group_id)
            if wait_ms is None:
                continue
            budgets[number] = 0
            if wait_ms == 0 and await self._take_probe(attempt, lease_ids[number]):
                budgets[number] = 1
                probes.append(number)
                waits_ms[attempt.feed.group_id] = _LONGEST_PAUSE_MS
            else:
                self._dispatcher.hold_feed(attempt.feed, min(wait_ms or 1000, _LONGEST_PAUSE_MS))
        return budgets, probes

    async def _take_probe(self, attempt: Attempt, lease_id: uuid.UUID) -> bool:
        if attempt.pop.auto_ack:
            # Nobody would say what became of it.
            return False
        taken = await self._database.findval("take_probe", attempt.feed.group_id, lease_id)
        return taken is not None

    async def note_probe(
        self, group_id: int, lease_id: uuid.UUID, partition_id: int | None
    ) -> None:
        """A probe was leased in a partition or (None) there was nothing to lease."""
        await self._database.execute("hold_probe", group_id, lease_id, partition_id)
