"""Who is asking, and what they may do.

Every route declares the role it needs; a route without one cannot be added. Who the caller
is, is found out once for each request, before its handler runs.

    open    anybody: liveness, the API document
    read    looks, changes nothing
    write   also produces and consumes
    admin   also deletes, and changes what others depend on
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


class Caller(NamedTuple):
    """The one who sent a request."""

    # The subject of the token; None when there is none.
    subject: str | None
    role: Role
    # The only namespaces the caller may see; None means all.
    namespaces: frozenset[str] | None = None


# Without authentication everybody is this one; the server then listens on loopback only.
TRUSTED = Caller(None, Role.ADMIN)
