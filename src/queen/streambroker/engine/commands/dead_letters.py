"""Dead letters: XGROUP SETLIMIT decides when, `<stream>.dlq` keeps them, XREDRIVE brings them
back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from queen.streambroker.engine.arguments import SYNTAX, parse_integer
from queen.streambroker.engine.ids import MAX_ID, make_id, text_of
from queen.streambroker.engine.keyspace import Arguments, Keyspace, command
from queen.streambroker.engine.state.groups import Group
from queen.streambroker.engine.state.stream import Stream
from queen.streambroker.replies import Failure, Reply

SUFFIX = b".dlq"
# What is said about a dead letter, behind its own fields.
_NOTES = (b"dlq-stream", b"dlq-group", b"dlq-id", b"dlq-deliveries")


def split_by_limit(stream: Stream, group: Group, ids: Sequence[int]) -> tuple[list[int], list[int]]:
    """Part pending entries into those that may be delivered again, and those that may not."""
    if not group.limit:
        return list(ids), []
    rows = group.pending.rows
    dead = [
        entry_id
        for entry_id in ids
        if rows[entry_id].count >= group.limit and entry_id in stream.entries
    ]
    gone = set(dead)
    return [entry_id for entry_id in ids if entry_id not in gone], dead


def prepare_to_retire(space: Keyspace, stream: Stream, ids: Sequence[int], now: int) -> None:
    """Have in memory what becomes a dead letter and where it goes, before anything changes."""
    for entry_id in ids:
        space.fields_in_memory(stream, entry_id)
    if ids:
        space.stream(stream.name + SUFFIX, now)


def retire(space: Keyspace, stream: Stream, group: Group, ids: Sequence[int], now: int) -> None:
    """Put entries among the dead letters of their stream, and take them off the pending list."""
    if not ids:
        return
    bodies = [space.fields_in_memory(stream, entry_id) for entry_id in ids]
    name = stream.name + SUFFIX
    letters = space.stream(name, now) or space.create(name)
    for entry_id, body in zip(ids, bodies, strict=True):
        count = group.pending.rows[entry_id].count
        notes = (stream.name, group.name, text_of(entry_id), b"%d" % count)
        said = [part for pair in zip(_NOTES, notes, strict=True) for part in pair]
        _add(letters, [*body, *said], stream.keys.get(entry_id), now)
    stream.acknowledge(group.name, list(ids))
    space.ready.update((name, stream.name))


def _add(stream: Stream, fields: list[bytes], key: bytes | None, now: int) -> None:
    if stream.last_id == MAX_ID:
        raise Failure("ERR The stream has exhausted the last possible ID, unable to add more items")
    stream.add(max(stream.last_id + 1, make_id(now, 0)), fields, key)


@command("XREDRIVE", -2)
def xredrive(space: Keyspace, command: Arguments, now: int) -> Reply:
    count = None
    if len(command) > 2:
        if len(command) != 4 or command[2].upper() != b"COUNT":
            raise SYNTAX
        count = max(0, parse_integer(command[3]))
    key = command[1]
    letters = space.stream(key + SUFFIX, now)
    if letters is None:
        return 0
    places = list(islice(letters.entries.between(0, MAX_ID), count))
    bodies = [space.fields_in_memory(letters, place.entry_id) for place in places]
    if not places:
        return 0
    stream = space.stream(key, now) or space.create(key)
    for place, body in zip(places, bodies, strict=True):
        _add(stream, _without_notes(body), letters.keys.get(place.entry_id), now)
    letters.remove([place.entry_id for place in places])
    space.ready.add(key)
    return len(places)


def _without_notes(fields: list[bytes]) -> list[bytes]:
    notes = 2 * len(_NOTES)
    if len(fields) > notes and tuple(fields[-notes::2]) == _NOTES:
        return fields[:-notes]
    return fields
