"""Burial: copying a message to the dead letters.

The copy is made in the transaction that moves a cursor past the message, so a message is
delivered or it is dead, and a crash leaves nothing between. Letters of an encrypted queue
are encrypted as its messages are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from queen.core.frame import CODEC_RAW
from queen.core.visibility import DELETED
from queen.service.catalog import Partition
from queen.service.message import Message, message_at
from queen.service.vault import Vault
from queen.storage.database import Transaction

# Partition and offset.
Place = tuple[int, int]


class Letter(NamedTuple):
    """A dead letter, field by field as it is stored."""

    partition_id: int
    group_id: int
    offset: int
    transaction_id: str
    trace_id: str | None
    payload: bytes
    error: str
    attempts: int
    created_at: datetime
    codec: int
    producer_sub: str | None


class Burial:
    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    async def messages(
        self, transaction: Transaction, places: Iterable[Place]
    ) -> dict[Place, Message]:
        """Read messages; those that retention has removed, or somebody deleted, are left out."""
        wanted: dict[int, set[int]] = defaultdict(set)
        for partition, offset in places:
            wanted[partition].add(offset)
        flat = [(partition, offset) for partition, group in wanted.items() for offset in group]
        rows = await transaction.fetch(
            "read_spans",
            [partition for partition, _ in flat],
            [offset for _, offset in flat],
            [offset + 1 for _, offset in flat],
        )
        found: dict[Place, Message] = {}
        for row in rows:
            segment, base = self._vault.segment(row), row["base_offset"]
            deleted = segment.column(DELETED)
            for offset in wanted[row["partition_id"]]:
                if not base <= offset < row["end_offset"]:
                    continue
                if deleted is None or not deleted[offset - base]:
                    message = message_at(segment, offset - base, offset, row["created_at"])
                    found[row["partition_id"], offset] = message
        return found

    def letter(
        self, partition: Partition, group_id: int, message: Message, error: str, attempts: int
    ) -> Letter:
        payload, codec = message.payload, CODEC_RAW
        if partition.queue.options.encryption_enabled:
            codec, payload = self._vault.close_letter(partition.id, payload)
        return Letter(
            partition.id,
            group_id,
            message.offset,
            message.transaction_id,
            message.trace_id,
            payload,
            error,
            attempts,
            message.created_at,
            codec,
            message.producer_sub,
        )

    async def bury(self, transaction: Transaction, letters: list[Letter]) -> None:
        """Store letters; one that is there already, because an ack was repeated, stays as it is."""
        if letters:
            await transaction.execute("bury", *map(list, zip(*letters, strict=True)))
