"""Connections that are free and stay at hand for the next statement.

To give a connection back to the driver's pool and to take it again costs a task, several futures
and turns of the event loop: more than a small statement does. So whoever has used one with success
leaves it here, and the next one takes the last that was left, whose caches are warm. Nobody waits
here: who finds none goes to the pool, and while somebody waits there, all go back to it.
"""

from __future__ import annotations

import contextlib
from typing import Generic, Protocol, TypeVar

import asyncpg

# Now and then one goes back to the pool all the same: the pool looks it over, and replaces those
# that are old.
_TURNS = 1000


class Closable(Protocol):
    def is_closed(self) -> bool: ...

    def terminate(self) -> None: ...


C = TypeVar("C", bound=Closable)


class AtHand(Generic[C]):
    def __init__(self) -> None:
        self._connections: list[C] = []
        self._turns = 0
        # How many wait for the pool.
        self.wanted = 0

    def __len__(self) -> int:
        return len(self._connections)

    def take(self) -> C | None:
        """Take one that is open, if there is one."""
        while self._connections:
            connection = self._connections.pop()
            # One that broke meanwhile the pool has taken back, or does so now.
            with contextlib.suppress(asyncpg.InterfaceError):
                if not connection.is_closed():
                    return connection
                connection.terminate()
        return None

    def keep(self, connection: C) -> bool:
        """Keep one that has done well; return false when it has to go back to the pool."""
        self._turns += 1
        if self.wanted or self._turns % _TURNS == 0:
            return False
        self._connections.append(connection)
        return True

    def take_all(self) -> list[C]:
        connections, self._connections = self._connections, []
        return connections
