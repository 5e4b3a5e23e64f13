"""The ticker: pushes what schedules say, once for each tick, on any number of servers.

The row of a schedule says which tick comes next. A round takes the schedules that are due by the
database's clock, puts a message for each tick into the outbox, and moves their rows on, in one
transaction: a tick is in the row or in the outbox, never in both and never in neither. From there
the relay takes it, as anything that is due. Its transaction id is made of the schedule and the
tick, so that it can be known again.

A tick may be found late, because no server ran, or pushes were held back. What happens then is
for its schedule to say (`catchUp`). A tick that is less than a minute late is on time.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta

from queen.core.tasks.cron import BadCron, latest_ticks, parse_cron, parse_zone
from queen.core.tasks.jobs import tick_id
from queen.errors import QueenError
from queen.service.admin.maintenance import Maintenance
from queen.service.outages import level_of
from queen.service.outbox.scheduled import Scheduled, outbox_columns
from queen.storage.database import Database, Record, Transaction

_log = logging.getLogger(__name__)

_SCHEDULES_AT_ONCE = 100
_ON_TIME = timedelta(seconds=60)
# Changes are told; this is for those that were not heard.
_NET_S = 5.0
_SHORTEST_PAUSE_S = 0.001
# A schedule that this server cannot read, because it knows no such zone, is left so long.
_HELD_S = 60.0


class Ticker:
    def __init__(self, database: Database, maintenance: Maintenance) -> None:
        self._database = database
        self._maintenance = maintenance
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look now instead of at the next time."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            pause_s = await self._tick_all()
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _tick_all(self) -> float:
        """Push all that is due; return how long to pause."""
        try:
            while await self.tick_some():
                pass
            due_s: float | None = await self._database.fetchval("next_tick_due")
            return _NET_S if due_s is None else min(_NET_S, max(due_s, _SHORTEST_PAUSE_S))
        except QueenError as error:
            _log.log(level_of(error), "schedules: %s", error)
        except Exception:
            _log.exception("a round of the schedules failed")
        return _NET_S

    async def tick_some(self) -> bool:
        """Do one round; return whether there may be more to do."""
        if not self._maintenance.pushes_are_stored:
            return False
        async with self._database.transaction() as transaction:
            rows = await transaction.fetch("due_schedules", _SCHEDULES_AT_ONCE)
            for row in rows:
                await self._tick(transaction, row)
        return len(rows) == _SCHEDULES_AT_ONCE

    async def _tick(self, transaction: Transaction, row: Record) -> None:
        try:
            due, following, missed = due_ticks(row)
        except BadCron as reason:
            _log.warning("schedule %r is left to other servers: %s", row["name"], reason)
            await transaction.execute("hold_schedule", row["id"], _HELD_S)
            return
        if due:
            messages = [_message(row, tick) for tick in due]
            await transaction.execute("stage", *outbox_columns(messages))
        last = due[-1] if due else None
        await transaction.execute("tick_schedule", row["id"], last, len(due), missed, following)


def due_ticks(row: Record) -> tuple[list[datetime], datetime, int]:
    """Return the ticks to push now, the one that comes next, and how many are left out at least."""
    cron, zone = parse_cron(row["cron"]), parse_zone(row["zone"])
    limit = row["catch_up_limit"] if row["catch_up"] == "all" else 1
    now: datetime = row["now"]
    # One more than wanted, to know whether any is left out.
    due, following = latest_ticks(cron, zone, row["next_at"], now, limit + 1)
    wanted = due[-limit:]
    if row["catch_up"] == "none":
        wanted = [tick for tick in wanted if now - tick < _ON_TIME]
    return wanted, following, len(due) - len(wanted)


def _message(row: Record, tick: datetime) -> Scheduled:
    return Scheduled(
        row["queue"],
        row["partition"],
        tick_id(row["name"], tick, row["partition"]),
        None,
        row["payload"],
        # By the clock, and not by the calendar: they differ when a test has let time pass. Ticks
        # of a schedule keep their order.
        row["due_at"] + (tick - row["next_at"]),
        row["producer_sub"],
        row["codec"],
    )
