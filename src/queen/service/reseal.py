"""Resealing: what is stored follows the key and the option of its queue.

A queue that becomes encrypted has older messages in the clear, and after a rotation of keys
older ones need the old key. A slow walk seals both with the current key, some at a time. When
a walk finds nothing, everything is sealed with the current key, and older keys can go; the
log says so.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Coroutine
from typing import Any

from queen.core.frame import CODEC_SEALED
from queen.errors import EncryptionUnavailable
from queen.service.vault import Vault
from queen.storage.database import Record, Transaction

_log = logging.getLogger(__name__)

INTERVAL_S = 300.0
# Read and written in one transaction.
_SEGMENTS = 50
_LETTERS = 200


class Resealer:
    def __init__(self, vault: Vault, wait_s: float = INTERVAL_S) -> None:
        self._vault = vault
        # Servers that are restarted one after the other get their keys one after the other.
        self._not_before = time.monotonic() + wait_s
        self._begin()

    def _begin(self) -> None:
        """Start a walk at the front."""
        self._place, self._letter = (0, -1), 0
        self._state = (uuid.UUID(int=0), 0, "")
        self._sealed = self._locked = 0

    async def seal_some(self, transaction: Transaction) -> bool:
        """Seal the next few; return whether there is more to look at."""
        if time.monotonic() < self._not_before:
            return False
        if not self._vault.keys or not (await transaction.fetch("any_encrypted"))[0][0]:
            return False
        name = self._vault.keys.name
        segments = await transaction.fetch("segments_to_seal", *self._place, name, _SEGMENTS)
        for row in segments:
            self._place = (row["partition_id"], row["base_offset"])
            await self._unless_locked(self._seal_segment(transaction, row))
        letters = await transaction.fetch("letters_to_seal", self._letter, name, _LETTERS)
        for row in letters:
            self._letter = row["id"]
            await self._unless_locked(self._seal_letter(transaction, row))
        states = await transaction.fetch("states_to_seal", *self._state, name, _LETTERS)
        for row in states:
            self._state = (row["query_id"], row["partition_id"], row["key"])
            await self._unless_locked(self._seal_state(transaction, row))
        if segments or letters or states:
            return True
        if self._sealed and not self._locked:
            _log.info("everything is sealed with the current key now; older keys can go")
        if self._locked:
            _log.warning("%d stored texts need a key that this server lacks", self._locked)
        self._begin()
        return False

    async def _unless_locked(self, work: Coroutine[Any, Any, None]) -> None:
        """Seal one, or pass it over when its key is not here."""
        try:
            await work
            self._sealed += 1
        except EncryptionUnavailable:
            self._locked += 1

    async def _seal_segment(self, transaction: Transaction, row: Record) -> None:
        plain = self._vault.plain(row["partition_id"], row["codec"], row["body"])
        codec, body = self._vault.close(row["partition_id"], *plain)
        await transaction.execute("rewrite_segment", *self._place, codec, body)

    async def _seal_letter(self, transaction: Transaction, row: Record) -> None:
        payload = self._vault.open_letter(row["partition_id"], row["codec"], row["payload"])
        _, sealed = self._vault.close_letter(row["partition_id"], payload)
        await transaction.execute("rewrite_letter", row["id"], CODEC_SEALED, sealed)

    async def _seal_state(self, transaction: Transaction, row: Record) -> None:
        value = self._vault.open_state(row["partition_id"], row["codec"], row["value"])
        sealed = self._vault.close_state(row["partition_id"], value)
        await transaction.execute("rewrite_query_state", *self._state, *sealed)
