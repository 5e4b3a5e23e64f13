"""The common ack of a shared group: a whole leased span is done. One statement for many of them."""

from __future__ import annotations

from collections.abc import Iterable

from queen.service.acks.ack_batch import AckBatch
from queen.service.shared.spans import LeaseKey, lease_key
from queen.storage.database import Database


def part_shared(ack_batches: Iterable[AckBatch]) -> tuple[list[AckBatch], list[AckBatch]]:
    """Return the batches whose leases are of shared groups, as far as is known, and the others."""
    shared: list[AckBatch] = []
    others: list[AckBatch] = []
    for batch in ack_batches:
        covered = batch.covered
        (shared if covered is not None and covered.is_shared else others).append(batch)
    return shared, others


def part_whole(ack_batches: list[AckBatch]) -> tuple[list[AckBatch], list[AckBatch]]:
    """Return the batches that end their lease with everything done, in lock order, and the rest."""
    keys: set[LeaseKey | None] = set()
    whole: list[AckBatch] = []
    rest: list[AckBatch] = []
    for batch in ack_batches:
        # Two acks of one lease are applied one after the other.
        key = lease_key(batch)
        if key is not None and key not in keys and batch.covers_span():
            whole.append(batch)
        else:
            rest.append(batch)
        keys.add(key)
    whole.sort(key=lambda batch: (batch.key, batch.covered.start if batch.covered else 0))
    return whole, rest


async def ack_whole(database: Database, whole: list[AckBatch], wait_ms: int) -> list[bool | None]:
    """Commit whole spans; of each, whether it was that simple, or None while its cursor is
    locked."""
    spans = [batch.covered for batch in whole if batch.covered is not None]
    rows = await database.fetch(
        "ack_shared",
        [batch.partition.id for batch in whole],
        [batch.group_id for batch in whole],
        [batch.lease_id for batch in whole],
        [span.start for span in spans],
        [span.stop for span in spans],
        False,
        wait_ms,
    )
    return [row["done"] for row in rows]
