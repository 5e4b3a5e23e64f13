"""One stream: its entries, its groups and everything that may change about them.

Commands decide; the methods here change. Each of them notes itself as an event, if there is
a journal to note it in, and is called again with the same arguments when that is replayed.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from queen.streambroker.engine.ids import MAX_ID, text_of
from queen.streambroker.engine.state import events as codes
from queen.streambroker.engine.state.counting import pass_entries
from queen.streambroker.engine.state.entries import Entries
from queen.streambroker.engine.state.events import Event
from queen.streambroker.engine.state.groups import NEVER, Consumer, Group, Row
from queen.streambroker.engine.state.memory_of_producers import ProducerMemory

# Rough bytes of an entry beside its names and values, as Redis packs it.
_ENTRY_BYTES = 8
_FIELD_BYTES = 3
# The largest number that clients can read.
_MAX_COUNT = (1 << 63) - 1


class Stream:
    def __init__(self, name: bytes, next_ordinal: int = 0) -> None:
        self.name = name
        # Where there is a journal, a stream that was deleted leaves its name and its numbers.
        self.is_alive = False
        self._clear(next_ordinal)
        # Where changes are noted; None: nowhere.
        self.journal: list[Event] | None = None
        # Entries that were added since, with their bodies, as long as there is a journal.
        self.appended: list[tuple[bytes, list[bytes]]] = []
        self._replays: dict[int, Callable[..., object]] = {
            codes.ADD: self._replay_add,
            codes.REMOVE: self.remove,
            codes.TRIM: self.trim,
            codes.TRIM_THESE: self.trim_these,
            codes.SET_LAST_ID: self.set_last_id,
            codes.CREATE_GROUP: self._replay_create_group,
            codes.MOVE_GROUP: self._replay_move_group,
            codes.DROP_GROUP: self.drop_group,
            codes.LIMIT_GROUP: self.limit_group,
            codes.CREATE_CONSUMER: self.create_consumer,
            codes.DROP_CONSUMER: self.drop_consumer,
            codes.DELIVER: self.deliver,
            codes.DELIVER_THESE: self.deliver_these,
            codes.ASSIGN: self.assign,
            codes.ACKNOWLEDGE: self.acknowledge,
            codes.REMEMBER: self.remember,
            codes.SET_MEMORY: self.set_memory,
            codes.EXPIRE: self.expire,
            codes.HOLD: self.hold,
            codes.BEGIN: self.begin,
            codes.RESET: self.reset,
            codes.SKIP: self.skip,
            codes.ADD_RUN: self._replay_add_run,
        }

    def _clear(self, next_ordinal: int) -> None:
        self.entries = Entries(next_ordinal)
        self.last_id = 0
        # Entries ever added, as Redis counts them.
        self.added = 0
        self.max_deleted = 0
        self.groups: dict[bytes, Group] = {}
        # Keys of entries that have one.
        self.keys: dict[int, bytes] = {}
        self.memory = ProducerMemory()
        # When it goes, in ms since 1970; 0: never.
        self.expires_at = 0

    def begin(self) -> None:
        """There is a stream from now on."""
        self._note(codes.BEGIN)
        self.is_alive = True

    def reset(self) -> None:
        """Delete everything; the ordinals of entries go on where they were."""
        self._note(codes.RESET)
        self.is_alive = False
        before = self.entries
        self._clear(before.next_ordinal)
        # What was read before is still to be told.
        self.entries.unread = before.unread
        self.entries.freed_bytes = before.freed_bytes + sum(chunk.size for chunk in before.chunks)

    def apply(self, code: int, arguments: Sequence[Any]) -> None:
        """Repeat a change that another has made and noted."""
        self._replays[code](*arguments)

    def _note(self, *event: Any) -> None:
        if self.journal is not None:
            self.journal.append(event)

    # ---- entries ----

    def add(self, entry_id: int, fields: list[bytes], key: bytes | None = None) -> bytes:
        """Add an entry; returns its id as text."""
        text = text_of(entry_id)
        size = sum(map(len, fields)) + _FIELD_BYTES * len(fields) + _ENTRY_BYTES
        is_new_chunk = self.entries.needs_chunk(size)
        if self.journal is not None:
            self.journal.append((codes.ADD, entry_id, size, int(is_new_chunk), key))
            self.appended.append((text, fields))
        self._add(entry_id, fields, size, is_new_chunk, key)
        return text

    def add_run(self, first_id: int, bodies: list[list[bytes]]) -> list[bytes]:
        """Add entries whose ids follow each other; returns the ids as text."""
        count = len(bodies)
        total = sum(map(len, chain.from_iterable(bodies)))
        size = _ENTRY_BYTES + _FIELD_BYTES * len(bodies[0]) + total // count
        room, capacity = self.entries.room_for(size)
        texts = [text_of(entry_id) for entry_id in range(first_id, first_id + count)]
        if self.journal is not None:
            self.journal.append((codes.ADD_RUN, first_id, count, size, room, capacity))
            self.appended += zip(texts, bodies, strict=True)
        self._add_run(first_id, bodies, size, room, capacity)
        return texts

    def _replay_add_run(
        self, first_id: int, count: int, size: int, room: int, capacity: int
    ) -> None:
        self._add_run(first_id, [None] * count, size, room, capacity)

    def _add_run(
        self,
        first_id: int,
        bodies: Sequence[list[bytes] | None],
        size: int,
        room: int,
        capacity: int,
    ) -> None:
        ids = range(first_id, first_id + len(bodies))
        self.entries.add_run(ids, bodies, size, room, capacity)
        self.last_id = ids[-1]
        self.added = min(self.added + len(ids), _MAX_COUNT)

    def add_elsewhere(self, entry_id: int, size: int) -> None:
        """Add an entry whose body is where its ordinal says, and not in memory."""
        is_new_chunk = self.entries.needs_chunk(size)
        self._note(codes.ADD, entry_id, size, int(is_new_chunk), None)
        self._add(entry_id, None, size, is_new_chunk, None)

    def skip(self, count: int) -> None:
        """Leave ordinals out that no entry has."""
        self._note(codes.SKIP, count)
        self.entries.skip(count)

    def _replay_add(self, entry_id: int, size: int, is_new_chunk: int, key: bytes | None) -> None:
        self._add(entry_id, None, size, bool(is_new_chunk), key)

    def _add(
        self,
        entry_id: int,
        fields: list[bytes] | None,
        size: int,
        is_new_chunk: bool,
        key: bytes | None,
    ) -> None:
        self.entries.add(entry_id, fields, size, is_new_chunk)
        self.last_id = entry_id
        self.added = min(self.added + 1, _MAX_COUNT)
        if key is not None:
            self.keys[entry_id] = key

    def remove(self, ids: Sequence[int]) -> int:
        """Delete entries, each once; returns how many there were."""
        self._note(codes.REMOVE, ids)
        removed = [entry_id for entry_id in ids if self._remove(entry_id)]
        self.max_deleted = max(self.max_deleted, *removed, 0)
        return len(removed)

    def _remove(self, entry_id: int) -> bool:
        self.keys.pop(entry_id, None)
        return self.entries.remove(entry_id)

    def trim(self, chunks: int, more: int) -> None:
        """Remove whole chunks from the beginning, and some entries behind them."""
        self._note(codes.TRIM, chunks, more)
        for _ in range(chunks):
            if self.keys:
                for entry_id in self.entries.chunks[0].ids:
                    self.keys.pop(entry_id, None)
            self.entries.drop_first_chunk()
        if more:
            places = self.entries.between(0, MAX_ID)
            for entry_id in [next(places).entry_id for _ in range(more)]:
                self._remove(entry_id)

    def trim_these(self, ids: Sequence[int]) -> None:
        self._note(codes.TRIM_THESE, ids)
        for entry_id in ids:
            self._remove(entry_id)

    def set_last_id(self, last_id: int, added: int, max_deleted: int) -> None:
        self._note(codes.SET_LAST_ID, last_id, added, max_deleted)
        self.last_id, self.added, self.max_deleted = last_id, added, max_deleted

    def expire(self, at_ms: int) -> None:
        self._note(codes.EXPIRE, at_ms)
        self.expires_at = at_ms

    # ---- groups and consumers ----

    def create_group(self, name: bytes, last_id: int, read: int | None) -> None:
        self._note(codes.CREATE_GROUP, name, last_id, -1 if read is None else read)
        self.groups[name] = Group(name, last_id, read)

    def _replay_create_group(self, name: bytes, last_id: int, read: int) -> None:
        self.create_group(name, last_id, None if read < 0 else read)

    def move_group(self, name: bytes, last_id: int, read: int | None) -> None:
        self._note(codes.MOVE_GROUP, name, last_id, -1 if read is None else read)
        group = self.groups[name]
        group.last_id, group.read = last_id, read
        # From here on everything is read once more, or was read before.
        group.held.clear()

    def _replay_move_group(self, name: bytes, last_id: int, read: int) -> None:
        self.move_group(name, last_id, None if read < 0 else read)

    def drop_group(self, name: bytes) -> None:
        self._note(codes.DROP_GROUP, name)
        del self.groups[name]

    def limit_group(self, name: bytes, limit: int) -> None:
        self._note(codes.LIMIT_GROUP, name, limit)
        self.groups[name].limit = limit

    def create_consumer(self, group_name: bytes, name: bytes, now: int) -> None:
        self._note(codes.CREATE_CONSUMER, group_name, name, now)
        self.groups[group_name].consumers[name] = Consumer(name, now)

    def drop_consumer(self, group_name: bytes, name: bytes, is_released: int) -> None:
        """Forget a consumer: what is pending with it is released, or forgotten with it."""
        self._note(codes.DROP_CONSUMER, group_name, name, is_released)
        group = self.groups[group_name]
        consumer = group.consumers.pop(name)
        for entry_id in sorted(consumer.pending):
            if is_released:
                row = group.pending.rows[entry_id]
                row.consumer, row.time = None, 0
            else:
                self._settle(group, entry_id)

    # ---- deliveries ----

    def deliver(
        self, group_name: bytes, consumer_name: bytes, now: int, count: int, is_acked: int
    ) -> list[int]:
        """Deliver the next entries to a consumer; returns their ids."""
        self._note(codes.DELIVER, group_name, consumer_name, now, count, is_acked)
        group = self.groups[group_name]
        consumer = group.consumers[consumer_name]
        delivered = self.entries.ids_after(group.last_id, count)
        pass_entries(self, group, delivered)
        if delivered and not is_acked:
            for entry_id in delivered:
                self._give(group, consumer, entry_id, now)
            consumer.active = now
        return delivered

    def deliver_these(
        self, group_name: bytes, consumer_name: bytes, now: int, ids: Sequence[int]
    ) -> None:
        """Deliver entries that were passed over because others of their keys were in flight."""
        self._note(codes.DELIVER_THESE, group_name, consumer_name, now, ids)
        group = self.groups[group_name]
        consumer = group.consumers[consumer_name]
        for entry_id in ids:
            self._give(group, consumer, entry_id, now)
        taken = set(ids)
        group.held = [entry_id for entry_id in group.held if entry_id not in taken]
        consumer.active = now

    def hold(self, group_name: bytes, last_id: int, held: Sequence[int]) -> None:
        """Move a group on, and keep some of the entries that it passes for later."""
        self._note(codes.HOLD, group_name, last_id, held)
        group = self.groups[group_name]
        passed = [place.entry_id for place in self.entries.between(group.last_id + 1, last_id)]
        pass_entries(self, group, passed)
        group.last_id = max(group.last_id, last_id)
        for entry_id in held:
            insort(group.held, entry_id)

    def _give(self, group: Group, consumer: Consumer, entry_id: int, now: int) -> None:
        row = group.pending.rows.get(entry_id)
        if row is None:
            group.pending.put(entry_id, Row(consumer, now, 1))
            consumer.pending.add(entry_id)
        else:
            row.time, row.count = now, 1
            group.own(entry_id, row, consumer)
        if entry_id in self.keys:
            group.busy[self.keys[entry_id]] = entry_id

    def assign(
        self,
        group_name: bytes,
        consumer_name: bytes | None,
        ids: Sequence[int],
        times: Sequence[int],
        counts: Sequence[int],
        active: int = NEVER,
    ) -> None:
        """Give pending entries to a consumer, or release them; rows that are missing are made."""
        counts = [min(count, _MAX_COUNT) for count in counts]
        self._note(codes.ASSIGN, group_name, consumer_name, ids, times, counts, active)
        group = self.groups[group_name]
        consumer = None if consumer_name is None else group.consumers[consumer_name]
        if consumer is not None and active != NEVER:
            consumer.active = active
        for entry_id, time, count in zip(ids, times, counts, strict=True):
            row = group.pending.rows.get(entry_id)
            if row is None:
                row = Row(None, time, count)
                group.pending.put(entry_id, row)
                if entry_id in self.keys:
                    group.busy[self.keys[entry_id]] = entry_id
            row.time, row.count = time, count
            group.own(entry_id, row, consumer)

    def acknowledge(self, group_name: bytes, ids: Sequence[int]) -> int:
        """Take entries off the pending list; returns how many were on it."""
        self._note(codes.ACKNOWLEDGE, group_name, ids)
        group = self.groups[group_name]
        return sum(self._settle(group, entry_id) for entry_id in ids)

    def _settle(self, group: Group, entry_id: int) -> bool:
        row = group.pending.pop(entry_id)
        if row is None:
            return False
        if row.consumer is not None:
            row.consumer.pending.discard(entry_id)
        if group.busy:
            key = self.keys.get(entry_id)
            if key is None:
                # The entry may be gone, and its key with it.
                key = next((each for each, at in group.busy.items() if at == entry_id), None)
            if key is not None and group.busy.get(key) == entry_id:
                del group.busy[key]
        return True

    # ---- adding once ----

    def remember(self, producer: bytes, token: bytes, entry_id: int, now: int) -> None:
        self._note(codes.REMEMBER, producer, token, entry_id, now)
        self.memory.remember(producer, token, entry_id, now)

    def set_memory(self, duration_s: int, size: int) -> None:
        self._note(codes.SET_MEMORY, duration_s, size)
        self.memory.change(duration_s, size)
