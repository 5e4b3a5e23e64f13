"""GET /api/v1/pop/…: lease the next messages. POST: the same, after acks of the last ones."""

from __future__ import annotations

import random
import time
from collections.abc import Coroutine, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from queen.core.frame import CONTENT_TYPE
from queen.core.names import QUEUE_MODE_GROUP
from queen.errors import BadRequest, LeaseLost, NotFound, QueenError
from queen.server.answers.acks import check_spans, span_result
from queen.server.answers.pops import leased_bits, pop_bits
from queen.server.api.failures import UNDECODABLE, decode_body, failure
from queen.server.api.routing import Doc, Other, Param, Route
from queen.server.api.times import parse_time
from queen.server.auth.access import Role
from queen.server.protocol.answer_parts import FRAME_HEADERS, PART_BYTES, answer_in_parts
from queen.server.protocol.http import (
    EMPTY,
    JSON_HEADERS,
    Handler,
    Headers,
    Query,
    QuickHandler,
    Request,
    Response,
    check_name,
    query_of,
)
from queen.server.protocol.long_poll import unless_gone
from queen.service.acks.ack_batch import OffsetBatch
from queen.service.broker import Broker
from queen.service.catalog import FROM_BEGINNING, Queue, Subscription
from queen.service.consume.begun_pop import BegunPop
from queen.service.consume.feeds import Grant, Pop
from queen.wire.parts import Label, Name
from queen.wire.requests import PopAfterRequest
from queen.wire.results import PopAnswer

MAX_BATCH = 10_000
MAX_PARTITIONS = 1_000
MAX_TIMEOUT_MS = 3_600_000
_DEFAULT_TIMEOUT_MS = 30_000
_FRAMES = CONTENT_TYPE.encode()
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
_AFTER_ACKS = """\
Acknowledges messages by their offsets, as `POST /api/v1/ack/spans` does, and pops as `GET` does:
one request instead of two for whoever works on and on. The acknowledgments are taken at once,
however long the pop then waits, and its answer says that all of them were. When one is refused,
nothing is leased, and 409 says in `spans` what became of each. The request may be repeated, as an
acknowledgment may."""
_SAID = {
    "spans": [
        {
            "partitionId": "00000000-0000-8007-bfff-ffffffffffff",
            "leaseId": "6f1c1f0e-6a0b-4e5c-9a39-1c5b0f4f2a11",
            "done": [[0, 1]],
        }
    ]
}


def _after_acks(doc: Doc, summary: str) -> Doc:
    group = _GROUP._replace(example="billing")
    query = tuple(group if param is _GROUP else param for param in doc.query)
    said = doc._replace(body=PopAfterRequest, example=_SAID, query=query)
    return said._replace(summary=summary, about=_AFTER_ACKS)


_FROM_QUEUE_AFTER = _after_acks(_FROM_QUEUE, "Acknowledge messages and pop from a queue")
_FROM_PARTITION_AFTER = _after_acks(
    _FROM_PARTITION, "Acknowledge messages and pop from a partition"
)
_SOME_REFUSED = "some acknowledgments were refused; nothing was leased"


_after = msgspec.json.Decoder(PopAfterRequest)
_NO_ACKS = PopAfterRequest([])
# Longer queries are taken apart each time.
_KEPT_CHARACTERS = 256

_QUEUE = "/api/v1/pop/queue/{queue}"
_PARTITION = f"{_QUEUE}/partition/{{partition}}"


def _route(
    method: str, path: str, handler: Handler, doc: Doc, quick: QuickHandler | None = None
) -> Route:
    return Route(method, path, Role.WRITE, handler, doc, scoped=True, quick=quick)


class PopRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/pop", Role.WRITE, self.by_label, _BY_LABEL, scoped=True),
            _route("GET", _QUEUE, self.from_queue, _FROM_QUEUE, self.begin_pop),
            _route("GET", _PARTITION, self.from_partition, _FROM_PARTITION),
            _route("POST", _QUEUE, self.from_queue_after_acks, _FROM_QUEUE_AFTER, self.begin_pop),
            _route("POST", _PARTITION, self.from_partition_after_acks, _FROM_PARTITION_AFTER),
        ]

    def begin_pop(self, request: Request) -> _Begun | None:
        """Begin a pop, perhaps after acks, that has to do nothing but wait."""
        broker, (name,) = self._broker, request.params
        if request.caller.namespaces is not None:
            return None
        try:
            wanted = _wanted_of(request.query)
            body = _after.decode(request.body) if request.method == "POST" else _NO_ACKS
            check_spans(body.spans)
            pop = wanted.pop(None, None)
        except (QueenError, *UNDECODABLE):
            return None
        queue = broker.catalog.cached_queue(name)
        acks = broker.ack_intake.known_spans(body.spans, wanted.group)
        if queue is None or acks is None:
            return None
        pop.is_framed = request.headers.get(b"accept") == _FRAMES
        begun = broker.home.begin_pop(queue, pop, wanted.timeout_s, acks)
        return None if begun is None else _Begun(self, request, begun, acks)

    async def from_queue(self, request: Request) -> Response | None:
        return await self._pop_queue(request, request.params[0], None)

    async def from_partition(self, request: Request) -> Response | None:
        queue, partition = request.params
        return await self._pop_queue(request, queue, partition)

    async def from_queue_after_acks(self, request: Request) -> Response | None:
        return await self._pop_queue_after_acks(request, request.params[0], None)

    async def from_partition_after_acks(self, request: Request) -> Response | None:
        queue, partition = request.params
        return await self._pop_queue_after_acks(request, queue, partition)

    async def by_label(self, request: Request) -> Response | None:
        """Pop from any queue with a namespace and a task; either may be left out."""
        query, wanted = query_of(request.query), _wanted_of(request.query)
        label = (query.text("namespace"), query.text("task"))
        for kind, name in zip(("namespace", "task"), label, strict=True):
            check_name(kind, name or "any")
        pop = wanted.pop(None, await self._broker.clock.now() if wanted.waits else None)
        # Queues that come up while it waits are looked at in the same way.
        pop.namespaces = request.caller.namespaces
        labelled = await self._broker.catalog.queues_by_label(*label)
        queues = _in_order_of_priority(
            [queue for queue in labelled if request.caller.sees(queue.namespace)]
        )
        return await self._answer(request, pop, queues, wanted.timeout_s, label)

    async def _pop_queue_after_acks(
        self, request: Request, name: str, partition: str | None
    ) -> Response | None:
        spans = decode_body(_after, request.body).spans
        check_spans(spans)
        wanted = _wanted_of(request.query)
        gathered = await self._broker.ack_intake.gather_spans(request.caller, spans, wanted.group)
        batches = [batch for batch in gathered if isinstance(batch, OffsetBatch)]
        if len(batches) == len(gathered):
            response = await self._pop_queue(request, name, partition, batches)
            if all(batch.is_taken for batch in batches):
                return response
        elif batches:
            await self._broker.home.ack([*batches])
        return _refused(gathered)

    async def _pop_queue(
        self,
        request: Request,
        name: str,
        partition: str | None,
        acks: Sequence[OffsetBatch] = (),
    ) -> Response | None:
        check_name("queue", name)
        if partition is not None:
            check_name("partition", partition)
        wanted = _wanted_of(request.query)
        pop, timeout_s = wanted.pop(partition, None), wanted.timeout_s
        queue = await self._broker.scope.queue(request.caller, name)
        if queue is None:
            await self._broker.home.ack([*acks])
            acks = ()
        if queue is None and pop.waits:
            # A consumer may come before its producer; what is new is new since it came.
            pop = wanted.pop(partition, await self._broker.clock.now())
            started = time.monotonic()
            queue = await self._wait_for_queue(request, name, timeout_s)
            timeout_s = max(0.0, timeout_s - (time.monotonic() - started))
        if queue is None:
            return EMPTY
        return await self._answer(request, pop, [queue], timeout_s, None, acks)

    async def _wait_for_queue(self, request: Request, name: str, timeout_s: float) -> Queue | None:
        popper = self._broker.popper
        waiting = self._broker.catalog.wait_for_queue(name, timeout_s, lambda: popper.gives_nothing)
        queue = await unless_gone(request, waiting)
        # It may have come up in another namespace than its name says.
        return queue and await self._broker.scope.queue(request.caller, name)

    async def _answer(
        self,
        request: Request,
        pop: Pop,
        queues: list[Queue],
        timeout_s: float,
        label: tuple[str, str] | None,
        acks: Sequence[OffsetBatch] = (),
    ) -> Response | None:
        pop.is_framed = request.headers.get(b"accept") == _FRAMES
        home = self._broker.home
        if acks:
            work = home.pop_after([*acks], queues, pop, timeout_s)
        else:
            work = home.pop(queues, pop, timeout_s, label)
        try:
            grants = await (unless_gone(request, work) if pop.waits else work)
        except NotFound:
            # The queue was deleted a moment ago: there is nothing in it.
            return EMPTY
        return await self.answer(request, pop, grants) if grants else EMPTY

    async def answer(self, request: Request, pop: Pop, grants: list[Grant]) -> Response | None:
        """Answer with what a pop got, in parts if it is much."""
        home = self._broker.home
        if request.connection.is_gone:
            # The client hung up in the same moment: nobody would read the answer.
            home.give_back(grants)
            return EMPTY
        try:
            response = await answer_in_parts(request, *_rendered(pop, grants))
            if response is None and request.connection.is_cut_off:
                # Nobody can read half an answer.
                home.give_back(grants)
            return response
        finally:
            home.release(grants)

    def answer_at_once(self, pop: Pop, grants: list[Grant]) -> Response:
        """Answer with what is not much."""
        try:
            bits, headers = _rendered(pop, grants)
            return Response(200, b"".join(bits), headers)
        finally:
            self._broker.home.release(grants)


class _Begun:
    """A pop that waits without a task; see `queen.server.protocol.http.Begun`."""

    __slots__ = ("_acks", "_begun", "_request", "_routes", "leave", "then")

    def __init__(
        self, routes: PopRoutes, request: Request, begun: BegunPop, acks: Sequence[OffsetBatch]
    ) -> None:
        self._routes = routes
        self._request = request
        self._begun = begun
        self._acks = acks
        self.then = begun.then
        self.leave = begun.leave

    def answer(self) -> Response | Coroutine[Any, Any, Response | None]:
        try:
            grants = self._begun.take()
        except NotFound:
            grants = []
        if not all(batch.is_taken for batch in self._acks):
            return self._refuse(grants)
        if not grants:
            return EMPTY
        pop = self._begun.pop
        if self._request.connection.is_gone or sum(map(_held_bytes, grants)) > PART_BYTES:
            return self._routes.answer(self._request, pop, grants)
        return self._routes.answer_at_once(pop, grants)

    async def _refuse(self, grants: list[Grant]) -> Response:
        await self._begun.take_back(grants)
        return _refused(self._acks)


def _held_bytes(grant: Grant) -> int:
    return grant.held_bytes


def _rendered(pop: Pop, grants: list[Grant]) -> tuple[Iterator[bytes], Headers]:
    if pop.is_framed:
        return leased_bits(grants, pop.group), FRAME_HEADERS
    return pop_bits(grants, pop.group), JSON_HEADERS


def _in_order_of_priority(queues: list[Queue]) -> list[Queue]:
    """Return queues as a pop tries them: the higher first, equals in an order of chance, so that
    none of them is always the last."""
    shuffled = random.sample(queues, len(queues))
    return sorted(shuffled, key=lambda queue: -queue.options.priority)


class _Wanted(NamedTuple):
    """What a pop asks for in its query."""

    query: Query
    group: str
    batch: int
    auto_ack: bool
    waits: bool
    timeout_s: float
    mode: str
    start: str
    consumer: str | None
    shared: bool | None

    @classmethod
    def of(cls, text: str) -> _Wanted:
        query = query_of(text)
        group = query.text("consumerGroup") or QUEUE_MODE_GROUP
        check_name("consumer group", group)
        consumer = query.text("consumer") or None
        if consumer is not None:
            check_name("consumer", consumer)
        if query.flag("conflation"):
            # Whoever asks for the latest alone must not take everything for it.
            raise BadRequest("conflation is not supported: leave it out; nothing was leased")
        wanted = cls(
            query,
            group,
            query.number("batch", 1, 1, MAX_BATCH),
            query.flag("autoAck"),
            query.flag("wait"),
            query.number("timeout", _DEFAULT_TIMEOUT_MS, 0, MAX_TIMEOUT_MS) / 1000,
            query.text("subscriptionMode"),
            query.text("subscriptionFrom"),
            consumer,
            query.flag("shared") if query.text("shared") else None,
        )
        wanted.subscription(None)
        return wanted

    def pop(self, partition: str | None, since: datetime | None) -> Pop:
        """Return a pop; `since` is when it came."""
        return Pop(
            self.group,
            self.batch,
            1 if partition is not None else self.query.number("partitions", 1, 1, MAX_PARTITIONS),
            auto_ack=self.auto_ack,
            waits=self.waits,
            named=partition,
            subscription=self.subscription(since),
            consumer=self.consumer,
            shared=self.shared,
        )

    def subscription(self, since: datetime | None) -> Subscription:
        """Return where a group that comes for the first time starts."""
        mode, start = self.mode, self.start
        if self.group == QUEUE_MODE_GROUP:
            return FROM_BEGINNING
        if mode in ("new", "new-only") or start == "now":
            return Subscription("new", since)
        if start and start not in _FROM_BEGINNING:
            return Subscription("timestamp", parse_time("subscriptionFrom", start))
        if mode not in _FROM_BEGINNING and mode != "timestamp":
            raise BadRequest(f"subscriptionMode {mode!r} is not known: all, new or timestamp")
        return FROM_BEGINNING


# Consumers ask the same again and again.
_kept_wanted = lru_cache(maxsize=1024)(_Wanted.of)


def _wanted_of(text: str) -> _Wanted:
    return _kept_wanted(text) if len(text) <= _KEPT_CHARACTERS else _Wanted.of(text)


def _refused(acks: Sequence[OffsetBatch | QueenError]) -> Response:
    return failure(LeaseLost(_SOME_REFUSED), spans=[*map(span_result, acks)])
