"""A stream as bytes: the sum of its events, without the bodies of its entries.

    [version, alive, last id, added, max deleted, expires at, next ordinal,
     chunks, keys, groups, memory]

Everything is a list whose places have meanings, and ids are joined as in events. What is
added later stands behind what is there.
"""

from __future__ import annotations

from typing import Any

import msgspec

from queen.streambroker.engine.state.entries import Chunk
from queen.streambroker.engine.state.groups import Consumer, Group, Row
from queen.streambroker.engine.state.packed_ids import PackedIds, join_ids, split_ids
from queen.streambroker.engine.state.stream import Stream

_VERSION = 1


def encode_stream(stream: Stream) -> bytes:
    memory = stream.memory
    return msgspec.msgpack.encode(
        [
            _VERSION,
            stream.is_alive,
            join_ids([stream.last_id, stream.max_deleted]),
            stream.added,
            stream.expires_at,
            stream.entries.next_ordinal,
            [
                [chunk.base, join_ids(chunk.ids), sorted(chunk.gone), chunk.size]
                for chunk in stream.entries.chunks
            ],
            [join_ids(stream.keys), list(stream.keys.values())],
            [_group_row(group) for group in stream.groups.values()],
            [
                memory.duration_s,
                memory.size,
                memory.added,
                [[pid, token, join_ids([each]), at] for pid, token, each, at in memory.rows()],
            ],
        ]
    )


def decode_stream(name: bytes, snapshot: bytes) -> Stream:
    row: list[Any] = msgspec.msgpack.decode(snapshot)
    stream = Stream(name)
    stream.is_alive = row[1]
    stream.last_id, stream.max_deleted = split_ids(row[2])
    stream.added, stream.expires_at = row[3], row[4]
    for base, ids, gone, size in row[6]:
        stream.entries.put_chunk(_chunk(base, PackedIds(ids), gone, size))
    stream.entries.next_ordinal = row[5]
    ids, keys = row[7]
    stream.keys = dict(zip(split_ids(ids), keys, strict=True))
    for group_row in row[8]:
        group = _group(stream, group_row)
        stream.groups[group.name] = group
    duration_s, size, added, tokens = row[9]
    stream.memory.change(duration_s, size)
    for producer, token, entry_id, at in tokens:
        stream.memory.remember(producer, token, split_ids(entry_id)[0], at)
    stream.memory.added = added
    return stream


def _chunk(base: int, ids: PackedIds, gone: list[int], size: int) -> Chunk:
    chunk = Chunk(base)
    chunk.ids, chunk.gone, chunk.size = ids, set(gone), size
    chunk.bodies = [None] * len(ids)
    chunk.live = len(ids) - len(gone)
    return chunk


def _group_row(group: Group) -> list[Any]:
    consumers = list(group.consumers.values())
    numbers = {consumer.name: number for number, consumer in enumerate(consumers)}
    ids = list(group.pending.ids_from(0))
    rows = [group.pending.rows[entry_id] for entry_id in ids]
    return [
        group.name,
        join_ids([group.last_id]),
        -1 if group.read is None else group.read,
        group.limit,
        join_ids(group.held),
        [[consumer.name, consumer.seen, consumer.active] for consumer in consumers],
        join_ids(ids),
        [-1 if row.consumer is None else numbers[row.consumer.name] for row in rows],
        [row.time for row in rows],
        [row.count for row in rows],
    ]


def _group(stream: Stream, row: list[Any]) -> Group:
    name, last_id, read, limit, held, consumers, ids, owners, times, counts = row
    group = Group(name, split_ids(last_id)[0], None if read < 0 else read)
    group.limit, group.held = limit, split_ids(held)
    known: list[Consumer | None] = []
    for consumer_name, seen, active in consumers:
        consumer = Consumer(consumer_name, seen)
        consumer.active = active
        group.consumers[consumer_name] = consumer
        known.append(consumer)
    # The last place stands for nobody: -1.
    known.append(None)
    for entry_id, owner, time, count in zip(split_ids(ids), owners, times, counts, strict=True):
        pending = Row(None, time, count)
        group.pending.put(entry_id, pending)
        group.own(entry_id, pending, known[owner])
        if entry_id in stream.keys:
            group.busy[stream.keys[entry_id]] = entry_id
    return group
