"""Consumer groups: how far each has read, and what is pending with whom."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

# Nobody has been active under this name yet.
NEVER = -1


class Row:
    """One pending entry of a group."""

    __slots__ = ("consumer", "count", "time")

    def __init__(self, consumer: Consumer | None, time: int, count: int) -> None:
        # None: it was released, and waits for whoever claims it.
        self.consumer = consumer
        # When it was delivered last; later than now: not before then.
        self.time = time
        self.count = count

    def claimable_at(self, min_idle: int) -> int:
        """Return from when on it may be claimed: what was released need not be idle for long."""
        return self.time if self.consumer is None else self.time + min_idle


class Consumer:
    __slots__ = ("active", "name", "pending", "seen")

    def __init__(self, name: bytes, now: int) -> None:
        self.name = name
        self.seen = now
        self.active = NEVER
        self.pending: set[int] = set()


class Pending:
    """Rows by id. Deliveries mostly come in order, so the ids are kept as a sorted list; ids
    whose rows are gone stay in it until they are as many as the others."""

    __slots__ = ("_order", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def put(self, entry_id: int, row: Row) -> None:
        if entry_id not in self.rows:
            order = self._order
            if not order or entry_id > order[-1]:
                order.append(entry_id)
            else:
                index = bisect_left(order, entry_id)
                if order[index] != entry_id:
                    insort(order, entry_id)
        self.rows[entry_id] = row

    def pop(self, entry_id: int) -> Row | None:
        row = self.rows.pop(entry_id, None)
        if row is not None and len(self._order) > 2 * len(self.rows) + 64:
            self._order = [each for each in self._order if each in self.rows]
        return row

    def ids_from(self, start: int) -> Iterator[int]:
        """Yield pending ids from one on; rows may be removed meanwhile."""
        order = self._order
        for index in range(bisect_left(order, start), len(order)):
            if order[index] in self.rows:
                yield order[index]

    def first(self) -> int | None:
        return next(self.ids_from(0), None)

    def last(self) -> int | None:
        return next((each for each in reversed(self._order) if each in self.rows), None)


class Group:
    __slots__ = (
        "busy",
        "consumers",
        "held",
        "last_id",
        "limit",
        "name",
        "pending",
        "read",
    )

    def __init__(self, name: bytes, last_id: int, read: int | None) -> None:
        self.name = name
        self.last_id = last_id
        # How many entries were read, as Redis counts; None: nobody knows.
        self.read = read
        self.pending = Pending()
        self.consumers: dict[bytes, Consumer] = {}
        # After so many deliveries an entry becomes a dead letter; 0: never.
        self.limit = 0
        # Keys with an entry in flight, and the entries that were passed over because of them.
        self.busy: dict[bytes, int] = {}
        self.held: list[int] = []

    def own(self, entry_id: int, row: Row, consumer: Consumer | None) -> None:
        """Give a pending entry to a consumer, or to nobody."""
        if row.consumer is not consumer:
            if row.consumer is not None:
                row.consumer.pending.discard(entry_id)
            row.consumer = consumer
        if consumer is not None:
            consumer.pending.add(entry_id)
