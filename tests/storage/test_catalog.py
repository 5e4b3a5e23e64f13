"""What a server remembers of queues, when answers of the database cross each other."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from queen.service.catalog import Catalog
from queen.service.events import Events
from queen.storage.database import Database


class Late:
    """A database whose first answer about queues comes when it is told to."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_first = True
        self.has_answered = asyncio.Event()
        self.may_go_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def fetch(self, name: str, *arguments: Any) -> Any:
        rows = await self._database.fetch(name, *arguments)
        if name == "queues_by_name" and self._is_first:
            self._is_first = False
            self.has_answered.set()
            await self.may_go_on.wait()
        return rows


async def test_a_queue_that_is_made_while_somebody_asks_for_it_is_kept(
    database: Database, queue: str
) -> None:
    late = Late(database)
    catalog = Catalog(cast("Database", late), Events())
    asking = asyncio.create_task(catalog.queue(queue))
    await late.has_answered.wait()
    await catalog.resolve([(queue, "Default")])
    late.may_go_on.set()
    found = await asking
    assert found is not None
    assert found.name == queue
    assert catalog.known(queue, "Default") is not None
