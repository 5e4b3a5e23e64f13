"""XDEL and XDELEX: entries that go one by one."""

from __future__ import annotations

from queen.streambroker.engine.arguments import SYNTAX, parse_counted_ids, parse_ids
from queen.streambroker.engine.keyspace import Arguments, Keyspace, command
from queen.streambroker.engine.references import REFERENCES, drop_references, is_needed
from queen.streambroker.engine.state.stream import Stream
from queen.streambroker.replies import Reply

NO_ENTRY, DELETED, KEPT = -1, 1, 2


@command("XDEL", -3)
def xdel(space: Keyspace, command: Arguments, now: int) -> Reply:
    stream = space.stream(command[1], now)
    if stream is None:
        return 0
    ids = [entry_id for entry_id in parse_ids(command[2:]) if entry_id in stream.entries]
    return stream.remove(ids) if ids else 0


@command("XDELEX", -5)
def xdelex(space: Keyspace, command: Arguments, now: int) -> Reply:
    references, ids = parse_deletion(command, 2)
    stream = space.stream(command[1], now)
    if stream is None:
        return [NO_ENTRY for _ in ids]
    return [delete(stream, entry_id, references) for entry_id in ids]


def parse_deletion(command: Arguments, at: int) -> tuple[bytes, list[int]]:
    """Read `[KEEPREF | DELREF | ACKED] IDS n id …`, in either order."""
    references, ids = None, None
    while at < len(command):
        option = command[at].upper()
        if option in REFERENCES and references is None:
            references = option
            at += 1
        elif option == b"IDS" and ids is None:
            ids, at = parse_counted_ids(command, at)
        else:
            raise SYNTAX
    if ids is None:
        raise SYNTAX
    return references or b"KEEPREF", ids


def delete(stream: Stream, entry_id: int, references: bytes) -> int:
    """Delete one entry; returns what became of it."""
    if references == b"DELREF":
        drop_references(stream, [entry_id])
    if entry_id not in stream.entries:
        return NO_ENTRY
    if references == b"ACKED" and is_needed(stream, entry_id):
        return KEPT
    stream.remove([entry_id])
    return DELETED
