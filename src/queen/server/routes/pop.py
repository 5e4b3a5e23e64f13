"""GET /api/v1/pop/…: lease the next messages."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from queen.core.ids import message_prefix
from queen.core.names import QUEUE_MODE_GROUP, reason_against_name
from queen.errors import BadRequest
from queen.server.http import EMPTY, Query, Request, Response
from queen.service.broker import Broker
from queen.service.catalog import FROM_BEGINNING, Queue, Subscription
from queen.service.feeds import Grant, Pop
from queen.wire import answers

T = TypeVar("T")

MAX_BATCH = 10_000
MAX_PARTITIONS = 1_000
MAX_TIMEOUT_MS = 3_600_000
_DEFAULT_TIMEOUT_MS = 30_000
_FROM_BEGINNING = {"", "all", "from_beginning", "earliest"}


class PopRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def from_queue(self, request: Request) -> Response:
        query = Query(request.query)
        return await self._pop_queue(request, query, request.params[0], None)

    async def from_partition(self, request: Request) -> Response:
        query = Query(request.query)
        return await self._pop_queue(request, query, *request.params)

    async def by_label(self, request: Request) -> Response:
        """Pop from any queue with a namespace and a task; either may be left out."""
        query = Query(request.query)
        label = (query.text("namespace"), query.text("task"))
        queues = await self._broker.catalog.queues_by_label(*label)
        since = await self._broker.now() if query.flag("wait") else None
        return await self._answer(request, query, queues, None, label, since)

    async def _pop_queue(
        self, request: Request, query: Query, name: str, partition: str | None
    ) -> Response:
        reason = reason_against_name("queue", name)
        if reason is None and partition is not None:
            reason = reason_against_name("partition", partition)
        if reason:
            raise BadRequest(reason)
        queue = await self._broker.catalog.queue(name)
        if queue is not None:
            return await self._answer(request, query, [queue], partition)
        if not query.flag("wait"):
            return EMPTY
        # A consumer may come before its producer; what is new is new since it came.
        since = await self._broker.now()
        waiting = self._broker.catalog.appearance(name, _timeout_ms(query) / 1000)
        queue = await _unless_gone(request, waiting)
        if queue is None:
            return EMPTY
        return await self._answer(request, query, [queue], partition, since=since)

    async def _answer(
        self,
        request: Request,
        query: Query,
        queues: list[Queue],
        partition: str | None,
        label: tuple[str, str] | None = None,
        since: datetime | None = None,
    ) -> Response:
        group = query.text("consumerGroup") or QUEUE_MODE_GROUP
        reason = reason_against_name("consumer group", group)
        if reason:
            raise BadRequest(reason)
        waits = query.flag("wait")
        pop = Pop(
            group,
            query.number("batch", 1, 1, MAX_BATCH),
            1 if partition is not None else query.number("partitions", 1, 1, MAX_PARTITIONS),
            auto_ack=query.flag("autoAck"),
            waits=waits,
            named=partition,
            subscription=_subscription(query, group, since),
        )
        work = self._broker.popper.pop(queues, pop, _timeout_ms(query) / 1000, label)
        grants = await (_unless_gone(request, work) if waits else work)
        if not grants:
            return EMPTY
        return Response(200, pop_body(grants, group))


def _timeout_ms(query: Query) -> int:
    return query.number("timeout", _DEFAULT_TIMEOUT_MS, 0, MAX_TIMEOUT_MS)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Wait for work, but not longer than the client does."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.line.gone())
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            return None
        return working.result()
    finally:
        gone.cancel()


def _subscription(query: Query, group: str, since: datetime | None) -> Subscription:
    """Return where a group that comes for the first time starts; `since` is when it came."""
    mode, start = query.text("subscriptionMode"), query.text("subscriptionFrom")
    if group == QUEUE_MODE_GROUP:
        return FROM_BEGINNING
    if mode in ("new", "new-only") or start == "now":
        return Subscription("new", since)
    if start and start not in _FROM_BEGINNING:
        return Subscription("timestamp", parse_time("subscriptionFrom", start))
    if mode not in _FROM_BEGINNING and mode != "timestamp":
        raise BadRequest(f"subscriptionMode {mode!r} is not known: all, new or timestamp")
    return FROM_BEGINNING


def parse_time(name: str, text: str) -> datetime:
    """Return an instant from ISO-8601 text; without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadRequest(f"{name} is not an ISO-8601 time: {text!r}") from None


def pop_body(grants: list[Grant], group: str) -> bytes:
    first = grants[0]
    found: list[bytes] = []
    for grant in grants:
        found += _messages_of(grant)
    return answers.pop_answer(
        found,
        {
            "success": True,
            "queue": first.partition.queue.name,
            "partition": first.partition.name,
            "partitionId": first.partition.uuid,
            "leaseId": str(first.lease_id) if first.lease_id else "",
            "consumerGroup": group,
            "partitionsClaimed": len(grants),
            "claims": [_claim(grant) for grant in grants],
        },
    )


def _claim(grant: Grant) -> dict[str, object]:
    """What was leased of one partition, for those who fence their own side effects."""
    return {
        "queue": grant.partition.queue.name,
        "partition": grant.partition.name,
        "partitionId": grant.partition.uuid,
        "epoch": grant.epoch,
        "attempt": grant.attempt,
        "firstOffset": grant.start,
        "endOffset": grant.stop,
        "leaseMs": 0 if grant.lease_id is None else grant.lease_ms,
    }


def _messages_of(grant: Grant) -> list[bytes]:
    partition = grant.partition
    group = None if grant.group == QUEUE_MODE_GROUP else grant.group
    found: list[bytes] = []
    for stored in grant.stored:
        low, high = stored.part(grant.start, grant.stop)
        segment = stored.segment
        traces = segment.column("traceId")
        first = stored.base_offset + low
        common = {
            "queue": partition.queue.name,
            "partition": partition.name,
            "partitionId": partition.uuid,
            "leaseId": str(grant.lease_id) if grant.lease_id else "",
            "consumerGroup": group,
            "createdAt": answers.iso(stored.created_at),
            "retryCount": grant.attempt - 1,
            "priority": partition.queue.options.priority,
            "producerSub": None,
        }
        found += answers.messages(
            first,
            _quotable_ids(segment.id_bytes(low, high)),
            segment.payloads(low, high),
            traces[low:high] if traces else None,
            grant.acked >> (first - grant.start) if grant.acked else 0,
            message_prefix(partition.id),
            common,
        )
    return found


def _quotable_ids(ids: list[bytes]) -> list[bytes]:
    if answers.needs_no_escape(b"".join(ids).decode()):
        return ids
    return [msgspec.json.encode(one.decode())[1:-1] for one in ids]
