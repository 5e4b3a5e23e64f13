"""The relay: from staging into the log.

SQL producers and scheduled messages are staged in a table (see 0003_staging.sql). The relay
takes what has committed and is due, in order, and appends it as a push would: with dedup by
transaction id, creating queues and partitions as they come.

Taking and appending are one transaction, so a message is in staging or in the log, never in
both and never in neither, wherever the server dies. Of several servers one works: the
others find the lock taken. The lock is the transaction's, so a server that hangs loses it
together with the work it guards.

A round is bounded in messages and in bytes. A row that cannot be a message, because somebody
wrote it past `queen.push`, is set aside with its reason and holds up nobody. One that needs an
encryption key that this server does not have is put back for a minute; another server may
have it.

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

from queen.core.frame import CODEC_RAW, CODEC_SEALED
from queen.core.names import is_uuid, reason_against_name, reason_against_transaction_id
from queen.core.payload import as_line, reason_against_payload
from queen.errors import EncryptionUnavailable, QueenError, Unavailable
from queen.service.append import Append
from queen.service.catalog import Catalog
from queen.service.lane import Lane
from queen.service.maintenance import Maintenance
from queen.service.push import MAX_ROUNDS, Outcome, Pusher, append_columns, outcomes
from queen.service.vault import Vault
from queen.storage.database import Database, Record, Transaction

_log = logging.getLogger(__name__)

_MAX_MESSAGES = 1000
_MAX_BYTES = 8 * 1024 * 1024
# Notifications make it quick; this makes it certain.
_NET_S = 1.0
# A due time that has passed while we looked is looked at again, but not in a spin.
_SHORTEST_PAUSE_S = 0.001

_json = msgspec.json.Decoder(msgspec.Raw)


class Staged(NamedTuple):
    """A row that can be a message, and its payload in plain text."""

    row: Record
    payload: bytes


class Relay:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        pusher: Pusher,
        vault: Vault,
        maintenance: Maintenance,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._pusher = pusher
        self._vault = vault
        self._maintenance = maintenance
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look now instead of at the next time."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            pause_s = await self._rounds()
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _rounds(self) -> float:
        """Relay all there is; return how long to pause."""
        try:
            while True:
                pause_s = await self.relay_some()
                if pause_s is not None:
                    return pause_s
        except QueenError as error:
            _log.warning("relay: %s", error)
        except Exception:
            _log.exception("a round of the relay failed")
        return _net_s()

    async def relay_some(self) -> float | None:
        """Do one round; return how long to pause, or None when there may be more to do."""
        if self._maintenance.pushes_are_held:
            return _net_s()
        done: list[tuple[list[Lane], list[Outcome]]] = []
        async with self._database.transaction() as transaction:
            if not (await transaction.fetch("try_job", "relay"))[0][0]:
                return _net_s()
            rows = await transaction.fetch("take_staged", _MAX_MESSAGES, _MAX_BYTES)
            if not rows:
                return await _until_due_s(transaction)
            good = await self._sort_out(transaction, rows)
            await self._append(transaction, appends_of(good), done)
        for lanes, appended in done:
            self._pusher.appended(lanes, appended)
        return None

    async def _append(
        self,
        transaction: Transaction,
        appends: list[Append],
        done: list[tuple[list[Lane], list[Outcome]]],
    ) -> None:
        """Append all of it in the transaction; `done` gets what to say after the commit.

        Partitions that were refused once are locked by then: nobody else's ids can come
        between the second comparison and the second try.
        """
        lanes = await self._pusher.plan(appends)
        for _ in range(MAX_ROUNDS):
            lanes = self._pusher.build(lanes)
            if not lanes:
                return
            rows = outcomes(await transaction.fetch("append", *append_columns(lanes)))
            done.append((lanes, rows))
            lanes = await self._pusher.refused(lanes, rows)
        raise Unavailable("too many servers write the same transaction ids at once")

    async def _sort_out(self, transaction: Transaction, rows: list[Record]) -> list[Staged]:
        """Return what can be appended; put the rest where it holds up nobody."""
        keyless = await self._keyless(rows)
        good: list[Staged] = []
        locked: list[Record] = []
        bad: list[tuple[Record, str]] = []
        for row in rows:
            try:
                staged = self._opened(row)
                reason = _reason_against(row, staged.payload)
            except EncryptionUnavailable:
                locked.append(row)
                continue
            except struct.error:
                reason = "the encrypted payload is cut off"
            if reason is not None:
                bad.append((row, reason))
            elif row["queue"] in keyless:
                locked.append(row)
            else:
                good.append(staged)
        await self._postpone(transaction, locked)
        await self._set_aside(transaction, bad)
        return good

    def _opened(self, row: Record) -> Staged:
        payload = self._vault.open_staged(
            row["queue"], row["partition"], row["codec"], row["payload"]
        )
        return Staged(row, payload)

    async def _keyless(self, rows: list[Record]) -> set[str]:
        """Return the queues that are encrypted while this server has no key."""
        if self._vault.keys:
            return set()
        queues = await self._catalog.queues(row["queue"] for row in rows)
        return {queue.name for queue in queues if queue.options.encryption_enabled}

    async def _postpone(self, transaction: Transaction, rows: list[Record]) -> None:
        if rows:
            columns = list(zip(*(tuple(row.values())[1:] for row in rows), strict=True))
            await transaction.execute("postpone_staged", *map(list, columns))
            _log.warning("%d staged messages wait for an encryption key", len(rows))

    async def _set_aside(self, transaction: Transaction, bad: list[tuple[Record, str]]) -> None:
        if bad:
            columns = list(zip(*((*row.values(), why) for row, why in bad), strict=True))
            await transaction.execute("refuse_staged", *map(list, columns))
            _log.warning("%d staged rows are no messages; see queen.staged_refused", len(bad))


def _net_s() -> float:
    # Servers that started together do not stay in step.
    return _NET_S * random.uniform(0.9, 1.1)  # noqa: S311


async def _until_due_s(transaction: Transaction) -> float:
    """Return how long to pause when nothing is due now."""
    due_s: float | None = (await transaction.fetch("next_due"))[0][0]
    return _net_s() if due_s is None else min(_net_s(), max(due_s, _SHORTEST_PAUSE_S))


def _reason_against(row: Record, payload: bytes) -> str | None:
    """Return why a staged row cannot be a message, or None."""
    if row["codec"] not in (CODEC_RAW, CODEC_SEALED):
        return f"codec {row['codec']} is not known"
    trace_id: str | None = row["trace_id"]
    return (
        reason_against_name("queue", row["queue"])
        or reason_against_name("partition", row["partition"])
        or reason_against_transaction_id(row["transaction_id"])
        or ("traceId is not a UUID" if trace_id is not None and not is_uuid(trace_id) else None)
        or reason_against_payload(payload)
        or _reason_against_syntax(payload)
    )


def _reason_against_syntax(payload: bytes) -> str | None:
    try:
        _json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return "payload is not valid JSON"
    return None


def appends_of(staged: Iterable[Staged]) -> list[Append]:
    """Return staged messages as appends, one for each partition, each in the given order."""
    lanes: dict[tuple[str, str], list[Staged]] = {}
    for one in staged:
        lanes.setdefault((one.row["queue"], one.row["partition"]), []).append(one)
    return [_append_of(queue, partition, group) for (queue, partition), group in lanes.items()]


def _append_of(queue: str, partition: str, staged: list[Staged]) -> Append:
    ids = [one.row["transaction_id"].encode() for one in staged]
    payloads = [as_line(one.payload) for one in staged]
    extras: dict[str, list[Any]] = {
        "traceId": [one.row["trace_id"] for one in staged],
        "producerSub": [one.row["producer_sub"] for one in staged],
    }
    rare = {name: column for name, column in extras.items() if any(column)}
    weight = sum(map(len, payloads)) + 64 * len(staged)
    return Append(queue, partition, ids, payloads, weight, rare or None)
