"""What this server has leased out.

An ack names messages by transaction id; the book turns that into offsets without asking the
database. It is a convenience: a lease that is not in it (another server granted it, or it
was pushed out) is read from the log. Of a lease that was given as frames the book has no ids:
its acks name offsets, and one that does not has the ids read.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict, defaultdict

from queen.core.visibility import hidden_bits
from queen.service.catalog import Partition
from queen.service.log.segment_cache import StoredSegment

# What is kept: ids, and as much as some of them for each span.
_MAX_WEIGHT = 100_000
_SPAN_WEIGHT = 4


class BareSpan:
    """One partition's part of a lease, without the ids of its messages."""

    __slots__ = ("group", "group_id", "hidden", "is_shared", "partition", "start", "stop")

    def __init__(
        self,
        partition: Partition,
        group: str,
        group_id: int,
        start: int,
        stop: int,
        hidden: frozenset[int] = frozenset(),
    ) -> None:
        self.partition = partition
        self.group = group
        self.group_id = group_id
        self.start = start
        self.stop = stop
        # Offsets that the group was not shown.
        self.hidden = hidden
        # The lease is one of several in the partition.
        self.is_shared = False

    @property
    def weight(self) -> int:
        return _SPAN_WEIGHT


class Span(BareSpan):
    """One partition's part of a lease."""

    __slots__ = ("_offsets", "ids")

    def __init__(
        self,
        partition: Partition,
        group: str,
        group_id: int,
        start: int,
        stop: int,
        ids: list[str],
        hidden: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(partition, group, group_id, start, stop, hidden)
        # Transaction ids of [start, stop); those done before are in it too.
        self.ids = ids
        self._offsets: dict[str, list[int]] | None = None

    @property
    def weight(self) -> int:
        return _SPAN_WEIGHT + len(self.ids)

    def offsets_of(self, transaction_id: str) -> list[int]:
        """Return where an id stands: usually once, without dedup perhaps more often. Equal ids
        cannot be told apart on the wire, so what is said of one holds for all of them."""
        if self._offsets is None:
            self._offsets = defaultdict(list)
            for offset, stored_id in enumerate(self.ids, self.start):
                self._offsets[stored_id].append(offset)
        return self._offsets.get(transaction_id, [])


class SpanBuilder:
    """Gathers what a lease covers, segment by segment."""

    def __init__(self, start: int, stop: int, group: str, *, with_ids: bool = True) -> None:
        self._start = start
        self._stop = stop
        self._group = group
        self._with_ids = with_ids
        self._count = 0
        self._ids: list[str] = []
        self._hidden: set[int] = set()

    def add(self, stored: StoredSegment) -> None:
        low, high = stored.part(self._start, self._stop)
        self._count += high - low
        if self._with_ids:
            self._ids += stored.segment.transaction_ids(low, high)
        bits = hidden_bits(stored.segment, low, high, self._group)
        if bits:
            first = stored.base_offset + low
            self._hidden.update(first + at for at in range(high - low) if bits >> at & 1)

    def span(self, partition: Partition, group_id: int) -> Span:
        """Return what was gathered. What retention has removed is missing at the front."""
        first = self._stop - self._count
        owner = partition, self._group, group_id
        return Span(*owner, first, self._stop, self._ids, self._all_hidden(first))

    def bare_span(self, partition: Partition, group_id: int) -> BareSpan:
        """Return the same without ids. What retention has removed counts as hidden."""
        hidden = self._all_hidden(self._stop - self._count)
        return BareSpan(partition, self._group, group_id, self._start, self._stop, hidden)

    def _all_hidden(self, first: int) -> frozenset[int]:
        self._hidden.update(range(self._start, first))
        return frozenset(self._hidden)


class LeaseBook:
    def __init__(self) -> None:
        self._leases: OrderedDict[uuid.UUID, dict[int, BareSpan]] = OrderedDict()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, lease_id: uuid.UUID, span: BareSpan) -> None:
        self._leases.setdefault(lease_id, {})[span.partition.id] = span
        self._weight += span.weight
        while self._weight > _MAX_WEIGHT and len(self._leases) > 1:
            _, spans = self._leases.popitem(last=False)
            self._weight -= sum(span.weight for span in spans.values())

    def learn_ids(self, lease_id: uuid.UUID, span: Span) -> bool:
        """Keep the ids of a lease that were read, if it is one of ours; return whether it is."""
        bare = self.bare_span(lease_id, span.partition.id)
        if bare is not None:
            self._weight -= bare.weight
            span.is_shared = bare.is_shared
            self.add(lease_id, span)
        return bare is not None

    def bare_span(self, lease_id: uuid.UUID, partition_id: int) -> BareSpan | None:
        spans = self._leases.get(lease_id)
        return spans.get(partition_id) if spans else None

    def span(self, lease_id: uuid.UUID, partition_id: int) -> Span | None:
        """Return what a lease covers; None when that, or the ids in it, are not known here."""
        span = self.bare_span(lease_id, partition_id)
        return span if isinstance(span, Span) else None

    def spans(self, lease_id: uuid.UUID) -> list[BareSpan]:
        return list(self._leases.get(lease_id, {}).values())

    def forget_group(self, group_id: int) -> None:
        """Strike out the leases of a group that was moved or deleted: they are void."""
        void = [
            (lease_id, span.partition.id)
            for lease_id, spans in self._leases.items()
            for span in spans.values()
            if span.group_id == group_id
        ]
        for lease_id, partition_id in void:
            self.close(lease_id, partition_id)

    def close(self, lease_id: uuid.UUID, partition_id: int) -> None:
        spans = self._leases.get(lease_id)
        span = spans.pop(partition_id, None) if spans else None
        if span is not None:
            self._weight -= span.weight
        if spans is not None and not spans:
            del self._leases[lease_id]
