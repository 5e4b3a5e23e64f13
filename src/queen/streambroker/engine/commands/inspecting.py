"""XINFO: what there is to know about a stream, its groups and their consumers."""

from __future__ import annotations

from itertools import islice

from queen.streambroker.engine.arguments import parse_integer
from queen.streambroker.engine.commands.delivering import shown_entry
from queen.streambroker.engine.commands.grouping import no_group
from queen.streambroker.engine.commands.reading import shown_entries
from queen.streambroker.engine.ids import MAX_ID, text_of
from queen.streambroker.engine.keyspace import Arguments, Keyspace, command, shown, wrong_number
from queen.streambroker.engine.state.counting import lag_of
from queen.streambroker.engine.state.groups import NEVER, Consumer, Group
from queen.streambroker.engine.state.stream import Stream
from queen.streambroker.replies import Failure, Pairs, Reply, Status

_HELP = [
    b"XINFO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    b"CONSUMERS <key> <groupname>",
    b"GROUPS <key>",
    b"STREAM <key> [FULL [COUNT <count>]]",
]
_ARITY = {b"STREAM": -3, b"GROUPS": 3, b"CONSUMERS": 4, b"HELP": 2}
_DEFAULT_COUNT = 10


@command("XINFO", -2)
def xinfo(space: Keyspace, command: Arguments, now: int) -> Reply:
    name = command[1].upper()
    arity = _ARITY.get(name)
    if arity is None:
        raise Failure(f"ERR unknown subcommand '{shown(command[1])}'. Try XINFO HELP.")
    if len(command) != arity if arity > 0 else len(command) < -arity:
        raise wrong_number(f"xinfo|{name.decode().lower()}")
    if name == b"HELP":
        return [Status(line) for line in _HELP]
    stream = space.existing(command[2], now)
    if name == b"STREAM":
        return _stream(stream, command)
    if name == b"GROUPS":
        return [_group(stream, group) for _, group in sorted(stream.groups.items())]
    group = stream.groups.get(command[3])
    if group is None:
        raise no_group(command[3], command[2])
    return [_consumer(consumer, now) for _, consumer in sorted(group.consumers.items())]


def _stream(stream: Stream, command: Arguments) -> Reply:
    if len(command) == 3:
        return Pairs([*_figures(stream), *_edges(stream)])
    wrong = Failure(
        "ERR unknown subcommand or wrong number of arguments for "
        f"'{shown(command[1])}'. Try XINFO HELP."
    )
    if command[3].upper() != b"FULL":
        raise wrong
    count = _DEFAULT_COUNT
    if len(command) > 4:
        if len(command) != 6 or command[4].upper() != b"COUNT":
            raise wrong
        count = parse_integer(command[5])
        count = _DEFAULT_COUNT if count < 0 else count
    limit = count or None
    entries = shown_entries(stream, islice(stream.entries.between(0, MAX_ID), limit))
    groups: list[Reply] = [
        _full_group(stream, group, limit) for _, group in sorted(stream.groups.items())
    ]
    return Pairs([*_figures(stream), b"entries", entries, b"groups", groups])


def _figures(stream: Stream) -> list[Reply]:
    nodes = len(stream.entries.chunks)
    return [
        b"length",
        stream.entries.length,
        b"radix-tree-keys",
        nodes,
        b"radix-tree-nodes",
        max(1, nodes),
        b"last-generated-id",
        text_of(stream.last_id),
        b"max-deleted-entry-id",
        text_of(stream.max_deleted),
        b"entries-added",
        stream.added,
        b"recorded-first-entry-id",
        text_of(stream.entries.first_id()),
        b"idmp-duration",
        stream.memory.duration_s,
        b"idmp-maxsize",
        stream.memory.size,
        b"pids-tracked",
        stream.memory.producers,
        b"iids-tracked",
        stream.memory.tokens,
        b"iids-added",
        stream.memory.added,
        b"iids-duplicates",
        stream.memory.duplicates,
    ]


def _edges(stream: Stream) -> list[Reply]:
    first, last = stream.entries.first(), stream.entries.last()
    return [
        b"groups",
        len(stream.groups),
        b"first-entry",
        None if first is None else shown_entry(stream, first.entry_id),
        b"last-entry",
        None if last is None else shown_entry(stream, last.entry_id),
    ]


def _group(stream: Stream, group: Group) -> Reply:
    return Pairs(
        [
            b"name",
            group.name,
            b"consumers",
            len(group.consumers),
            b"pending",
            len(group.pending),
            b"last-delivered-id",
            text_of(group.last_id),
            b"entries-read",
            group.read,
            b"lag",
            lag_of(stream, group),
        ]
    )


def _consumer(consumer: Consumer, now: int) -> Reply:
    inactive = NEVER if consumer.active == NEVER else max(0, now - consumer.active)
    return Pairs(
        [
            b"name",
            consumer.name,
            b"pending",
            len(consumer.pending),
            b"idle",
            max(0, now - consumer.seen),
            b"inactive",
            inactive,
        ]
    )


def _full_group(stream: Stream, group: Group, limit: int | None) -> Reply:
    pending: list[Reply] = []
    for entry_id in islice(group.pending.ids_from(0), limit):
        row = group.pending.rows[entry_id]
        name = b"" if row.consumer is None else row.consumer.name
        pending.append([text_of(entry_id), name, row.time, row.count])
    consumers: list[Reply] = [
        _full_consumer(group, consumer, limit) for _, consumer in sorted(group.consumers.items())
    ]
    return Pairs(
        [
            b"name",
            group.name,
            b"last-delivered-id",
            text_of(group.last_id),
            b"entries-read",
            group.read,
            b"lag",
            lag_of(stream, group),
            b"pel-count",
            len(group.pending),
            b"nacked-count",
            sum(row.consumer is None for row in group.pending.rows.values()),
            b"pending",
            pending,
            b"consumers",
            consumers,
        ]
    )


def _full_consumer(group: Group, consumer: Consumer, limit: int | None) -> Reply:
    pending: list[Reply] = []
    for entry_id in sorted(consumer.pending)[:limit]:
        row = group.pending.rows[entry_id]
        pending.append([text_of(entry_id), row.time, row.count])
    return Pairs(
        [
            b"name",
            consumer.name,
            b"seen-time",
            consumer.seen,
            b"active-time",
            consumer.active,
            b"pel-count",
            len(consumer.pending),
            b"pending",
            pending,
        ]
    )
