"""Maintenance: switches that hold back pushes or pops on every server of a database.

Pushes then wait in the spools of the servers; what no spool takes (transactions, what is
scheduled, what sinks publish) is refused.

The switches are rows in `system_state`. A server is told by a signal when one is turned and
looks by itself twice a second, so all servers follow within a second. While the database
does not answer, what was last known holds; a server that has never heard stores nothing.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from queen.errors import InMaintenance, QueenError, Unavailable
from queen.service.events import Events
from queen.storage.database import Database

_log = logging.getLogger(__name__)

_INTERVAL_S = 0.5

PUSH = "maintenance_mode"
POP = "pop_maintenance_mode"


class _Switch(msgspec.Struct):
    enabled: bool = False


_switch = msgspec.json.Decoder(_Switch)


class Maintenance:
    def __init__(self, database: Database, events: Events) -> None:
        self._database = database
        self._events = events
        self.pushes_are_held = False
        self.pops_are_held = False
        # A server that is started while the database is away does not know how they stand.
        self._is_known = False

    @property
    def pushes_are_stored(self) -> bool:
        """Whether it is known that nobody holds messages back."""
        return self._is_known and not self.pushes_are_held

    def check_push(self) -> None:
        """Raise when messages are held back, for those that no spool takes."""
        if self.pushes_are_held:
            raise InMaintenance
        if not self._is_known:
            raise Unavailable("PostgreSQL has not said yet whether messages are held back")

    async def refresh(self) -> None:
        """Ask the database how the switches stand."""
        rows = await self._database.fetch("read_state")
        switches = {row["key"]: row["value"] for row in rows if row["key"] in (PUSH, POP)}
        on = {key: _switch.decode(value).enabled for key, value in switches.items()}
        self.pushes_are_held = on.get(PUSH, False)
        self._is_known = True
        stopped = on.get(POP, False) and not self.pops_are_held
        self.pops_are_held = on.get(POP, False)
        if stopped:
            # Those that wait must not wait on.
            self._events.pops_stopped()

    async def turn(self, switch: str, enabled: bool) -> None:
        """Turn a switch for all servers."""
        value = msgspec.json.encode(_Switch(enabled)).decode()
        await self._database.execute("write_state", switch, value)
        await self.refresh()
        self._events.maintenance_turned()

    async def run(self) -> None:
        """Follow what other servers turned, told or not."""
        while True:
            try:
                await self.refresh()
            except QueenError as error:
                _log.debug("maintenance: %s", error)
            await asyncio.sleep(_INTERVAL_S)
