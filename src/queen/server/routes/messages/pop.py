"""GET /api/v1/pop/…: lease the next messages."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, groupby
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from queen.core.columns.headers import HEADERS
from queen.core.frame import (
    CODEC_RAW,
    CONTENT_TYPE,
    Frame,
    encode_body,
    pack_frame,
    raw_size,
)
from queen.core.ids import message_prefix
from queen.core.names import QUEUE_MODE_GROUP
from queen.errors import BadRequest, NotFound
from queen.server.api.routing import Doc, Other, Param, Route
from queen.server.api.times import parse_time
from queen.server.auth.access import Role
from queen.server.protocol.answer_parts import FRAME_HEADERS, answer_in_parts
from queen.server.protocol.http import EMPTY, Query, Request, Response, check_name, query_of
from queen.server.protocol.long_poll import unless_gone
from queen.service.broker import Broker
from queen.service.catalog import FROM_BEGINNING, Queue, Subscription
from queen.service.consume.feeds import Grant, Pop
from queen.service.log.segment_cache import StoredSegment
from queen.service.read.sealed_reads import microseconds
from queen.wire import answers
from queen.wire.frames.leased import LeasedClaim, LeasedHead, pack_head
from queen.wire.parts import Label, Name
from queen.wire.results import PopAnswer

T = TypeVar("T")

MAX_BATCH = 10_000
_FRAMES = CONTENT_TYPE.encode()
MAX_PARTITIONS = 1_000
MAX_TIMEOUT_MS = 3_600_000
_DEFAULT_TIMEOUT_MS = 30_000
# Rendered at a time.
_RUN_BYTES = 128 * 1024
# Smaller segments are sent whole, however little of them is leased.
_WORTH_CUTTING_BYTES = 16 * 1024
_FROM_BEGINNING = {"", "all", "from_beginning", "earliest"}

_GROUP = Param(
    "consumerGroup", Name, "Who reads; each group has its own cursors.", QUEUE_MODE_GROUP
)
_BATCH = Param("batch", Annotated[int, Meta(ge=1, le=MAX_BATCH)], "At most so many messages.", 1)
_PARTITIONS = Param(
    "partitions",
    Annotated[int, Meta(ge=1, le=MAX_PARTITIONS)],
    "At most so many partitions under one lease.",
    1,
)
_OTHERS = (
    Param("wait", bool, "Wait for messages when there are none.", False),
    Param(
        "timeout",
        Annotated[int, Meta(ge=0, le=MAX_TIMEOUT_MS)],
        "Milliseconds to wait.",
        _DEFAULT_TIMEOUT_MS,
    ),
    Param(
        "shared",
        bool,
        "Let the group be shared (true) or read in order (false) from now on; left out, it stays.",
    ),
    Param("autoAck", bool, "Acknowledge at once: a message is delivered at most once.", False),
    Param(
        "subscriptionMode",
        Literal["all", "from_beginning", "earliest", "new", "new-only", "timestamp"],
        "Where a group that comes for the first time starts.",
        "all",
    ),
    Param(
        "subscriptionFrom",
        str,
        "Where it starts instead: `now`, or an ISO-8601 time; without a zone that is UTC.",
    ),
    Param("consumer", Name, "The consumer's own name, shown where its leases are."),
)
_ABOUT = """\
Leases the next messages to the caller until they are acknowledged or the lease ends; until
then nobody else of the group is served from their partitions, unless it is shared: then nobody
else is served with these messages. 204 means that there is
nothing now, or nothing came in time, 409 that the group is that of a query, which reads by time.
With `Accept: application/vnd.queen.segment` alone the answer is the leased messages as stored
segments, which `POST /api/v1/ack/spans` acknowledges by their offsets."""
_ANSWERS = {
    200: (PopAnswer, Other(CONTENT_TYPE, "Leased frames; see `queen.wire.frames.leased`.")),
    204: None,
}
_BY_LABEL = Doc(
    "messages",
    "Pop from any queue of a namespace and task",
    f"{_ABOUT} Either label may be left out.",
    query=(
        Param("namespace", Label, "Only queues of this namespace."),
        Param("task", Label, "Only queues of this task."),
        _GROUP,
        _BATCH,
        _PARTITIONS,
        *_OTHERS,
    ),
    answers=_ANSWERS,
    errors=(409,),
)
_FROM_QUEUE = Doc(
    "messages",
    "Pop from a queue",
    f"{_ABOUT} The queue need not exist yet.",
    query=(_GROUP, _BATCH, _PARTITIONS, *_OTHERS),
    answers=_ANSWERS,
    errors=(409,),
)
_FROM_PARTITION = _FROM_QUEUE._replace(
    summary="Pop from a partition", query=(_GROUP, _BATCH, *_OTHERS)
)


class PopRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/pop", Role.WRITE, self.by_label, _BY_LABEL, scoped=True),
            Route(
                "GET",
                "/api/v1/pop/queue/{queue}",
                Role.WRITE,
                self.from_queue,
                _FROM_QUEUE,
                scoped=True,
            ),
            Route(
                "GET",
                "/api/v1/pop/queue/{queue}/partition/{partition}",
                Role.WRITE,
                self.from_partition,
                _FROM_PARTITION,
                scoped=True,
            ),
        ]

    async def from_queue(self, request: Request) -> Response | None:
        return await self._pop_queue(request, request.params[0], None)

    async def from_partition(self, request: Request) -> Response | None:
        return await self._pop_queue(request, *request.params)

    async def by_label(self, request: Request) -> Response | None:
        """Pop from any queue with a namespace and a task; either may be left out."""
        query = query_of(request.query)
        label = (query.text("namespace"), query.text("task"))
        for kind, name in zip(("namespace", "task"), label, strict=True):
            check_name(kind, name or "any")
        since = await self._broker.clock.now() if query.flag("wait") else None
        pop = _pop_of(query, None, since)
        # Queues that come up while it waits are looked at in the same way.
        pop.namespaces = request.caller.namespaces
        labelled = await self._broker.catalog.queues_by_label(*label)
        queues = _in_order_of_priority(
            [queue for queue in labelled if request.caller.sees(queue.namespace)]
        )
        return await self._answer(request, pop, queues, _timeout_s(query), label)

    async def _pop_queue(
        self, request: Request, name: str, partition: str | None
    ) -> Response | None:
        check_name("queue", name)
        if partition is not None:
            check_name("partition", partition)
        query = query_of(request.query)
        pop, timeout_s = _pop_of(query, partition, None), _timeout_s(query)
        queue = await self._broker.scope.queue(request.caller, name)
        popper = self._broker.popper
        if queue is None and pop.waits:
            # A consumer may come before its producer; what is new is new since it came.
            pop = _pop_of(query, partition, await self._broker.clock.now())
            started = time.monotonic()
            waiting = self._broker.catalog.wait_for_queue(
                name, timeout_s, lambda: popper.gives_nothing
            )
            queue = await unless_gone(request, waiting)
            if queue is not None:
                # It may have come up in another namespace than its name says.
                queue = await self._broker.scope.queue(request.caller, name)
            timeout_s = max(0.0, timeout_s - (time.monotonic() - started))
        if queue is None:
            return EMPTY
        return await self._answer(request, pop, [queue], timeout_s, None)

    async def _answer(
        self,
        request: Request,
        pop: Pop,
        queues: list[Queue],
        timeout_s: float,
        label: tuple[str, str] | None,
    ) -> Response | None:
        pop.is_framed = request.headers.get(b"accept") == _FRAMES
        work = self._broker.home.pop(queues, pop, timeout_s, label)
        try:
            grants = await (unless_gone(request, work) if pop.waits else work)
        except NotFound:
            # The queue was deleted a moment ago: there is nothing in it.
            return EMPTY
        if grants and request.connection.is_gone:
            # The client hung up in the same moment: nobody would read the answer.
            self._broker.home.give_back(grants)
            return EMPTY
        if not grants:
            return EMPTY
        try:
            if pop.is_framed:
                bits = leased_bits(grants, pop.group)
                response = await answer_in_parts(request, bits, FRAME_HEADERS)
            else:
                response = await answer_in_parts(request, pop_bits(grants, pop.group))
            if response is None and request.connection.is_cut_off:
                # Nobody can read half an answer.
                self._broker.home.give_back(grants)
            return response
        finally:
            self._broker.home.release(grants)


def _in_order_of_priority(queues: list[Queue]) -> list[Queue]:
    """Return queues as a pop tries them: the higher first, equals in an order of chance, so that
    none of them is always the last."""
    shuffled = random.sample(queues, len(queues))
    return sorted(shuffled, key=lambda queue: -queue.options.priority)


def _pop_of(query: Query, partition: str | None, since: datetime | None) -> Pop:
    group = query.text("consumerGroup") or QUEUE_MODE_GROUP
    check_name("consumer group", group)
    consumer = query.text("consumer") or None
    if consumer is not None:
        check_name("consumer", consumer)
    if query.flag("conflation"):
        # Whoever asks for the latest alone must not take everything for it.
        raise BadRequest("conflation is not supported: leave it out; nothing was leased")
    return Pop(
        group,
        query.number("batch", 1, 1, MAX_BATCH),
        1 if partition is not None else query.number("partitions", 1, 1, MAX_PARTITIONS),
        auto_ack=query.flag("autoAck"),
        waits=query.flag("wait"),
        named=partition,
        subscription=_subscription(query, group, since),
        consumer=consumer,
        shared=query.flag("shared") if query.text("shared") else None,
    )


def _timeout_s(query: Query) -> float:
    return query.number("timeout", _DEFAULT_TIMEOUT_MS, 0, MAX_TIMEOUT_MS) / 1000


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


def pop_bits(grants: list[Grant], group: str) -> Iterator[bytes]:
    """Yield the answer of a pop bit by bit. Segments are let go as they are rendered."""
    first = grants[0]
    about = {
        "success": True,
        "queue": first.partition.queue.name,
        "partition": first.partition.name,
        "partitionId": first.partition.uuid,
        "leaseId": str(first.lease_id) if first.lease_id else "",
        "consumerGroup": group,
        "partitionsClaimed": len(grants),
        "claims": [_claim(grant) for grant in grants],
    }
    return answers.pop_answer(chain.from_iterable(map(_messages_of, grants)), about)


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


def _messages_of(grant: Grant) -> Iterator[list[bytes]]:
    """Yield messages, some at a time."""
    for stored, low, high, failures in _runs(grant):
        subjects = stored.segment.column("producerSub")
        for start, stop in stored.segment.runs(low, high, _RUN_BYTES):
            if subjects is None:
                yield _run_of(grant, stored, start, stop, failures, None)
                continue
            # Messages of one producer mostly stand together.
            for subject, run in groupby(range(start, stop), subjects.__getitem__):
                first, *rest = run
                yield _run_of(grant, stored, first, first + 1 + len(rest), failures, subject)


def _run_of(
    grant: Grant, stored: StoredSegment, low: int, high: int, failures: int, subject: str | None
) -> list[bytes]:
    """Return messages [low, high) of a segment, equally often failed and of one producer."""
    partition, segment = grant.partition, stored.segment
    traces, headers = segment.column("traceId"), segment.column(HEADERS)
    first = stored.base_offset + low
    common = {
        "queue": partition.queue.name,
        "partition": partition.name,
        "partitionId": partition.uuid,
        "leaseId": str(grant.lease_id) if grant.lease_id else "",
        "consumerGroup": None if grant.group == QUEUE_MODE_GROUP else grant.group,
        "createdAt": answers.iso(stored.created_at),
        "retryCount": failures,
        "priority": partition.queue.options.priority,
        "producerSub": subject,
    }
    return answers.messages(
        first,
        _quotable_ids(segment.id_bytes(low, high)),
        segment.payloads(low, high),
        traces[low:high] if traces else None,
        grant.skip >> (first - grant.start) if grant.skip else 0,
        message_prefix(partition.id),
        common,
        headers[low:high] if headers else None,
    )


def _runs(grant: Grant) -> Iterator[tuple[StoredSegment, int, int, int]]:
    """Yield the parts of segments whose messages have failed equally often, nearly always one."""
    grant.stored.reverse()
    while grant.stored:
        stored = grant.stored.pop()
        low, high = stored.part(grant.start, grant.stop)
        if grant.attempt == 1 and not grant.failures:
            yield stored, low, high, 0
            continue
        offsets = range(stored.base_offset + low, stored.base_offset + high)
        for failures, run in groupby(offsets, lambda offset: grant.attempt_of(offset) - 1):
            first, *rest = run
            at = first - stored.base_offset
            yield stored, at, at + 1 + len(rest), failures


def _quotable_ids(ids: list[bytes]) -> list[bytes]:
    if answers.needs_no_escape(b"".join(ids).decode()):
        return ids
    return [msgspec.json.encode(name.decode())[1:-1] for name in ids]


# ---- frames ----


def leased_bits(grants: list[Grant], group: str) -> Iterator[bytes]:
    """Yield the answer of a pop that wants frames, bit by bit; segments are let go on the way.

    Messages are not looked at one by one: what differs from one to the next is said in the head,
    and nearly always there is nothing to say.
    """
    lease_id = grants[0].lease_id
    yield pack_head(
        LeasedHead(str(lease_id or ""), group, [_leased_claim(grant) for grant in grants])
    )
    for grant in grants:
        grant.stored.reverse()
        while grant.stored:
            yield _frame(grant, grant.stored.pop())


def _leased_claim(grant: Grant) -> LeasedClaim:
    partition = grant.partition
    return LeasedClaim(
        queue=partition.queue.name,
        partition=partition.name,
        partitionId=partition.uuid,
        epoch=grant.epoch,
        attempt=grant.attempt,
        firstOffset=grant.start,
        endOffset=grant.stop,
        leaseMs=0 if grant.lease_id is None else grant.lease_ms,
        priority=partition.queue.options.priority,
        frames=len(grant.stored),
        hidden=_hidden(grant) if grant.skip else [],
        failures=_failures(grant) if grant.failures or grant.attempt > 1 else {},
    )


def _hidden(grant: Grant) -> list[int]:
    offsets = range(grant.start, grant.stop)
    return [offset for at, offset in enumerate(offsets) if grant.skip >> at & 1]


def _failures(grant: Grant) -> dict[int, int]:
    """Return how often messages were delivered before, where that is not as often as the first."""
    counts = ((offset, grant.attempt_of(offset)) for offset in range(grant.start, grant.stop))
    return {offset: attempt - 1 for offset, attempt in counts if attempt != grant.attempt}


def _frame(grant: Grant, stored: StoredSegment) -> bytes:
    """Return a segment as it is stored, or what is leased of it if that is much less."""
    partition, (codec, body) = grant.partition, stored.encoded()
    first, count = stored.base_offset, stored.segment.count
    low, high = stored.part(grant.start, grant.stop)
    if len(body) > _WORTH_CUTTING_BYTES:
        part_bytes = stored.segment.size_bytes * (high - low) // count
        if part_bytes < len(body) // 2:
            first, count = first + low, high - low
            codec, body = CODEC_RAW, encode_body(stored.segment.cut(low, high))
    return pack_frame(
        Frame(
            partition.queue.name,
            partition.name,
            count,
            codec,
            raw_size(codec, body),
            body,
            first,
            microseconds(stored.created_at),
            partition.id,
        )
    )
