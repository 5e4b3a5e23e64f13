"""Which groups still need an entry, and what becomes of their rows when it is deleted.

KEEPREF   rows stay where they are
DELREF    rows of every group go too
ACKED     only what every group has read and acknowledged is deleted
"""

from __future__ import annotations

from collections.abc import Iterable

from queen.streambroker.engine.state.stream import Stream

REFERENCES = frozenset({b"KEEPREF", b"DELREF", b"ACKED"})


def is_needed(stream: Stream, entry_id: int) -> bool:
    """Whether a group has an entry pending, or has not read it yet."""
    return any(
        entry_id in group.pending.rows or group.last_id < entry_id or entry_id in group.held
        for group in stream.groups.values()
    )


def drop_references(stream: Stream, ids: Iterable[int]) -> None:
    """Take entries off the pending lists of all groups."""
    wanted = list(ids)
    for group in stream.groups.values():
        pending = [entry_id for entry_id in wanted if entry_id in group.pending.rows]
        if pending:
            stream.acknowledge(group.name, pending)
