"""Consumers without a group: what the wire calls them, and what people do.

People see `(no group)`, and may write it wherever a group is named. Programs that read NDJSON get
the name of the wire, which is the one that the HTTP API takes.
"""

from __future__ import annotations

from queen.core.names import QUEUE_MODE_GROUP

NO_GROUP = "(no group)"


def shown_name(group: str) -> str:
    """Return the name of a group as people see it."""
    return NO_GROUP if group == QUEUE_MODE_GROUP else group


def wire_name(group: str | None) -> str | None:
    """Return the name of a group as the server knows it."""
    return QUEUE_MODE_GROUP if group == NO_GROUP else group


def with_shown_names(text: str) -> str:
    """Return a sentence, which may be the server's, as people should read it."""
    return text.replace(QUEUE_MODE_GROUP, NO_GROUP)
