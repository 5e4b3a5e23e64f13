"""The report of a server: what it has counted, written every few seconds.

The numbers are this server's own for the minute: absolute ones, so that a write whose outcome
is unknown can be repeated and nothing is counted twice.

    counters ──3 s──▶ queen.activity (queue, minute, server) ──▶ throughput, analytics
             ──────▶ queen.servers.totals                    ──▶ totals of the cluster

What is counted between two writes belongs to the minute of the second one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime

from queen.errors import QueenError, Unavailable
from queen.service.outages import level_of
from queen.service.stats.activity import Activity, Count
from queen.storage.database import Database, Transaction

_log = logging.getLogger(__name__)

_FLUSH_INTERVAL_S = 3.0
_READ_STALE_S = 0.25
_FORGET_ROWS = 10_000

# Writes more about this server (its id) and minute in the transaction of the report.
More = Callable[[Transaction, int, datetime], Awaitable[None]]


class ActivityReport:
    def __init__(
        self,
        database: Database,
        activity: Activity,
        parked: Callable[[], dict[int, int]] = dict,
        more: More | None = None,
        kept_days: int = 90,
    ) -> None:
        self._database = database
        self._activity = activity
        # How many polls wait for messages of each queue.
        self._parked = parked
        self._more = more
        self._kept_days = kept_days
        self.server_id: int | None = None
        self._flushed = float("-inf")
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        # At once when the server starts: others tell only those of whom they know.
        while True:
            try:
                await self.flush()
            except QueenError as error:
                _log.log(level_of(error), "activity could not be written: %s", error)
            except Exception:
                _log.exception("activity could not be written")
            await asyncio.sleep(_FLUSH_INTERVAL_S)

    async def settle(self) -> None:
        """Write what is not written yet, for somebody who is about to read it."""
        if self._activity.is_touched and time.monotonic() - self._flushed > _READ_STALE_S:
            await self.flush()

    async def flush(self) -> None:
        async with self._lock:
            self._flushed = time.monotonic()
            async with self._database.transaction() as transaction:
                await transaction.execute("commit_lazily")
                server_id = await self._join(transaction)
                counts = await self._write(transaction, server_id)
            # Only now: a row that was rolled back must not be written to again.
            self.server_id = server_id
            self._activity.note_report(counts)

    async def _join(self, transaction: Transaction) -> int:
        if self.server_id is not None:
            return self.server_id
        joined: int = await transaction.fetchval("join_servers", *self._activity.name)
        return joined

    async def _write(self, transaction: Transaction, server_id: int) -> list[Count]:
        now: datetime = await transaction.fetchval("now")
        minute = now.replace(second=0, microsecond=0)
        counts = self._activity.take(self._parked())
        try:
            if counts:
                await self._write_queues(transaction, server_id, minute, counts)
            totals = self._activity.totals_with(counts)
            if await transaction.findval("report_server", server_id, totals) is None:
                # Forgotten while it was asleep for months; it joins again with the next report.
                self.server_id = None
                raise Unavailable("this server was forgotten")
            await self._activity.flows.report(transaction, server_id, minute)
            if self._more is not None:
                await self._more(transaction, server_id, minute)
        except BaseException:
            self._activity.put_back(counts)
            raise
        return counts

    async def _write_queues(
        self, transaction: Transaction, server_id: int, minute: datetime, counts: list[Count]
    ) -> None:
        rows = []
        for _, counters, values in counts:
            counters.turn_to(minute)
            done = [now - base for now, base in zip(values, counters.base, strict=True)]
            rows.append((*done, counters.bucket_lag_max_ms, counters.bucket_parked))
        columns = [list(column) for column in zip(*rows, strict=True)]
        queue_ids = [count.queue_id for count in counts]
        written = await transaction.fetch("report_activity", minute, server_id, queue_ids, *columns)
        for queue_id in set(queue_ids) - {row[0] for row in written}:
            self._activity.forget(queue_id)

    async def forget_old(self, transaction: Transaction) -> bool:
        """Remove numbers about the past that are older than they are kept."""
        row = await transaction.fetchrow("forget_activity", self._kept_days, _FORGET_ROWS)
        await transaction.execute("forget_servers", self._kept_days)
        await transaction.execute("forget_flows")
        return bool(max(row) == _FORGET_ROWS)
