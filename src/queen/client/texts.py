"""Names in Python's spelling and in that of the wire."""

from __future__ import annotations


def camel(name: str) -> str:
    """Return a name as it is on the wire.

    >>> camel("lease_time"), camel("leaseTime")
    ('leaseTime', 'leaseTime')
    """
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
