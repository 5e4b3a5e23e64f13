"""Retention: what is removed, when, and what never is.

    retentionSeconds           older messages go, read or not
    completedRetentionSeconds  older messages go that every living group has done
    maxWaitTimeSeconds, ttl    older messages are of no use to anybody: pops pass over them
                               at once, and this removes them later

A group is alive as long as somebody has used it lately; one that was abandoned does not hold
the clean-up back for ever. Whole segments go, the oldest first, a bounded number at a time,
found by the index on time: a queue with 100,000 partitions costs what its old segments cost.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from queen.core.options import QueueOptions
from queen.storage.database import Record, Transaction

_log = logging.getLogger(__name__)
_options = msgspec.json.Decoder(QueueOptions)

# Whoever must not work beside it takes the right to run it.
JOB = "retention"
CLEANUP_INTERVAL_S = 60.0
_REST_S = 60.0
# What one round looks at: some tens of milliseconds of work under the locks it takes.
_SEGMENTS = 1000
_PARTITIONS = 2000
_DAY_S = 24 * 3600
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


class Rule(NamedTuple):
    """Remove what is older than an age."""

    kind: str
    age_s: int
    # Only what living groups have done.
    done_only: bool = False


def rules_of(options: QueueOptions) -> list[Rule]:
    """Return what a queue wants removed."""
    rules = [
        Rule("ttl", options.ttl),
        Rule("max_wait_time_eviction", options.max_wait_time_seconds),
    ]
    if options.retention_enabled:
        rules.append(Rule("retention", options.retention_seconds))
        rules.append(Rule("completed_retention", options.completed_retention_seconds, True))
    return [rule for rule in rules if rule.age_s > 0]


def _rules_of_row(row: Record) -> list[Rule]:
    """Return what a stored queue wants removed; nothing of one that this server cannot read."""
    try:
        return rules_of(_options.decode(row["options"]))
    except msgspec.DecodeError as error:
        _log.warning("queue %r is not cleaned up, its options: %s", row["name"], error)
        return []


class Retention:
    def __init__(self, abandoned_days: int, idle_partition_days: int) -> None:
        self._abandoned_s = abandoned_days * _DAY_S
        self._idle_s = idle_partition_days * _DAY_S
        # What is left to do before the queues are asked again.
        self._todo: deque[tuple[int, Rule]] = deque()
        # Where a rule goes on that finds messages it must leave: they are not looked at again
        # and again. Lost with the server, which costs one walk more.
        self._positions: dict[tuple[int, str], datetime] = {}
        self._rests: dict[tuple[int, str], float] = {}
        self._partition = 0

    async def remove_old(self, transaction: Transaction) -> bool:
        """Run one round of one rule; return whether there is more to do.

        One rule a transaction: partitions are locked in order within a queue, not across.
        """
        if not self._todo:
            for row in await transaction.fetch("queues_to_clean"):
                for rule in _rules_of_row(row):
                    if self._rests.get((row["id"], rule.kind), 0.0) <= time.monotonic():
                        self._todo.append((row["id"], rule))
        if self._todo:
            queue_id, rule = self._todo.popleft()
            if await self._apply(transaction, queue_id, rule):
                self._todo.append((queue_id, rule))
        return bool(self._todo)

    async def _apply(self, transaction: Transaction, queue_id: int, rule: Rule) -> bool:
        key = (queue_id, rule.kind)
        after = self._positions.get(key, _BEGINNING)
        live_s = self._abandoned_s if rule.done_only else None
        done = await transaction.fetchrow(
            "expire_segments", queue_id, rule.age_s, after, live_s, _SEGMENTS
        )
        if done["segments"]:
            await transaction.execute(
                "record_retention", queue_id, rule.kind, done["segments"], done["messages"]
            )
        if done["looked"] >= _SEGMENTS:
            if rule.done_only:
                self._positions[key] = done["looked_until"]
            return True
        # At the end: the next walk begins at the front. One that was long is not made often.
        if self._positions.pop(key, None) is not None:
            self._rests[key] = time.monotonic() + _REST_S
        return False

    async def drop_idle(self, transaction: Transaction) -> bool:
        """Remove partitions that hold nothing and were not used for long."""
        if not self._idle_s:
            return False
        done = await transaction.fetchrow(
            "drop_idle_partitions", self._partition, self._idle_s, _PARTITIONS
        )
        if done["dropped"]:
            await transaction.execute("record_idle_partitions", done["queue_ids"], done["dropped"])
        self._partition = done["looked_until"] or 0
        return bool(self._partition and done["dropped"])
