"""What this server has leased out.

An ack names messages by transaction id; the book turns that into offsets without asking the
database. It is a convenience: a lease that is not in it (another server granted it, or it
was pushed out) is read from the log.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict, defaultdict

from queen.core.visibility import hidden_bits
from queen.service.catalog import Partition
from queen.service.log.segment_cache import StoredSegment

_MAX_MESSAGES = 100_000


class Span:
    """One partition's part of a lease."""

    __slots__ = ("_offsets", "group", "group_id", "hidden", "ids", "partition", "start", "stop")

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
        self.partition = partition
        self.group = group
        self.group_id = group_id
        self.start = start
        self.stop = stop
        # Transaction ids of [start, stop); those done before are in it too.
        self.ids = ids
        # Offsets that the group was not shown.
        self.hidden = hidden
        self._offsets: dict[str, list[int]] | None = None

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

    def __init__(self, start: int, stop: int, group: str) -> None:
        self._start = start
        self._stop = stop
        self._group = group
        self._ids: list[str] = []
        self._hidden: set[int] = set()

    def add(self, stored: StoredSegment) -> None:
        low, high = stored.part(self._start, self._stop)
        self._ids += stored.segment.transaction_ids(low, high)
        bits = hidden_bits(stored.segment, low, high, self._group)
        first = stored.base_offset + low
        self._hidden.update(first + at for at in range(high - low) if bits >> at & 1)

    def span(self, partition: Partition, group_id: int) -> Span:
        """Return what was gathered. What retention has removed is missing at the front."""
        first = self._stop - len(self._ids)
        self._hidden.update(range(self._start, first))
        hidden = frozenset(self._hidden)
        return Span(partition, self._group, group_id, first, self._stop, self._ids, hidden)


def span_of(
    partition: Partition,
    group: str,
    group_id: int,
    start: int,
    stop: int,
    segments: list[StoredSegment],
) -> Span:
    """Return what a lease covers of segments that are at hand."""
    builder = SpanBuilder(start, stop, group)
    for segment in segments:
        builder.add(segment)
    return builder.span(partition, group_id)


class LeaseBook:
    def __init__(self) -> None:
        self._leases: OrderedDict[uuid.UUID, dict[int, Span]] = OrderedDict()
        self._messages = 0

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, lease_id: uuid.UUID, span: Span) -> None:
        self._leases.setdefault(lease_id, {})[span.partition.id] = span
        self._messages += len(span.ids)
        while self._messages > _MAX_MESSAGES and len(self._leases) > 1:
            _, spans = self._leases.popitem(last=False)
            self._messages -= sum(len(span.ids) for span in spans.values())

    def span(self, lease_id: uuid.UUID, partition_id: int) -> Span | None:
        spans = self._leases.get(lease_id)
        return spans.get(partition_id) if spans else None

    def spans(self, lease_id: uuid.UUID) -> list[Span]:
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
            self._messages -= len(span.ids)
        if spans is not None and not spans:
            del self._leases[lease_id]
