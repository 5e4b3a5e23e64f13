"""XPENDING: what is pending in a group, in sum or row by row."""

from __future__ import annotations

from queen.streambroker.engine.arguments import SYNTAX, group_of, parse_integer
from queen.streambroker.engine.ids import parse_end, parse_start, text_of
from queen.streambroker.engine.keyspace import Arguments, Keyspace, command
from queen.streambroker.engine.state.groups import Group
from queen.streambroker.replies import NO_ARRAY, Reply


@command("XPENDING", -3)
def xpending(space: Keyspace, command: Arguments, now: int) -> Reply:
    if len(command) == 3:
        _, group = group_of(space, command[1], command[2], now)
        return _summary(group)
    if not 6 <= len(command) <= 9:
        raise SYNTAX
    min_idle, at = 0, 3
    if command[3].upper() == b"IDLE":
        min_idle = parse_integer(command[4])
        if len(command) < 8:
            raise SYNTAX
        at = 5
    count = max(0, parse_integer(command[at + 2]))
    start, end = parse_start(command[at]), parse_end(command[at + 1])
    consumer = command[at + 3] if at + 3 < len(command) else None
    _, group = group_of(space, command[1], command[2], now)
    return _rows(group, start, end, count, consumer, min_idle, now)


def _summary(group: Group) -> Reply:
    first, last = group.pending.first(), group.pending.last()
    if first is None or last is None:
        return [0, None, None, NO_ARRAY]
    consumers: list[Reply] = [
        [name, b"%d" % len(consumer.pending)]
        for name, consumer in sorted(group.consumers.items())
        if consumer.pending
    ]
    return [len(group.pending), text_of(first), text_of(last), consumers]


def _rows(
    group: Group,
    start: int,
    end: int,
    count: int,
    consumer: bytes | None,
    min_idle: int,
    now: int,
) -> list[Reply]:
    replies: list[Reply] = []
    for entry_id in _candidates(group, start, consumer):
        if entry_id > end or len(replies) >= count:
            break
        row = group.pending.rows[entry_id]
        idle = now - row.time
        # One that was released for later is idle from then on, and pending all the time.
        if min_idle > 0 and idle < min_idle:
            continue
        # Nobody has one that was released; it is idle for nobody's time.
        name, idle = (b"", -1) if row.consumer is None else (row.consumer.name, max(0, idle))
        replies.append([text_of(entry_id), name, idle, row.count])
    return replies


def _candidates(group: Group, start: int, consumer: bytes | None) -> list[int]:
    if consumer is None:
        return list(group.pending.ids_from(start))
    owner = group.consumers.get(consumer)
    return [] if owner is None else sorted(each for each in owner.pending if each >= start)
