"""Holders: which consumer holds a lease, by name.

A consumer may say its name with a pop. The id of its lease then ends with a number that is made of
the name, and the name of each number is kept in a table, written beside the requests when a name is
first heard here. So a claim writes nothing more than it does for a consumer without a name, and any
server can say who holds what. That a nameless lease ends like a named one is one chance in 2^48 for
each name; it would show a wrong name, and do no more.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict

from queen.core.ids import consumer_number, new_lease, new_lease_of
from queen.errors import QueenError
from queen.storage.database import Database, Transaction

JOB = "forget_consumers"
JOB_INTERVAL_S = 3600.0
# Names that are remembered here, and how often each is written again.
_MAX_NAMES = 10_000
_AGAIN_S = 3600.0
_RETRY_S = 1.0
# The longest lease is a day.
_FORGET_AFTER_DAYS = 2
_FORGET_BATCH = 1000


class Holders:
    def __init__(self, database: Database) -> None:
        self._database = database
        # When each name has to be written again.
        self._due: OrderedDict[str, float] = OrderedDict()
        self._unwritten: dict[int, str] = {}
        self._news = asyncio.Event()

    def new_lease(self, consumer: str | None) -> uuid.UUID:
        """Return the id of a lease for a consumer that may have a name."""
        if consumer is None:
            return new_lease()
        number = consumer_number(consumer)
        now = time.monotonic()
        if self._due.get(consumer, 0.0) <= now:
            self._due[consumer] = now + _AGAIN_S
            self._due.move_to_end(consumer)
            if len(self._due) > _MAX_NAMES:
                self._due.popitem(last=False)
            if len(self._unwritten) < _MAX_NAMES:
                self._unwritten[number] = consumer
            self._news.set()
        return new_lease_of(number)

    async def run(self) -> None:
        """Write names down as they come."""
        while True:
            await self._news.wait()
            self._news.clear()
            names, self._unwritten = self._unwritten, {}
            try:
                await self._database.execute("note_consumers", list(names), list(names.values()))
            except QueenError:
                # The database is away: what came meanwhile is newer.
                self._unwritten = {**names, **self._unwritten}
                self._news.set()
                await asyncio.sleep(_RETRY_S)

    async def forget_old(self, transaction: Transaction) -> bool:
        """Drop some names that nobody has used for long; return whether there are more."""
        forgotten = await transaction.fetchval(
            "forget_consumers", _FORGET_AFTER_DAYS, _FORGET_BATCH
        )
        return bool(forgotten == _FORGET_BATCH)
