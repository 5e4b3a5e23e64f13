"""Flows: through what messages went into which queue, counted in memory.

A queue does not know what is behind it. But whoever acknowledges in the transaction in which it
pushes, pushes the results of a window, or publishes a batch of Spark, tells the broker both ends.
Each such flow is a counter; the report of the server writes those that have moved.

    group of a queue  ──▶ queue      a transaction that acks and pushes
    group of a queue  ──▶ nowhere    acks: how fast the group reads
    group of a stream ──▶ queue      the results of windows
    query of Spark    ──▶ queue      batches of a sink

Counters are few: one for each pair that was seen within the hour, and no more than a bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from queen.storage.database import Transaction

if TYPE_CHECKING:
    from queen.service.acks.ack_batch import AckBatch
    from queen.service.log.append import Append

_MINUTE = timedelta(minutes=1)
_IDLE = timedelta(hours=1)
_MOST = 20_000
NOWHERE = 0


class FlowKey(NamedTuple):
    """One flow, in the order of the columns of `queen.flows`."""

    kind: str
    source_id: int
    via: str
    queue_id: int


class _Flow:
    """The messages of a minute, and of the one before it."""

    __slots__ = ("before", "messages", "minute", "unsent")

    def __init__(self) -> None:
        self.unsent = self.messages = self.before = 0
        self.minute: datetime | None = None

    def turn_to(self, minute: datetime) -> None:
        if self.minute != minute:
            self.before = self.messages if self.minute == minute - _MINUTE else 0
            self.messages, self.minute = 0, minute
        self.messages += self.unsent
        self.unsent = 0


class Flows:
    def __init__(self) -> None:
        self._flows: dict[FlowKey, _Flow] = {}
        # Of acks only the least is done while somebody waits: queue and group, and how many.
        self._acked: dict[tuple[int, str], int] = {}
        self._touched: set[FlowKey] = set()

    def count_acked(self, queue_id: int, group: str, messages: int) -> None:
        key = queue_id, group
        self._acked[key] = self._acked.get(key, 0) + messages

    def count_transaction(self, batches: Iterable[AckBatch], appends: Iterable[Append]) -> None:
        """Count what was pushed in the transaction that acknowledged."""
        sources = {("group", batch.partition.queue.id, batch.group) for batch in batches}
        for source in sources:
            self.count_pushed(*source, appends)

    def count_pushed(self, kind: str, source_id: int, via: str, appends: Iterable[Append]) -> None:
        for append in appends:
            if append.target is not None:
                pushed = len(append) - len(append.repeats or ())
                self.count(FlowKey(kind, source_id, via, append.target.queue.id), pushed)

    def count(self, key: FlowKey, messages: int) -> None:
        flow = self._flows.get(key)
        if flow is None:
            if len(self._flows) >= _MOST:
                return
            flow = self._flows[key] = _Flow()
        flow.unsent += messages
        self._touched.add(key)

    async def report(self, transaction: Transaction, server_id: int, minute: datetime) -> None:
        """Write the flows that have moved since the last report that was committed."""
        acked, self._acked = self._acked, {}
        for (queue_id, group), messages in acked.items():
            self.count(FlowKey("group", queue_id, group, NOWHERE), messages)
        self._forget_idle(minute)
        touched = sorted(self._touched)
        if not touched:
            return
        flows = [self._flows[key] for key in touched]
        for flow in flows:
            flow.turn_to(minute)
        await transaction.execute(
            "report_flows",
            server_id,
            minute,
            *(list(column) for column in zip(*touched, strict=True)),
            [flow.messages for flow in flows],
            [flow.before for flow in flows],
        )
        # Numbers are absolute: should the transaction fail, the next report has these too as soon
        # as the flow moves again.
        self._touched.clear()

    def _forget_idle(self, minute: datetime) -> None:
        if len(self._flows) < _MOST // 2:
            return
        for key, flow in list(self._flows.items()):
            if not flow.unsent and flow.minute is not None and flow.minute < minute - _IDLE:
                del self._flows[key]
