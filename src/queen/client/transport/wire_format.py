"""Names and times in Python's spelling and in that of the wire."""

from __future__ import annotations

from datetime import UTC, datetime


def camel(name: str) -> str:
    """Return a name as it is on the wire.

    >>> camel("lease_time"), camel("leaseTime")
    ('leaseTime', 'leaseTime')
    """
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def instant(at: datetime | str) -> str:
    """Return a time as it is on the wire. One without a zone is local, as everywhere in Python."""
    return at if isinstance(at, str) else at.astimezone(UTC).isoformat()
