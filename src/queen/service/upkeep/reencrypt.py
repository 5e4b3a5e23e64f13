"""Re-encryption: what is stored follows the key and the option of its queue.

A queue that becomes encrypted has older messages in the clear, and after a rotation of keys
older ones need the old key. A slow walk encrypts both with the current key. It goes page by page:
a round looks at so many rows and writes so many bytes, whatever there is to do, and the next
one goes on behind them. When a walk finds nothing, everything is encrypted with the current key,
and older keys can go; the log says so.

What does not open is counted, named in the log and passed over: the others go on.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from queen.core.frame import CODEC_ENCRYPTED, CODEC_MERGED
from queen.errors import EncryptionUnavailable
from queen.service.log.segment_encryption import SegmentEncryption
from queen.storage.database import Record, Transaction

_log = logging.getLogger(__name__)

INTERVAL_S = 300.0
# What one round looks at of each kind, and what it writes in its transaction. A text costs more
# than its bytes.
PAGE_ROWS = 1000
_ROUND_BYTES = 16 * 1024 * 1024
_COST_BYTES = 64 * 1024
# How many that do not open are named in the log, in one walk.
_NAMED = 10

Encrypt = Callable[[Transaction, Record], Awaitable[None]]
_FRONT = (datetime(1970, 1, 1, tzinfo=UTC), 0, -1)


class Reencrypter:
    def __init__(
        self, encryption: SegmentEncryption, wait_s: float = INTERVAL_S, page_rows: int = PAGE_ROWS
    ) -> None:
        self._encryption = encryption
        self._page_rows = page_rows
        # Servers that are restarted one after the other get their keys one after the other.
        self._not_before = time.monotonic() + wait_s
        # Something was encrypted, and no walk since then has found everything in order.
        self._is_news = False
        self._begin()

    def _begin(self) -> None:
        """Start a walk at the front."""
        self._queue = 0
        self._segment: tuple[datetime, int, int] = _FRONT
        self._dead_letter = 0
        self._state = (uuid.UUID(int=0), 0, "")
        self._encrypted = self._locked = 0

    async def encrypt_some(self, transaction: Transaction) -> bool:
        """Look at the next page; return whether there is more to look at."""
        if time.monotonic() < self._not_before:
            return False
        if not self._encryption.keys or not await transaction.fetchval("any_encrypted"):
            return False
        more = [
            await self._encrypt_segments(transaction),
            await self._encrypt_dead_letters(transaction),
            await self._encrypt_states(transaction),
        ]
        if any(more):
            return True
        if self._is_news and not self._encrypted and not self._locked:
            # Not at the end of the walk that encrypted: one of its rounds may have failed.
            _log.info("everything is sealed with the current key now; older keys can go")
        self._is_news = bool(self._encrypted)
        if self._locked:
            _log.warning(
                "%d stored texts are damaged or need a key that this server lacks", self._locked
            )
        self._begin()
        return False

    async def _encrypt_segments(self, transaction: Transaction) -> bool:
        """Encrypt a page of the queue that is under way; return whether there is another one."""
        queue_id = await transaction.findval("next_encrypted_queue", self._queue)
        if queue_id is None:
            return False
        if queue_id != self._queue:
            self._queue, self._segment = queue_id, _FRONT
        name = self._encryption.keys.name
        page = await transaction.fetch(
            "segments_to_seal", self._queue, *self._segment, name, self._page_rows
        )
        done = await self._encrypt_page(transaction, page, self._encrypt_segment)
        if done:
            last = page[done - 1]
            self._segment = (last["created_at"], last["partition_id"], last["base_offset"])
        if self._is_last(page, done):
            self._queue, self._segment = self._queue + 1, _FRONT
        return True

    async def _encrypt_dead_letters(self, transaction: Transaction) -> bool:
        name = self._encryption.keys.name
        page = await transaction.fetch("letters_to_seal", self._dead_letter, name, self._page_rows)
        done = await self._encrypt_page(transaction, page, self._encrypt_dead_letter)
        if done:
            self._dead_letter = page[done - 1]["id"]
        return not self._is_last(page, done)

    async def _encrypt_states(self, transaction: Transaction) -> bool:
        name = self._encryption.keys.name
        page = await transaction.fetch("states_to_seal", *self._state, name, self._page_rows)
        done = await self._encrypt_page(transaction, page, self._encrypt_state)
        if done:
            last = page[done - 1]
            self._state = (last["query_id"], last["partition_id"], last["key"])
        return not self._is_last(page, done)

    def _is_last(self, page: list[Record], done: int) -> bool:
        """Return whether nothing lies behind what was done of a page."""
        return done == len(page) and (not page or page[0]["looked"] < self._page_rows)

    async def _encrypt_page(
        self, transaction: Transaction, page: list[Record], encrypt: Encrypt
    ) -> int:
        """Encrypt what a page holds, as far as one round goes; return how many rows that is."""
        left = _ROUND_BYTES
        for done, row in enumerate(page):
            if not row["to_seal"]:
                continue
            if left <= 0:
                return done
            left -= row["bytes"] + _COST_BYTES
            try:
                await encrypt(transaction, row)
                self._encrypted += 1
            except EncryptionUnavailable as error:
                self._locked += 1
                if self._locked <= _NAMED:
                    _log.warning("partition %d: %s", row["partition_id"], error)
        return len(page)

    async def _encrypt_segment(self, transaction: Transaction, row: Record) -> None:
        row_key = (row["partition_id"], row["base_offset"])
        for stored in await transaction.fetch("segment_to_seal", *row_key):
            codec = stored["codec"] & ~CODEC_MERGED
            plain = self._encryption.decrypt_segment(row_key[0], codec, stored["body"])
            codec, body = self._encryption.encrypt_segment(row_key[0], *plain)
            await transaction.execute("rewrite_segment", *row_key, codec, body)

    async def _encrypt_dead_letter(self, transaction: Transaction, row: Record) -> None:
        for stored in await transaction.fetch("letter_to_seal", row["id"]):
            partition_id = row["partition_id"]
            payload = self._encryption.decrypt_dead_letter(
                partition_id, stored["codec"], stored["payload"]
            )
            _, encrypted = self._encryption.encrypt_dead_letter(partition_id, payload)
            headers = self._encrypt_headers(partition_id, stored["codec"], stored["headers"])
            await transaction.execute(
                "rewrite_letter", row["id"], CODEC_ENCRYPTED, encrypted, headers
            )

    def _encrypt_headers(
        self, partition_id: int, codec: int, headers: bytes | None
    ) -> bytes | None:
        if headers is None:
            return None
        plain = self._encryption.decrypt_dead_letter_headers(partition_id, codec, headers)
        return self._encryption.encrypt_dead_letter(partition_id, plain)[1]

    async def _encrypt_state(self, transaction: Transaction, row: Record) -> None:
        row_key = (row["query_id"], row["partition_id"], row["key"])
        for stored in await transaction.fetch("state_to_seal", *row_key):
            value = self._encryption.decrypt_state(row_key[1], stored["codec"], stored["value"])
            encrypted = self._encryption.encrypt_state(row_key[1], value)
            await transaction.execute("rewrite_query_state", *row_key, *encrypted)
