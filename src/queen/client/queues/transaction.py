"""Transactions: acks and pushes that happen together or not at all.

    async with queen.transaction() as transaction:
        transaction.ack(message)
        transaction.push("invoices", {"order": 7}, partition="customer-7")

Leaving the block commits; an exception in it commits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from queen.client import tracing
from queen.client.leases.acks import ack_of
from queen.client.payloads import encode_payload
from queen.client.pushing.items import item_of
from queen.client.queues.messages import Delivered, messages_of
from queen.client.queues.queue import DEFAULT_PARTITION

if TYPE_CHECKING:
    from queen.client.queen import Queen


class Transaction:
    """Acks and pushes that are gathered here and happen together when it commits."""

    def __init__(self, queen: Queen) -> None:
        self._queen = queen
        self._operations: list[dict[str, Any]] = []
        self._leases: dict[str, None] = {}
        self._acked: list[tuple[Delivered, str]] = []

    def ack(
        self,
        messages: Delivered | Sequence[Delivered],
        status: str = "completed",
        error: str | BaseException | None = None,
    ) -> Transaction:
        """Acknowledge messages when the transaction commits."""
        for message in [messages] if isinstance(messages, Delivered) else messages:
            ack = ack_of(message, status, error)
            self._operations.append({"type": "ack", **msgspec.to_builtins(ack)})
            self._acked.append((message, status))
            if message.lease_id:
                self._leases[message.lease_id] = None
        return self

    def push(
        self,
        queue: str,
        items: Any,
        *,
        partition: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Transaction:
        """Push messages when the transaction commits."""
        pushed_items = [
            item_of(
                queue,
                message.partition or partition or DEFAULT_PARTITION,
                message,
                encode_payload(message.data),
            )
            for message in messages_of(items, tracing.carried(headers))
        ]
        self._operations.append({"type": "push", "items": pushed_items})
        return self

    def queue(self, name: str) -> TransactionQueue:
        """The fluent form: `transaction.queue("out").partition("p").push({...})`."""
        return TransactionQueue(self, name)

    async def commit(self) -> dict[str, Any]:
        """Do all of it, or raise and do nothing."""
        if not self._operations:
            raise ValueError("the transaction has no operations to commit")
        body = {"operations": self._operations, "requiredLeases": list(self._leases)}
        # Leases of several servers go to the first one's: any of them serves all.
        server = self._acked[0][0]._server if self._acked else ""
        answer: dict[str, Any] = await self._queen.post("/api/v1/transaction", body, server=server)
        for message, status in self._acked:
            message._note_outcome(status)
        self._operations, self._leases, self._acked = [], {}, []
        return answer

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is None and self._operations:
            await self.commit()


class TransactionQueue:
    """A queue that a transaction pushes to."""

    def __init__(self, transaction: Transaction, name: str) -> None:
        self._transaction = transaction
        self._name = name
        self._partition: str | None = None

    def partition(self, partition: str) -> TransactionQueue:
        """Push to this partition."""
        self._partition = partition
        return self

    def push(self, items: Any, *, headers: Mapping[str, str] | None = None) -> Transaction:
        """Push messages when the transaction commits."""
        return self._transaction.push(self._name, items, partition=self._partition, headers=headers)
