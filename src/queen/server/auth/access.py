"""Who is asking, and what they may do.

Every route declares the role it needs; a route without one cannot be added. Who the caller
is, is found out once for each request, before its handler runs.

    open    anybody: liveness, the API document
    read    looks, changes nothing
    write   also produces and consumes
    admin   also deletes, and changes what others depend on

A caller may be limited to some namespaces. Such a caller reaches only routes that are
declared `scoped`; these ask `queen.service.scope` for the queues they name, and what the
caller may not see does not exist for it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Role(IntEnum):
    """A higher role may do all that a lower one may."""

    OPEN = 0
    READ = 1
    WRITE = 2
    ADMIN = 3


# The roles as tokens name them.
ROLE_WORDS = {"read-only": Role.READ, "read-write": Role.WRITE, "admin": Role.ADMIN}


class Caller(NamedTuple):
    """The one who sent a request."""

    # The subject of the token; None when there is none.
    subject: str | None
    role: Role
    # The only namespaces the caller may see; None means all.
    namespaces: frozenset[str] | None = None
    # Which token it was, for the audit trail: `token <id>` or `jwt`.
    credential: str = ""

    def sees(self, namespace: str) -> bool:
        """Return whether queues of a namespace exist for this caller. Names are literal."""
        return self.namespaces is None or namespace in self.namespaces


# Without authentication everybody is this one; the server then listens on loopback only.
TRUSTED = Caller(None, Role.ADMIN)
