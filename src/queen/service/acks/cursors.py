"""Cursors between the database and the rules of `queen.core.cursor`."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

import msgspec

from queen.core.cursor import Cursor, bits_from_bytes, bits_to_bytes
from queen.storage.database import Record, Transaction

# Partition and group.
Key = tuple[int, int]

decode_failures = msgspec.json.Decoder(dict[int, int]).decode


async def lock(transaction: Transaction, keys: Iterable[Key]) -> dict[Key, Cursor]:
    """Return cursors, locked in order until the transaction ends; missing ones are left out."""
    ordered = sorted(set(keys))
    rows = await transaction.fetch(
        "lock_cursors", [key[0] for key in ordered], [key[1] for key in ordered]
    )
    return {(row["partition_id"], row["group_id"]): _cursor(row) for row in rows}


async def store(
    transaction: Transaction, cursors: Mapping[Key, Cursor], waits_ms: Mapping[Key, int]
) -> None:
    """Write locked cursors back; `waits_ms` says how long some give out nothing."""
    if not cursors:
        return
    keys = sorted(cursors)
    rows = [cursors[key] for key in keys]
    await transaction.execute(
        "store_cursors",
        [key[0] for key in keys],
        [key[1] for key in keys],
        [row.committed for row in rows],
        [row.batch_start for row in rows],
        [row.batch_end for row in rows],
        [row.lease_id for row in rows],
        [row.attempts for row in rows],
        [bits_to_bytes(row.acked) for row in rows],
        [bits_to_bytes(row.failed) for row in rows],
        [msgspec.json.encode(row.failures) if row.failures else None for row in rows],
        [row.receipts for row in rows],
        [waits_ms.get(key, 0) for key in keys],
    )


def _cursor(row: Record) -> Cursor:
    return Cursor(
        committed=row["committed"],
        batch_start=row["batch_start"],
        batch_end=row["batch_end"],
        # asyncpg has its own UUID class; ours compares equal to it, but not the other way.
        lease_id=uuid.UUID(bytes=row["lease_id"].bytes) if row["lease_id"] else None,
        live=row["live"],
        attempts=row["attempts"],
        acked=bits_from_bytes(row["acked"]),
        failed=bits_from_bytes(row["failed"]),
        failures=decode_failures(row["failures"]) if row["failures"] else {},
        receipts=row["receipts"],
        handed=row["handed"],
    )
