"""XACK, XACKDEL, XNACK: what a consumer says about what it got."""

from __future__ import annotations

from queen.streambroker.engine.arguments import (
    SYNTAX,
    group_or_none,
    no_group,
    parse_counted_ids,
    parse_ids,
    parse_integer,
)
from queen.streambroker.engine.commands.deleting import NO_ENTRY, delete, parse_deletion
from queen.streambroker.engine.keyspace import Arguments, Keyspace, command
from queen.streambroker.replies import Failure, Reply

_FATAL_COUNT = (1 << 63) - 1


@command("XACK", -4)
def xack(space: Keyspace, command: Arguments, now: int) -> Reply:
    pair = group_or_none(space, command[1], command[2], now)
    if pair is None:
        return 0
    stream, group = pair
    ids = [entry_id for entry_id in parse_ids(command[3:]) if entry_id in group.pending.rows]
    if not ids:
        return 0
    acknowledged = stream.acknowledge(group.name, ids)
    if group.held or space.limits.max_pending:
        # Entries of the same keys, or a consumer that was full, may have their turn now.
        space.ready.add(command[1])
    return acknowledged


@command("XACKDEL", -6)
def xackdel(space: Keyspace, command: Arguments, now: int) -> Reply:
    references, ids = parse_deletion(command, 3)
    pair = group_or_none(space, command[1], command[2], now)
    if pair is None:
        return [NO_ENTRY for _ in ids]
    stream, group = pair
    replies: list[Reply] = []
    for entry_id in ids:
        if entry_id not in group.pending.rows:
            replies.append(NO_ENTRY)
            continue
        stream.acknowledge(group.name, [entry_id])
        # One that is gone already is as good as deleted now.
        replies.append(max(1, delete(stream, entry_id, references)))
    if group.held or space.limits.max_pending:
        space.ready.add(command[1])
    return replies


class _Nack:
    """The options of a nack."""

    __slots__ = ("count", "delay_ms", "ids", "is_forced")

    def __init__(self, command: Arguments) -> None:
        self.ids: list[int] | None = None
        self.count: int | None = None
        self.is_forced = False
        self.delay_ms = 0
        at = 4
        while at < len(command):
            option, more = command[at].upper(), len(command) - 1 - at
            if option == b"IDS" and self.ids is None:
                self.ids, at = parse_counted_ids(command, at)
            elif option == b"RETRYCOUNT" and more:
                self.count = parse_integer(command[at + 1])
                if self.count < 0:
                    raise Failure("ERR Invalid RETRYCOUNT option argument for XNACK")
                at += 2
            elif option == b"DELAY" and more:
                self.delay_ms = parse_integer(command[at + 1])
                if self.delay_ms < 0:
                    raise Failure("ERR Invalid DELAY option argument for XNACK")
                at += 2
            elif option == b"FORCE":
                self.is_forced = True
                at += 1
            else:
                raise SYNTAX
        if self.ids is None:
            raise SYNTAX


def _count_after(mode: bytes, count: int) -> int:
    if mode == b"SILENT":
        return max(0, count - 1)
    return _FATAL_COUNT if mode == b"FATAL" else count


@command("XNACK", -7)
def xnack(space: Keyspace, command: Arguments, now: int) -> Reply:
    key, name, mode = command[1], command[2], command[3].upper()
    if mode not in {b"SILENT", b"FAIL", b"FATAL"}:
        raise SYNTAX
    nack = _Nack(command)
    pair = group_or_none(space, key, name, now)
    if pair is None:
        raise no_group(key, name)
    stream, group = pair
    assert nack.ids is not None
    ids: list[int] = []
    counts: list[int] = []
    for entry_id in dict.fromkeys(nack.ids):
        row = group.pending.rows.get(entry_id)
        if row is None and not (nack.is_forced and entry_id in stream.entries):
            continue
        ids.append(entry_id)
        before = 0 if row is None else row.count
        counts.append(_count_after(mode, before) if nack.count is None else nack.count)
    if ids:
        # Without a delay anybody may claim it, however long it is to have been idle.
        time = now + nack.delay_ms if nack.delay_ms else 0
        stream.assign(name, None, ids, [time] * len(ids), counts)
        space.ready.add(key)
    return len(ids)
