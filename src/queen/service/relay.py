"""The relay: from staging into the log.

SQL producers and scheduled messages are staged in a table (see 0003_staging.sql). The relay
takes what has committed and is due, in order, and appends it as a push would: with dedup by
transaction id, creating queues and partitions as they come.

Taking and appending are one transaction, so a message is in staging or in the log, never in
both and never in neither, wherever the server dies. Of several servers one works: the
others find the lock taken. The lock is the transaction's, so a server that hangs loses it
together with the work it guards.

A round is bounded in messages and in bytes. A row that cannot be a message, because somebody
wrote it past `queen.push`, is set aside with its reason and holds up nobody.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import Any

import msgspec

from queen.core.names import is_uuid, reason_against_name, reason_against_transaction_id
from queen.core.payload import as_line, reason_against_payload
from queen.errors import QueenError, Unavailable
from queen.service.append import Append
from queen.service.lane import Lane
from queen.service.push import MAX_ROUNDS, Outcome, Pusher, append_columns, outcomes
from queen.storage.database import Database, Record, Transaction

_log = logging.getLogger(__name__)

_MAX_MESSAGES = 1000
_MAX_BYTES = 8 * 1024 * 1024
# Notifications make it quick; this makes it certain.
_NET_S = 1.0
# A due time that has passed while we looked is looked at again, but not in a spin.
_SHORTEST_PAUSE_S = 0.001

_json = msgspec.json.Decoder(msgspec.Raw)


class Relay:
    def __init__(self, database: Database, pusher: Pusher) -> None:
        self._database = database
        self._pusher = pusher
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
        done: list[tuple[list[Lane], list[Outcome]]] = []
        async with self._database.transaction() as transaction:
            if not (await transaction.fetch("try_job", "relay"))[0][0]:
                return _net_s()
            rows = await transaction.fetch("take_staged", _MAX_MESSAGES, _MAX_BYTES)
            if not rows:
                return await _until_due_s(transaction)
            good = await self._set_aside(transaction, rows)
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

    async def _set_aside(self, transaction: Transaction, rows: list[Record]) -> list[Record]:
        """Put rows that cannot be messages where a person finds them; return the others."""
        reasons = [_reason_against(row) for row in rows]
        bad = [(row, why) for row, why in zip(rows, reasons, strict=True) if why is not None]
        if bad:
            columns = list(zip(*((*row.values(), why) for row, why in bad), strict=True))
            await transaction.execute("refuse_staged", *map(list, columns))
            _log.warning("%d staged rows are no messages; see queen.staged_refused", len(bad))
        return [row for row, why in zip(rows, reasons, strict=True) if why is None]


def _net_s() -> float:
    # Servers that started together do not stay in step.
    return _NET_S * random.uniform(0.9, 1.1)  # noqa: S311


async def _until_due_s(transaction: Transaction) -> float:
    """Return how long to pause when nothing is due now."""
    due_s: float | None = (await transaction.fetch("next_due"))[0][0]
    return _net_s() if due_s is None else min(_net_s(), max(due_s, _SHORTEST_PAUSE_S))


def _reason_against(row: Record) -> str | None:
    """Return why a staged row cannot be a message, or None."""
    if row["codec"] != 0:
        return f"codec {row['codec']} is not known"
    trace_id: str | None = row["trace_id"]
    return (
        reason_against_name("queue", row["queue"])
        or reason_against_name("partition", row["partition"])
        or reason_against_transaction_id(row["transaction_id"])
        or ("traceId is not a UUID" if trace_id is not None and not is_uuid(trace_id) else None)
        or reason_against_payload(row["payload"])
        or _reason_against_syntax(row["payload"])
    )


def _reason_against_syntax(payload: bytes) -> str | None:
    try:
        _json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return "payload is not valid JSON"
    return None


def appends_of(rows: Iterable[Record]) -> list[Append]:
    """Return staged rows as appends, one for each partition, each in the order of the rows."""
    lanes: dict[tuple[str, str], list[Record]] = {}
    for row in rows:
        lanes.setdefault((row["queue"], row["partition"]), []).append(row)
    return [_append_of(queue, partition, group) for (queue, partition), group in lanes.items()]


def _append_of(queue: str, partition: str, rows: list[Record]) -> Append:
    ids = [row["transaction_id"].encode() for row in rows]
    payloads = [as_line(row["payload"]) for row in rows]
    traces: list[Any] = [row["trace_id"] for row in rows]
    extras = {"traceId": traces} if any(traces) else None
    weight = sum(map(len, payloads)) + 64 * len(rows)
    return Append(queue, partition, ids, payloads, weight, extras)
