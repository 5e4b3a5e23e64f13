"""XREADGROUP: what is new for a group, what is pending with a consumer, what others left."""

from __future__ import annotations

from queen.streambroker.engine.arguments import see_consumer
from queen.streambroker.engine.commands.dead_letters import (
    prepare_to_retire,
    retire,
    split_by_limit,
)
from queen.streambroker.engine.commands.reading import Reading, no_group_to_read
from queen.streambroker.engine.ids import MAX_ID, parse_id, text_of
from queen.streambroker.engine.keyspace import Arguments, Keyspace, Wait, command
from queen.streambroker.engine.state.entries import Place
from queen.streambroker.engine.state.groups import Group
from queen.streambroker.engine.state.stream import Stream
from queen.streambroker.replies import NO_ARRAY, ByStream, Failure, Reply

_NEW = MAX_ID
# So many entries are passed over at most because entries of their keys are in flight.
_MAX_HELD = 10_000


@command("XREADGROUP", -7)
def xreadgroup(space: Keyspace, command: Arguments, now: int) -> Reply | Wait:
    reading = Reading(command, in_group=True)
    assert reading.group is not None
    wanted = [
        (key, *_group_to_read(space, key, reading.group, now), _start(text))
        for key, text in zip(reading.keys, reading.ids, strict=True)
    ]
    _prepare(space, reading, wanted, now)
    answers: list[tuple[bytes, Reply]] = []
    for key, stream, group, start in wanted:
        see_consumer(stream, group, reading.consumer, now)
        if start != _NEW:
            history = _history(stream, group, reading.consumer, start, reading.count, now)
            answers.append((key, history))
            continue
        entries = _claimed(space, stream, group, reading, now)
        entries += _new(space, stream, group, reading, len(entries), now)
        if entries:
            answers.append((key, entries))
    if answers:
        return ByStream(answers)
    if reading.block_ms is None:
        return NO_ARRAY
    return Wait(
        reading.keys,
        reading.block_ms,
        list(command),
        _next_idle(reading, [group for _, _, group, _ in wanted], now),
    )


def _group_to_read(space: Keyspace, key: bytes, name: bytes, now: int) -> tuple[Stream, Group]:
    stream = space.stream(key, now)
    if stream is None or name not in stream.groups:
        raise no_group_to_read(key, name)
    return stream, stream.groups[name]


def _start(text: bytes) -> int:
    if text == b">":
        return _NEW
    if text in {b"$", b"+"}:
        sign = text.decode()
        raise Failure(
            f"ERR The {sign} ID is meaningless in the context of XREADGROUP: you want to read "
            "the history of this consumer by specifying a proper ID, or use the > ID to get new "
            f"messages. The {sign} ID would just return an empty result set."
        )
    return parse_id(text)


def _prepare(
    space: Keyspace,
    reading: Reading,
    wanted: list[tuple[bytes, Stream, Group, int]],
    now: int,
) -> None:
    """Have in memory what is needed to go on, before anything changes."""
    if reading.claim_ms is None:
        return
    for _, stream, group, start in wanted:
        if start == _NEW and group.limit:
            ids = _idle(group, reading.claim_ms, now)
            prepare_to_retire(space, stream, split_by_limit(stream, group, ids)[1], now)


# ---- what a consumer has already ----


def _history(
    stream: Stream, group: Group, consumer: bytes, after: int, count: int, now: int
) -> list[Reply]:
    pending = sorted(each for each in group.consumers[consumer].pending if each > after)
    if count:
        pending = pending[:count]
    present = [entry_id for entry_id in pending if entry_id in stream.entries]
    if present:
        rows = group.pending.rows
        counts = [rows[entry_id].count + 1 for entry_id in present]
        stream.assign(group.name, consumer, present, [now] * len(present), counts)
    return [shown_entry(stream, entry_id) for entry_id in pending]


def shown_entry(stream: Stream, entry_id: int) -> Reply:
    """Return an entry as replies show it; one that is gone has no fields."""
    place = stream.entries.place(entry_id)
    fields: Reply = NO_ARRAY if place is None else stream.entries.fields(place)  # type: ignore[assignment]
    return [text_of(entry_id), fields]


# ---- what others left ----


def _idle(group: Group, min_idle: int, now: int) -> list[int]:
    """Return what has been pending for long enough, the longest first."""
    rows = group.pending.rows
    idle = [entry_id for entry_id, row in rows.items() if row.claimable_at(min_idle) <= now]
    return sorted(idle, key=lambda entry_id: (rows[entry_id].time, entry_id))


def _next_idle(reading: Reading, groups: list[Group], now: int) -> int | None:
    """Return in how many ms something will have been pending for long enough."""
    if reading.claim_ms is None:
        return None
    rows = (row for group in groups for row in group.pending.rows.values())
    soonest = min((row.claimable_at(reading.claim_ms) for row in rows), default=None)
    return None if soonest is None else max(1, soonest - now)


def _claimed(
    space: Keyspace, stream: Stream, group: Group, reading: Reading, now: int
) -> list[Reply]:
    if reading.claim_ms is None:
        return []
    idle, dead = split_by_limit(stream, group, _idle(group, reading.claim_ms, now))
    retire(space, stream, group, dead, now)
    idle = idle[: min(reading.count or len(idle), room_of(space, group, reading.consumer))]
    if not idle:
        return []
    rows = group.pending.rows
    before = [
        (now - rows[each].time if rows[each].time else now, rows[each].count) for each in idle
    ]
    # What is deleted changes hands, and is not delivered.
    counts = [
        count + (entry_id in stream.entries)
        for entry_id, (_, count) in zip(idle, before, strict=True)
    ]
    stream.assign(group.name, reading.consumer, idle, [now] * len(idle), counts, now)
    replies: list[Reply] = []
    for entry_id, (idle_ms, count) in zip(idle, before, strict=True):
        place = stream.entries.place(entry_id)
        if place is not None:
            replies.append(
                [text_of(entry_id), stream.entries.fields(place), idle_ms, count]  # type: ignore[list-item]
            )
    return replies


# ---- what is new ----


def room_of(space: Keyspace, group: Group, consumer: bytes) -> int:
    """Return how many more entries a consumer may have pending."""
    if not space.limits.max_pending:
        return 1 << 62
    return max(0, space.limits.max_pending - len(group.consumers[consumer].pending))


def _new(
    space: Keyspace, stream: Stream, group: Group, reading: Reading, taken: int, now: int
) -> list[Reply]:
    count = reading.count - taken if reading.count else 1 << 62
    if not reading.is_acked:
        count = min(count, room_of(space, group, reading.consumer))
    if count <= 0:
        return []
    if reading.is_acked or not (stream.keys or group.held):
        ids = _deliver_next(stream, group, reading, count, now)
    else:
        ids = _deliver_by_key(stream, group, reading.consumer, count, now)
    replies = _shown(stream, ids)
    if reading.claim_ms is not None:
        replies = [[*reply, 0, 0] for reply in replies]  # type: ignore[misc]
    return replies


def _shown(stream: Stream, ids: list[int]) -> list[Reply]:
    """Return entries that exist, with ids in ascending order."""
    replies: list[Reply] = []
    if not ids:
        return replies
    wanted = set(ids)
    fields = stream.entries.fields
    for chunk, begin, end in stream.entries.runs_between(ids[0], ids[-1]):
        for at in range(begin, end):
            entry_id = chunk.ids[at]
            if entry_id in wanted:
                body = chunk.bodies[at] or fields(Place(entry_id, chunk, at))
                replies.append([text_of(entry_id), body])  # type: ignore[list-item]
    return replies


def _deliver_next(
    stream: Stream, group: Group, reading: Reading, count: int, now: int
) -> list[int]:
    if stream.entries.next_after(group.last_id) is None:
        return []
    return stream.deliver(group.name, reading.consumer, now, count, int(reading.is_acked))


def _deliver_by_key(
    stream: Stream, group: Group, consumer: bytes, count: int, now: int
) -> list[int]:
    """Deliver so that a key has one entry in flight: others of it wait their turn."""
    busy = set(group.busy)
    taken: list[int] = []
    for entry_id in group.held:
        key = stream.keys.get(entry_id)
        if len(taken) < count and key not in busy and entry_id in stream.entries:
            taken.append(entry_id)
            if key is not None:
                busy.add(key)
    held: list[int] = []
    last_id = group.last_id
    for place in stream.entries.between(last_id + 1, MAX_ID):
        if len(taken) >= count or len(group.held) + len(held) >= _MAX_HELD:
            break
        last_id = place.entry_id
        key = stream.keys.get(last_id)
        if key in busy:
            held.append(last_id)
            continue
        taken.append(last_id)
        if key is not None:
            busy.add(key)
    if last_id != group.last_id:
        stream.hold(group.name, last_id, held)
    if taken:
        stream.deliver_these(group.name, consumer, now, taken)
    return sorted(taken)
