"""Whether groups are shared. The database knows; who claims finds out there."""

from __future__ import annotations

from collections.abc import Sequence

from queen.errors import Conflict
from queen.service.events import Events
from queen.storage.database import Database


class Kinds:
    def __init__(self, database: Database, events: Events) -> None:
        self._database = database
        self._events = events

    async def is_shared(self, group_id: int) -> bool:
        return bool(await self._database.findval("is_shared", group_id))

    async def set(self, group_ids: Sequence[int], *, shared: bool) -> None:
        """Let groups be shared, or read in order, from now on. They keep their place: what is
        leased stays so, and what is not done comes.

        Raises `Conflict` for a group that can only read in order.
        """
        if shared and (name := await self._database.findval("query_group_among", list(group_ids))):
            raise Conflict(
                f"group {name!r} is that of a query of the streaming SDK, whose state needs "
                "messages in order; it cannot be shared"
            )
        rows = await self._database.fetch("set_shared", list(group_ids), shared)
        for row in rows:
            self._events.group_resumed(row["queue_id"], row["id"])
