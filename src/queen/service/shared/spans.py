"""Spans of shared groups that acks are about: locked, settled and stored in one transaction.

Whoever has locked a cursor may read and write its spans; nobody else does, but for a lease that is
prolonged.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from queen.core.cursor import (
    AckResult,
    AckStatus,
    Cursor,
    acked_up_to,
    bits_from_bytes,
    bits_to_bytes,
    receipt_of,
)
from queen.core.shared import GivenBack, SettledSpan, SharedSpan, refuse, settle_span
from queen.service.acks.ack_batch import AckBatch, GivenUp
from queen.service.acks.cursors import Key
from queen.storage.database import Database, Record, Transaction

# Partition, group and lease.
LeaseKey = tuple[int, int, uuid.UUID]


class _Wait(NamedTuple):
    """Messages that were given back, and how long they wait for their next try."""

    key: Key
    part: GivenBack
    wait_ms: int


class Spans:
    """What some acks are about."""

    def __init__(self, cursors: Mapping[Key, Cursor]) -> None:
        self._cursors = cursors
        self._before: dict[LeaseKey, SharedSpan] = {}
        # Of leases that are over: what else is not done where they were.
        self._undone: dict[LeaseKey, list[SharedSpan]] = {}
        self._after: dict[LeaseKey, SharedSpan] = {}
        self._waits: list[_Wait] = []
        self._done: Counter[Key] = Counter()
        self._receipts: dict[Key, bytes] = {}

    @classmethod
    async def lock(
        cls,
        transaction: Transaction,
        ack_batches: Sequence[AckBatch],
        cursors: Mapping[Key, Cursor],
    ) -> Spans:
        """Return what acks are about; the cursors are locked already."""
        spans = cls(cursors)
        spans._before = await leased_spans(transaction, ack_batches)
        over = [batch for batch in ack_batches if spans._may_be_repeated(batch)]
        if over:
            await spans._read_undone(transaction, over)
        return spans

    def _may_be_repeated(self, batch: AckBatch) -> bool:
        key = lease_key(batch)
        if key is None or key in self._before or batch.covered is None:
            return False
        return acked_up_to(self._cursors[batch.key].receipts, key[2]) is not None

    async def _read_undone(self, transaction: Transaction, over: list[AckBatch]) -> None:
        rows = await transaction.fetch(
            "spans_between",
            [batch.partition.id for batch in over],
            [batch.group_id for batch in over],
            [batch.covered.start if batch.covered else 0 for batch in over],
            [batch.covered.stop if batch.covered else 0 for batch in over],
        )
        for batch in over:
            key = lease_key(batch)
            assert key is not None
            self._undone[key] = [
                _span(row) for row in rows if (row["partition_id"], row["group_id"]) == batch.key
            ]

    # ---- applying ----

    def apply(self, ack_batches: Iterable[AckBatch]) -> list[GivenUp]:
        """Apply batches of acks one after the other, without those that have an error; return what
        has died. Called again, it begins anew."""
        self._after, self._waits = {}, []
        self._done, self._receipts = Counter(), {}
        dead: list[GivenUp] = []
        for batch in ack_batches:
            batch.is_shared = True
            if batch.error is not None:
                batch.results, batch.ended = {}, False
                continue
            key = lease_key(batch)
            if key is None or batch.covered is None:
                # Which of the leases is meant, nobody knows.
                batch.give(AckResult.LOST)
                continue
            settled = self._settle(batch, key)
            dead += (GivenUp(batch, offset, tries) for offset, tries in settled.dead.items())
        return dead

    def _settle(self, batch: AckBatch, key: LeaseKey) -> SettledSpan:
        span = self._after.get(key) or self._before.get(key)
        if span is None or span.is_over:
            return batch.settle(SharedSpan(0, 0, key[2], False, 0), partial(self._refuse, key))
        settled = batch.settle(span, settle_span)
        if not span.live:
            return settled
        self._after[key] = settled.span
        self._done[batch.key] += settled.done
        batch.ended = settled.span.is_over
        if batch.ended:
            receipt = receipt_of(key[2], span.end)
            self._receipts[batch.key] = receipt + self._receipts.get(batch.key, b"")
        self._give_back(batch, settled.given_back)
        return settled

    def _give_back(self, batch: AckBatch, given_back: list[GivenBack]) -> None:
        waits = [
            _Wait(batch.key, part, _wait_ms(batch, part))
            for whole in given_back
            for part in _parts_by_delay(batch, whole)
        ]
        self._waits += waits
        batch.gives_back = bool(waits)
        batch.retry_ms = min((wait.wait_ms for wait in waits), default=0)

    def _refuse(
        self,
        key: LeaseKey,
        span: SharedSpan,
        _lease_id: uuid.UUID | None,
        statuses: Mapping[int, AckStatus],
        _retry_limit: int | None,
        _hidden: Iterable[int] = (),
    ) -> SettledSpan:
        """Tell a repeated ack whose answer was lost so, refuse any other."""
        cursor = self._cursors[key[0], key[1]]
        upto = acked_up_to(cursor.receipts, key[2]) or 0
        if key in self._after:
            upto = self._after[key].end
        undone = self._undone.get(key, [])
        is_done = {
            offset: offset < upto and not any(other.holds(offset) for other in undone)
            for offset in statuses
        }
        return SettledSpan(span, refuse(is_done, statuses))

    # ---- storing ----

    async def store(self, transaction: Transaction) -> None:
        """Write what has changed, and move the cursors on."""
        if not self._after:
            return
        over = [(key, span) for key, span in self._after.items() if span.is_over]
        left = [(key, span) for key, span in self._after.items() if not span.is_over]
        if over:
            await transaction.execute("drop_spans", *_where(over))
        if left:
            await transaction.execute(
                "store_spans",
                *_where(left),
                [bits_to_bytes(span.acked) for _, span in left],
                [bits_to_bytes(span.given_back) for _, span in left],
            )
        if self._waits:
            await transaction.execute("add_spans", *_columns(self._waits))
        keys = sorted({key[:2] for key in self._after})
        await transaction.fetch(
            "advance_shared",
            [key[0] for key in keys],
            [key[1] for key in keys],
            [self._done[key] for key in keys],
            [self._receipts.get(key, b"") for key in keys],
        )


def _parts_by_delay(batch: AckBatch, given_back: GivenBack) -> Iterator[GivenBack]:
    """Yield what was given back together in parts that wait equally long."""
    if not batch.asked_ms:
        yield given_back
        return
    offsets = range(given_back.first, given_back.end)
    for _, same in groupby(offsets, batch.asked_ms.get):
        part = list(same)
        yield given_back._replace(first=part[0], end=part[-1] + 1)


def _wait_ms(batch: AckBatch, part: GivenBack) -> int:
    """Return how long messages wait that were given back together; the first stands for all."""
    backoff = batch.partition.queue.options.backoff
    if part.first in batch.asked_ms:
        return backoff.asked_wait_ms(batch.asked_ms[part.first])
    if not part.told:
        return 0
    return backoff.wait_ms(part.told, batch.group_id, batch.partition.id, part.first)


def lease_key(batch: AckBatch) -> LeaseKey | None:
    return (*batch.key, batch.lease_id) if batch.lease_id is not None else None


async def leased_spans(
    connection: Database | Transaction, ack_batches: Iterable[AckBatch]
) -> dict[LeaseKey, SharedSpan]:
    """Return what the leases of acks hold, or have held until they lapsed."""
    return await spans_of(
        connection, {key for batch in ack_batches if (key := lease_key(batch)) is not None}
    )


async def spans_of(
    connection: Database | Transaction, keys: Iterable[LeaseKey]
) -> dict[LeaseKey, SharedSpan]:
    """Return what leases hold, or have held until they lapsed."""
    ordered = sorted(keys)
    if not ordered:
        return {}
    rows = await connection.fetch(
        "lock_spans",
        [key[0] for key in ordered],
        [key[1] for key in ordered],
        [key[2] for key in ordered],
    )
    spans = ((row, _span(row)) for row in rows)
    return {(row["partition_id"], row["group_id"], span.lease_id): span for row, span in spans}


def _span(row: Record) -> SharedSpan:
    lease_id = row["lease_id"]
    return SharedSpan(
        row["first_offset"],
        row["end_offset"],
        uuid.UUID(bytes=lease_id.bytes) if lease_id else uuid.UUID(int=0),
        row["live"] and lease_id is not None,
        row["attempts"],
        row["told"],
        row["is_alone"],
        bits_from_bytes(row["acked"]),
        bits_from_bytes(row["failed"]),
    )


def _where(spans: list[tuple[LeaseKey, SharedSpan]]) -> tuple[list[Any], ...]:
    return (
        [key[0] for key, _ in spans],
        [key[1] for key, _ in spans],
        [span.first for _, span in spans],
        [span.lease_id for _, span in spans],
    )


def _columns(waits: list[_Wait]) -> tuple[list[int], ...]:
    return (
        [wait.key[0] for wait in waits],
        [wait.key[1] for wait in waits],
        [wait.part.first for wait in waits],
        [wait.part.end for wait in waits],
        [wait.wait_ms for wait in waits],
        [wait.part.attempts for wait in waits],
        [wait.part.told for wait in waits],
    )
