"""XCLAIM and XAUTOCLAIM: taking over what others left pending."""

from __future__ import annotations

from queen.streambroker.engine.arguments import SYNTAX, group_of, parse_integer, see_consumer
from queen.streambroker.engine.commands.dead_letters import (
    prepare_to_retire,
    retire,
    split_by_limit,
)
from queen.streambroker.engine.commands.delivering import room_of, shown_entry
from queen.streambroker.engine.ids import parse_id, parse_start, text_of
from queen.streambroker.engine.keyspace import Arguments, Keyspace, command, shown
from queen.streambroker.engine.state.groups import Group, Row
from queen.streambroker.engine.state.stream import Stream
from queen.streambroker.replies import Failure, Reply

_DEFAULT_COUNT = 100
# So many rows are looked at for each that is asked for.
_ATTEMPTS = 10


class _Claim:
    """The options of a claim by ids."""

    __slots__ = ("count", "ids", "is_forced", "last_id", "only_ids", "time")

    def __init__(self, command: Arguments, now: int) -> None:
        self.is_forced = False
        self.only_ids = False
        self.count: int | None = None
        self.last_id = 0
        self.time: int | None = None
        self.ids, at = _leading_ids(command, 5)
        while at < len(command):
            at += self._take(command, at, now)

    def _take(self, command: Arguments, at: int, now: int) -> int:
        option, more = command[at].upper(), len(command) - 1 - at
        if option == b"FORCE":
            self.is_forced = True
            return 1
        if option == b"JUSTID":
            self.only_ids = True
            return 1
        if not more:
            raise Failure(f"ERR Unrecognized XCLAIM option '{shown(command[at])}'")
        if option == b"LASTID":
            self.last_id = parse_id(command[at + 1])
        elif option in {b"IDLE", b"TIME", b"RETRYCOUNT"}:
            error = f"ERR Invalid {option.decode()} option argument for XCLAIM"
            value = parse_integer(command[at + 1], error)
            if option == b"RETRYCOUNT":
                # A negative one is as none.
                self.count = value if value >= 0 else None
            else:
                self.time = now - value if option == b"IDLE" else value
        else:
            raise Failure(f"ERR Unrecognized XCLAIM option '{shown(command[at])}'")
        return 2

    def time_of(self, now: int) -> int:
        """Return since when claimed entries count as idle; never before 1970 or after now."""
        return now if self.time is None or not 0 <= self.time <= now else self.time

    def count_after(self, row: Row, times: int) -> int:
        if self.count is not None:
            return self.count
        return row.count if self.only_ids else row.count + times


def _leading_ids(command: Arguments, at: int) -> tuple[list[int], int]:
    ids: list[int] = []
    while at < len(command):
        try:
            ids.append(parse_id(command[at]))
        except Failure:
            break
        at += 1
    return ids, at


@command("XCLAIM", -6)
def xclaim(space: Keyspace, command: Arguments, now: int) -> Reply:
    stream, group = group_of(space, command[1], command[2], now)
    consumer = command[3]
    min_idle = parse_integer(command[4], "ERR Invalid min-idle-time argument for XCLAIM")
    claim = _Claim(command, now)
    rows = {
        entry_id: group.pending.rows.get(entry_id) or Row(None, 0, 1)
        for entry_id in claim.ids
        if entry_id in stream.entries and (claim.is_forced or entry_id in group.pending.rows)
    }
    idle = [each for each, row in rows.items() if _is_idle(row, max(0, min_idle), now)]
    claimed, dead = _by_limit(stream, group, idle, is_counted=not claim.only_ids)
    prepare_to_retire(space, stream, dead, now)
    if claim.last_id > group.last_id:
        stream.move_group(group.name, claim.last_id, group.read)
    see_consumer(stream, group, consumer, now)
    _forget_gone(stream, group, claim.ids)
    retire(space, stream, group, dead, now)
    claimed = _within_room(space, group, consumer, claimed)
    time = claim.time_of(now)
    named = claimed
    if len(claim.ids) > len(rows) and now - time >= min_idle:
        # Who names an entry twice, claims it twice.
        named = [entry_id for entry_id in claim.ids if entry_id in set(claimed)]
    if claimed:
        counts = [claim.count_after(rows[each], named.count(each)) for each in claimed]
        stream.assign(group.name, consumer, claimed, [time] * len(claimed), counts, now)
    return _replies(stream, named, only_ids=claim.only_ids)


def _is_idle(row: Row, min_idle: int, now: int) -> bool:
    return row.claimable_at(min_idle) <= now


def _by_limit(
    stream: Stream, group: Group, ids: list[int], *, is_counted: bool
) -> tuple[list[int], list[int]]:
    """Part entries by the limit of their group, if this is a delivery."""
    pending = [entry_id for entry_id in ids if entry_id in group.pending.rows]
    dead = split_by_limit(stream, group, pending)[1] if is_counted else []
    return [entry_id for entry_id in ids if entry_id not in set(dead)], dead


def _within_room(space: Keyspace, group: Group, consumer: bytes, ids: list[int]) -> list[int]:
    """Leave what a consumer may not have as well, unless it has it already."""
    if not space.limits.max_pending:
        return ids
    own, room = group.consumers[consumer].pending, room_of(space, group, consumer)
    more = [entry_id for entry_id in ids if entry_id not in own][:room]
    return [entry_id for entry_id in ids if entry_id in own or entry_id in more]


def _forget_gone(stream: Stream, group: Group, ids: list[int]) -> None:
    """Take entries off the pending list that are no longer in the stream."""
    gone = [
        entry_id
        for entry_id in ids
        if entry_id in group.pending.rows and entry_id not in stream.entries
    ]
    if gone:
        stream.acknowledge(group.name, gone)


def _replies(stream: Stream, ids: list[int], *, only_ids: bool) -> list[Reply]:
    if only_ids:
        return [text_of(entry_id) for entry_id in ids]
    return [shown_entry(stream, entry_id) for entry_id in ids]


@command("XAUTOCLAIM", -6)
def xautoclaim(space: Keyspace, command: Arguments, now: int) -> Reply:
    error = "ERR Invalid min-idle-time argument for XAUTOCLAIM"
    min_idle = max(0, parse_integer(command[4], error))
    start = parse_start(command[5])
    count, only_ids = _parse_autoclaim(command)
    stream, group = group_of(space, command[1], command[2], now)
    consumer = command[3]
    idle, gone, cursor = _scan(stream, group, start, min_idle, count, now)
    claimed, dead = _by_limit(stream, group, idle, is_counted=not only_ids)
    prepare_to_retire(space, stream, dead, now)
    see_consumer(stream, group, consumer, now)
    if gone:
        stream.acknowledge(group.name, gone)
    retire(space, stream, group, dead, now)
    claimed = _within_room(space, group, consumer, claimed)
    if claimed:
        rows = group.pending.rows
        counts = [rows[entry_id].count + (not only_ids) for entry_id in claimed]
        stream.assign(group.name, consumer, claimed, [now] * len(claimed), counts, now)
    entries = _replies(stream, claimed, only_ids=only_ids)
    return [text_of(cursor), entries, [text_of(entry_id) for entry_id in gone]]


def _parse_autoclaim(command: Arguments) -> tuple[int, bool]:
    count, only_ids, at = _DEFAULT_COUNT, False, 6
    while at < len(command):
        option = command[at].upper()
        if option == b"COUNT" and at + 1 < len(command):
            count = parse_integer(command[at + 1], "ERR COUNT must be > 0")
            if not 0 < count < 1 << 56:
                raise Failure("ERR COUNT must be > 0")
            at += 2
        elif option == b"JUSTID":
            only_ids = True
            at += 1
        else:
            raise SYNTAX
    return count, only_ids


def _scan(
    stream: Stream, group: Group, start: int, min_idle: int, count: int, now: int
) -> tuple[list[int], list[int], int]:
    """Look at pending rows; returns what is idle, what is gone, and where to go on."""
    attempts = count * _ATTEMPTS
    idle: list[int] = []
    gone: list[int] = []
    for entry_id in group.pending.ids_from(start):
        if not attempts or not count:
            return idle, gone, entry_id
        attempts -= 1
        if entry_id not in stream.entries:
            gone.append(entry_id)
            count -= 1
        elif _is_idle(group.pending.rows[entry_id], min_idle, now):
            idle.append(entry_id)
            count -= 1
    return idle, gone, 0
