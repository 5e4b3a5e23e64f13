"""The relay: from the outbox into the log.

SQL producers and scheduled messages lie in the outbox, a table (see 0003_staging.sql). The relay
takes what has committed and is due, in order, and appends it as a push would: with dedup by
transaction id, creating queues and partitions as they come.

Taking and appending are one transaction, so a message is in the outbox or in the log, never in
both and never in neither, wherever the server dies. Of several servers one works: the
others find the lock taken. The lock is the transaction's, so a server that hangs loses it
together with the work it guards.

A round is bounded in messages and in bytes, and nothing that is wrong with one message holds up
the others. A row that cannot be a message, because somebody wrote it past `queen.push` or it is
damaged, is set aside with its reason. One that needs an encryption key that this server does not
have is put back for some seconds; another server may have it. So is a partition in which something
cannot be compared. When a round fails and nobody knows of what, the next ones take one message
at a time, until the one that fails alone is put back too.

What a queue may hold (`maxSize`) does not count here: these messages were accepted when their
transaction committed, and nobody is left to be told.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import zstandard

from queen.core.columns.headers import HEADERS, headers_bytes, reason_against_text
from queen.core.frame import CODEC_ENCRYPTED, CODEC_RAW
from queen.core.names import is_uuid, reason_against_name, reason_against_transaction_id
from queen.core.payload import as_line, reason_against_payload
from queen.errors import BadRequest, EncryptionUnavailable, QueenError, Unavailable, Unreadable
from queen.service.admin.maintenance import Maintenance
from queen.service.catalog import Catalog
from queen.service.log.append import Append
from queen.service.log.appender import Appender, Outcome, append_columns, outcomes
from queen.service.log.flush_share import Share
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.outages import level_of
from queen.storage.database import Database, Record, Transaction

_log = logging.getLogger(__name__)

_MAX_MESSAGES = 1000
_MAX_BYTES = 8 * 1024 * 1024
# Notifications make it quick; this makes it certain.
_NET_S = 1.0
# A due time that has passed while we looked is looked at again, but not in a spin.
_SHORTEST_PAUSE_S = 0.001
# How many partitions of those that are put back are named in the log.
_NAMED = 10

_json = msgspec.json.Decoder(msgspec.Raw)

# What is stored does not open, or is no segment.
_UNREADABLE = (
    EncryptionUnavailable,
    Unreadable,
    BadRequest,
    struct.error,
    ValueError,
    msgspec.DecodeError,
    zstandard.ZstdError,
)


class OutboxMessage(NamedTuple):
    """A row that can be a message, and its payload in plain text."""

    row: Record
    payload: bytes
    headers: str | None = None


class Relay:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        appender: Appender,
        encryption: SegmentEncryption,
        maintenance: Maintenance,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._appender = appender
        self._encryption = encryption
        self._maintenance = maintenance
        self._wake = asyncio.Event()
        # So many rounds take one message each: one of the next is not to be appended.
        self._alone = 0

    def wake(self) -> None:
        """Look now instead of at the next time."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            pause_s = await self._relay_all()
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _relay_all(self) -> float:
        """Relay all there is; return how long to pause."""
        try:
            while True:
                pause_s = await self.relay_some()
                if pause_s is not None:
                    return pause_s
        except Unavailable as error:
            _log.log(level_of(error), "relay: %s", error)
        except Exception:
            _log.exception("a round of the relay failed")
            await self._isolate()
        return _net_s()

    async def _isolate(self) -> None:
        """Find what a round fails of: take messages alone, and put back the one that fails."""
        if not self._alone:
            self._alone = _MAX_MESSAGES
            return
        self._alone = 0
        try:
            async with self._database.transaction() as transaction:
                if await transaction.fetchval("try_job", "relay"):
                    rows = await transaction.fetch("take_outbox", 1, _MAX_BYTES)
                    await self._postpone(transaction, rows, "they cannot be appended")
        except QueenError as error:
            _log.log(level_of(error), "relay: %s", error)

    async def relay_some(self, *, waits: bool = False) -> float | None:
        """Do one round; return how long to pause, or None when there may be more to do.

        While another server is at it, that is for it to do, unless the caller `waits` for it.
        """
        if not self._maintenance.pushes_are_stored:
            return _net_s()
        done: list[tuple[list[Share], list[Outcome]]] = []
        if not await self._database.fetchval("is_anything_staged"):
            # As nearly always: not worth a transaction.
            return _net_s()
        async with self._database.transaction() as transaction:
            if not await transaction.fetchval("wait_for_job" if waits else "try_job", "relay"):
                return _net_s()
            # One of each kind: what was committed, and what is due by the clock.
            most = 1 if self._alone else _MAX_MESSAGES
            rows = await transaction.fetch("take_outbox", most, _MAX_BYTES)
            if not rows:
                return await _until_due_s(transaction)
            good = await self._sort_out(transaction, rows)
            failed = await self._append(transaction, appends_of(good), done)
            stuck = [message.row for message in good if _partition_of(message.row) in failed]
            await self._postpone(transaction, stuck, "something of their partition does not open")
        self._alone = max(self._alone - 1, 0)
        for shares, appended in done:
            self._appender.tell(shares, appended)
        return None

    async def _append(
        self,
        transaction: Transaction,
        appends: list[Append],
        done: list[tuple[list[Share], list[Outcome]]],
    ) -> set[tuple[str, str]]:
        """Append all of it in the transaction; `done` gets what to say after the commit.

        Partitions that were refused once are locked by then: nobody else's ids can come
        between the second comparison and the second try. Returns those to which nothing was
        appended, because something that is stored there cannot be read.
        """
        failed: set[tuple[str, str]] = set()

        async def append_some(shares: list[Share]) -> list[Share] | None:
            if not shares:
                return None
            rows = outcomes(await transaction.fetch("append", *append_columns(shares)))
            done.append((shares, rows))
            return await self._learn(shares, rows, failed)

        await self._appender.append(await self._plan(appends, failed), append_some)
        return failed

    async def _plan(self, appends: list[Append], failed: set[tuple[str, str]]) -> list[Share]:
        """Compare ids with what is stored; where that fails, partition by partition."""
        try:
            return await self._appender.plan(appends)
        except _UNREADABLE:
            shares: list[Share] = []
            for append in appends:
                try:
                    shares += await self._appender.plan([append])
                except _UNREADABLE:
                    failed.add((append.queue, append.partition))
            return shares

    async def _learn(
        self, shares: list[Share], rows: list[Outcome], failed: set[tuple[str, str]]
    ) -> list[Share]:
        """Return the partitions that were refused, ready to be tried again."""
        again: list[Share] = []
        for share, row in zip(shares, rows, strict=True):
            try:
                again += await self._appender.learn_all([share], [row])
            except _UNREADABLE:
                failed.add((share.partition.queue.name, share.partition.name))
        return again

    async def _sort_out(self, transaction: Transaction, rows: list[Record]) -> list[OutboxMessage]:
        """Return what can be appended; put the rest where it holds up nobody."""
        keyless = await self._queues_without_key(rows)
        good: list[OutboxMessage] = []
        locked: list[Record] = []
        bad: list[tuple[Record, str]] = []
        for row in rows:
            try:
                message = self._decrypt(row)
                reason = _reason_against(message)
            except EncryptionUnavailable as error:
                if self._encryption.keys.lacks(row["payload"]):
                    locked.append(row)
                    continue
                reason = str(error)
            if reason is not None:
                bad.append((row, reason))
            elif row["queue"] in keyless:
                locked.append(row)
            else:
                good.append(message)
        await self._postpone(transaction, locked, "they wait for an encryption key")
        await self._set_aside(transaction, bad)
        return good

    def _decrypt(self, row: Record) -> OutboxMessage:
        owner = row["queue"], row["partition"], row["codec"]
        payload = self._encryption.decrypt_outbox_message(*owner, row["payload"])
        if row["headers"] is None:
            return OutboxMessage(row, payload)
        headers = self._encryption.decrypt_outbox_message(*owner, row["headers"])
        return OutboxMessage(row, payload, headers.decode(errors="replace"))

    async def _queues_without_key(self, rows: list[Record]) -> set[str]:
        """Return the queues that are encrypted while this server has no key."""
        if self._encryption.keys:
            return set()
        queues = await self._catalog.queues(row["queue"] for row in rows)
        return {queue.name for queue in queues if queue.options.encryption_enabled}

    async def _postpone(self, transaction: Transaction, rows: list[Record], why: str) -> None:
        if rows:
            columns = list(zip(*(tuple(row.values())[1:] for row in rows), strict=True))
            await transaction.execute("postpone_staged", *map(list, columns))
            _log.warning(
                "%d staged messages are put back, %s: %s", len(rows), why, _name_partitions(rows)
            )

    async def _set_aside(self, transaction: Transaction, bad: list[tuple[Record, str]]) -> None:
        if bad:
            columns = list(zip(*((*row.values(), why) for row, why in bad), strict=True))
            await transaction.execute("refuse_staged", *map(list, columns))
            _log.warning(
                "%d staged rows are no messages, see queen.staged_refused: %s",
                len(bad),
                _name_partitions([row for row, _ in bad]),
            )


def _partition_of(row: Record) -> tuple[str, str]:
    return row["queue"], row["partition"]


def _name_partitions(rows: list[Record]) -> str:
    """Return which queues and partitions rows belong to, as far as there is room."""
    partitions = list(dict.fromkeys(_partition_of(row) for row in rows))
    names = ", ".join(f"{queue!r} {partition!r}" for queue, partition in partitions[:_NAMED])
    return names + (f" and {len(partitions) - _NAMED} more" if len(partitions) > _NAMED else "")


def _net_s() -> float:
    # Servers that started together do not stay in step.
    return _NET_S * random.uniform(0.9, 1.1)  # noqa: S311


async def _until_due_s(transaction: Transaction) -> float:
    """Return how long to pause when nothing is due now."""
    due_s: float | None = await transaction.fetchval("next_due")
    return _net_s() if due_s is None else min(_net_s(), max(due_s, _SHORTEST_PAUSE_S))


def _reason_against(message: OutboxMessage) -> str | None:
    """Return why a row of the outbox cannot be a message, or None."""
    row, payload, headers = message
    if row["codec"] not in (CODEC_RAW, CODEC_ENCRYPTED):
        return f"codec {row['codec']} is not known"
    trace_id: str | None = row["trace_id"]
    return (
        reason_against_name("queue", row["queue"])
        or reason_against_name("partition", row["partition"])
        or reason_against_transaction_id(row["transaction_id"])
        or ("traceId is not a UUID" if trace_id is not None and not is_uuid(trace_id) else None)
        or (reason_against_text(headers) if headers is not None else None)
        or reason_against_payload(payload)
        or _reason_against_syntax(payload)
    )


def _reason_against_syntax(payload: bytes) -> str | None:
    try:
        _json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return "payload is not valid JSON"
    return None


def appends_of(messages: Iterable[OutboxMessage]) -> list[Append]:
    """Return messages of the outbox as appends, one for each partition, each in the given order."""
    by_partition: dict[tuple[str, str], list[OutboxMessage]] = {}
    for message in messages:
        by_partition.setdefault(_partition_of(message.row), []).append(message)
    return [
        _append_of(queue, partition, group) for (queue, partition), group in by_partition.items()
    ]


def _append_of(queue: str, partition: str, messages: list[OutboxMessage]) -> Append:
    ids = [message.row["transaction_id"].encode() for message in messages]
    payloads = [as_line(message.payload) for message in messages]
    extras: dict[str, list[Any]] = {
        "traceId": [message.row["trace_id"] for message in messages],
        "producerSub": [message.row["producer_sub"] for message in messages],
        HEADERS: [message.headers for message in messages],
    }
    rare = {name: column for name, column in extras.items() if any(column)}
    weight = sum(map(len, payloads)) + 64 * len(messages) + headers_bytes(extras[HEADERS])
    return Append(queue, partition, ids, payloads, weight, rare or None)
