"""Dead letters: messages a group has given up on, and their way back.

A dead letter is tried again by appending it once more to its partition, in the transaction
that removes the letter: it is in one place or the other, never in both and never in none.
Only the group that gave it up is shown the copy; the others have had the message. One that cannot
be opened stays where it is, and the others are tried again all the same.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from queen.core.columns.headers import HEADERS, headers_bytes
from queen.core.cursor import Cursor, is_done, set_aside
from queen.core.names import QUEUE_MODE_GROUP
from queen.core.visibility import ONLY_GROUP
from queen.errors import EncryptionUnavailable
from queen.service.acks.cursors import Key, lock, store
from queen.service.acks.dead_letter_copies import DeadLetter, DeadLetterCopies, Position
from queen.service.catalog import FROM_BEGINNING, Catalog, Partition
from queen.service.log.append import Append
from queen.service.log.appender import Appender, Outcome, append_columns, outcomes
from queen.service.log.flush_share import Share
from queen.service.log.message import Message
from queen.service.log.segment_encryption import SegmentEncryption
from queen.storage.database import Database, Record

_log = logging.getLogger(__name__)

# Dead letters that are tried again in one transaction.
REDRIVE_BATCH = 250
_BY_HAND = "Moved by hand"
# How many are counted for an answer: with a million of them, more would take seconds.
MOST_COUNTED = 10_000


class DeadLetterFilter(NamedTuple):
    """Which dead letters are meant; None matches all, an empty error those that have none."""

    queue_id: int | None = None
    partition_id: int | None = None
    group: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    namespaces: list[str] | None = None
    ids: list[int] | None = None


def key_of_error(error: str) -> str:
    """Return what stands for an error in an address: its hash, as the index of the table has it."""
    return hashlib.md5(error.encode(), usedforsecurity=False).hexdigest()


_NO_ERROR = key_of_error("")


class _Taken(Exception):
    """Somebody else has taken one of the dead letters; leaves the transaction."""


class DeadLetters:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        encryption: SegmentEncryption,
        appender: Appender,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._encryption = encryption
        self._appender = appender
        self._copies = DeadLetterCopies(encryption)

    # ---- looking ----

    async def page(
        self, dead_letter_filter: DeadLetterFilter, limit: int, offset: int
    ) -> list[Record]:
        """Return dead letters, the latest first; `payload_of` has what is in them."""
        return await self._database.fetch("dead_letters", *dead_letter_filter, limit, offset)

    def payload_of(self, row: Record) -> bytes:
        return self._encryption.decrypt_dead_letter(
            row["partition_id"], row["codec"], row["payload"]
        )

    def headers_of(self, row: Record) -> str | None:
        """Return the headers of a dead letter, as they are stored in segments."""
        if row["headers"] is None:
            return None
        return self._encryption.decrypt_dead_letter_headers(
            row["partition_id"], row["codec"], row["headers"]
        ).decode()

    async def count(self, dead_letter_filter: DeadLetterFilter) -> int:
        """Return how many match, counted no further than `MOST_COUNTED`."""
        count: int = await self._database.fetchval(
            "count_dead_letters", *dead_letter_filter, MOST_COUNTED
        )
        return count

    async def errors(self, dead_letter_filter: DeadLetterFilter, limit: int) -> list[Record]:
        """Return how many of the latest died of what, the most frequent first."""
        return await self._database.fetch(
            "dead_letter_errors", *dead_letter_filter, MOST_COUNTED, limit
        )

    async def error_of(self, key: str) -> str | None:
        """Return the error that a key stands for; None when nothing has died of it."""
        if key == _NO_ERROR:
            return ""
        error: str | None = await self._database.fetchval("error_of_key", key)
        return error

    # ---- the way out ----

    async def purge(self, dead_letter_filter: DeadLetterFilter, limit: int) -> int:
        """Remove dead letters for good, the oldest first; return how many."""
        return len(await self._database.fetch("purge_dead_letters", *dead_letter_filter, limit))

    async def of_message(self, partition_id: int, offset: int) -> list[Record]:
        """Return the dead letters of a message: one for each group that has given it up."""
        return await self._database.fetch("letters_of_message", partition_id, offset)

    async def retry(self, dead_letter_filter: DeadLetterFilter, limit: int) -> int:
        """Deliver dead letters again to the groups that gave them up; return how many.

        Raises when all that there are cannot be opened.
        """
        retried = 0
        locked: dict[int, EncryptionUnavailable] = {}
        while retried < limit:
            rows = await self.page(
                dead_letter_filter, min(limit - retried, REDRIVE_BATCH), len(locked)
            )
            if not rows:
                break
            openable = await self._pick_openable(rows, locked)
            if openable:
                retried += await self._redrive(openable)
        if locked and not retried:
            raise next(iter(locked.values()))
        return retried

    async def _pick_openable(
        self, rows: list[Record], locked: dict[int, EncryptionUnavailable]
    ) -> list[Record]:
        """Return the dead letters that can be read and appended; note the others."""
        partitions = await self._catalog.partitions(row["partition_id"] for row in rows)
        openable: list[Record] = []
        for row in rows:
            try:
                self._check_opens(row, partitions.get(row["partition_id"]))
                openable.append(row)
            except EncryptionUnavailable as error:
                locked[row["id"]] = error
                names = row["queue"], row["partition"]
                _log.warning("a dead letter of %r %r stays: %s", *names, error)
        return openable

    def _check_opens(self, row: Record, partition: Partition | None) -> None:
        self.payload_of(row)
        is_encrypted = partition is not None and partition.queue.options.encryption_enabled
        if is_encrypted and not self._encryption.keys:
            # It could not be stored again.
            raise EncryptionUnavailable

    async def _redrive(self, rows: list[Record]) -> int:
        """Append dead letters again and remove them, in one transaction; return how many."""
        ids = [row["id"] for row in rows]
        redriven = 0

        async def append_and_take(shares: list[Share]) -> list[Share] | None:
            nonlocal redriven
            appended: list[Outcome] = []
            try:
                async with self._database.transaction() as transaction:
                    columns = append_columns(shares)
                    appended = outcomes(await transaction.fetch("append", *columns))
                    taken = await transaction.fetch("take_dead_letters", ids)
                    if len(taken) < len(ids) or not all(row.is_appended for row in appended):
                        raise _Taken
            except _Taken:
                if all(row.is_appended for row in appended):
                    return None
                await self._appender.learn_all(shares, appended)
                return shares
            self._appender.tell(shares, appended)
            redriven = len(ids)
            return None

        await self._appender.append(
            await self._appender.plan(await self._appends(rows)), append_and_take
        )
        return redriven

    async def _appends(self, rows: list[Record]) -> list[Append]:
        """Return an append for each partition, with its dead letters in their old order."""
        partitions = await self._catalog.partitions(row["partition_id"] for row in rows)
        by_partition: dict[int, list[Record]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: (row["message_offset"], row["id"])):
            by_partition[row["partition_id"]].append(row)
        return [
            self._append(partitions[partition_id], dead_letters)
            for partition_id, dead_letters in by_partition.items()
        ]

    def _append(self, partition: Partition, dead_letters: list[Record]) -> Append:
        extras: dict[str, list[Any]] = {ONLY_GROUP: [row["consumer_group"] for row in dead_letters]}
        for name, column in (("traceId", "trace_id"), ("producerSub", "producer_sub")):
            values = [row[column] for row in dead_letters]
            if any(values):
                extras[name] = values
        headers = [self.headers_of(row) for row in dead_letters]
        if any(headers):
            extras[HEADERS] = headers
        payloads = [self.payload_of(row) for row in dead_letters]
        append = Append(
            partition.queue.name,
            partition.name,
            [row["transaction_id"].encode() for row in dead_letters],
            payloads,
            sum(map(len, payloads)) + 64 * len(payloads) + headers_bytes(headers),
            extras,
        )
        append.is_again = True
        return append

    # ---- the way in ----

    async def move(
        self, partition: Partition, message: Message, group: str | None, error: str | None
    ) -> list[str]:
        """Set a message aside by hand, for one group or for all that have it still to do.

        Returns the groups for which it was done.
        """
        groups = await self._database.fetch("groups_of_queue", partition.queue.id)
        if not groups and group in (None, QUEUE_MODE_GROUP):
            # Nobody has read it yet: those who will come without a group are spared it.
            await self._catalog.group(partition.queue, QUEUE_MODE_GROUP, FROM_BEGINNING)
            groups = await self._database.fetch("groups_of_queue", partition.queue.id)
        names = {row["id"]: row["name"] for row in groups if group in (None, row["name"])}
        if not names:
            return []
        keys = [(partition.id, group_id) for group_id in sorted(names)]
        after: dict[Key, Cursor] = {}
        dead_letters: list[DeadLetter] = []
        async with self._database.transaction() as transaction:
            await transaction.execute("open_cursors", partition.id, sorted(names))
            for key, cursor in (await lock(transaction, keys)).items():
                if cursor.handed is not None:
                    offset = message.offset
                    tries = await transaction.fetchval("set_aside_shared", *key, offset)
                elif is_done(cursor, message.offset):
                    tries = None
                else:
                    after[key] = set_aside(cursor, message.offset)
                    tries = cursor.failures.get(message.offset, 0)
                if tries is not None:
                    reason = error or _BY_HAND
                    dead_letters.append(
                        self._copies.dead_letter(partition, key[1], message, reason, tries)
                    )
            await self._copies.store(transaction, dead_letters)
            await store(transaction, after, {})
        return [names[dead_letter.group_id] for dead_letter in dead_letters]

    async def set_aside(
        self, group: str, partitions: Mapping[int, Partition], errors: Mapping[Position, str]
    ) -> int:
        """Keep messages as dead letters of a group that reads by time, and so has no cursors.

        Returns how many are. Those of partitions that are not given, and those that are gone, are
        not.
        """
        group_ids: dict[int, int] = {}
        for partition in partitions.values():
            group_id = await self._database.findval("find_group", partition.queue.id, group)
            if group_id is not None:
                group_ids[partition.id] = group_id
        positions = [position for position in errors if position[0] in group_ids]
        async with self._database.transaction() as transaction:
            messages = await self._copies.read_messages(transaction, positions)
            dead_letters = [
                self._copies.dead_letter(
                    partitions[at], group_ids[at], message, errors[at, offset], 1
                )
                for (at, offset), message in messages.items()
                if isinstance(message, Message)
            ]
            await self._copies.store(transaction, dead_letters)
        return len(dead_letters)
