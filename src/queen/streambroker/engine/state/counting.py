"""How many entries a group has read, as Redis estimates it, and how many are left, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from queen.streambroker.engine.state.groups import Group

if TYPE_CHECKING:
    from queen.streambroker.engine.state.stream import Stream


def has_deletions_from(stream: Stream, start: int) -> bool:
    return bool(stream.entries.length and stream.max_deleted and stream.max_deleted >= start)


def pass_entries(stream: Stream, group: Group, ids: Sequence[int]) -> None:
    """Let a group go on behind entries, and count them as read."""
    first = stream.entries.first_id() if ids else 0
    for number, entry_id in enumerate(ids):
        if (
            group.read is not None
            and group.last_id >= first
            and not has_deletions_from(stream, group.last_id)
        ):
            # Then it is so for all that follow.
            group.read += len(ids) - number
            group.last_id = ids[-1]
            return
        if stream.added:
            group.read = read_up_to(stream, entry_id)
        group.last_id = entry_id


def read_up_to(stream: Stream, entry_id: int) -> int | None:
    """Estimate how many entries were ever added up to an id."""
    if not stream.added:
        return 0
    length = stream.entries.length
    if not length and entry_id <= stream.last_id:
        return stream.added
    if entry_id == stream.last_id and entry_id >= stream.max_deleted:
        return stream.added
    if entry_id > stream.last_id or (entry_id and entry_id < stream.max_deleted):
        return None
    return _read_at_beginning(stream, entry_id)


def _read_at_beginning(stream: Stream, entry_id: int) -> int | None:
    """Estimate the same for an id that is not beyond the first entry, if nothing was deleted."""
    first = stream.entries.first_id()
    if entry_id > first or (stream.max_deleted and stream.max_deleted >= first):
        return None
    return stream.added - stream.entries.length + (entry_id == first)


def lag_of(stream: Stream, group: Group) -> int:
    """Count the entries that a group has yet to get."""
    held = sum(entry_id in stream.entries for entry_id in group.held)
    return stream.entries.count_after(group.last_id) + held
