"""Acks: what is said of messages, and how it is sent.

Of messages that came in frames it is said by spans: which runs of offsets are done, and which
messages are not. Those that came in JSON are named one by one, by their transaction ids; so are
all of them to a server that knows no spans, as while a broker is replaced by another version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from queen.client.durations import Seconds, told_ms
from queen.client.leases.grants import FrameGrant, Grant, PartitionLease, Popped
from queen.client.queues.messages import Delivered, error_text
from queen.client.transport.errors_from_answer import decode_answer
from queen.errors import LeaseLost, NotFound

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from queen.client.transport.cluster import Cluster

COMPLETED = "completed"
# As many as a server takes at once: that of `queen.wire.answers`, which a client does not load.
MAX_ACKS = 20_000
# Each may be a span and a run of its own.
_MAX_WITH_POP = MAX_ACKS // 2


class AckItem(msgspec.Struct, rename="camel", omit_defaults=True):
    """What is said of one message, by its transaction id."""

    transaction_id: str
    partition_id: str
    lease_id: str | None = None
    status: str = COMPLETED
    error: str | None = None
    consumer_group: str | None = None
    retry_after_ms: int | None = None


class _Said(NamedTuple):
    """What is said of some messages of a grant."""

    grant: Grant
    numbers: Sequence[int]
    status: str
    error: str | None
    retry_after_ms: int | None = None

    @property
    def has_span(self) -> bool:
        """Whether it can be said by offsets; without a lease there is nothing to compare."""
        return isinstance(self.grant, FrameGrant) and bool(self.grant.lease.id)

    def items(self) -> Iterator[AckItem]:
        grant = self.grant
        for number in self.numbers:
            yield AckItem(
                grant.transaction_id(number),
                grant.partition_id(number),
                grant.lease_id(number) or None,
                self.status,
                self.error,
                grant.consumer_group(number),
                self.retry_after_ms,
            )


class LostAcks(NamedTuple):
    """How many messages were not ours any more, and what the server said of that."""

    messages: int = 0
    error: str | None = None

    def plus(self, other: LostAcks) -> LostAcks:
        return LostAcks(self.messages + other.messages, self.error or other.error)


class Acks:
    """What is to be said of messages that one server granted."""

    def __init__(self) -> None:
        self._said: list[_Said] = []
        self.count = 0
        # Of the handlers whose messages these are, where they are traced.
        self.spans: list[SpanContext] = []

    def add(
        self,
        grant: Grant,
        numbers: Sequence[int],
        status: str = COMPLETED,
        error: str | BaseException | None = None,
        delay: Seconds | None = None,
    ) -> None:
        """Say something of some messages of a grant."""
        if numbers:
            retry_after_ms = None if delay is None else told_ms("delay", delay, least_ms=0)
            self._said.append(_Said(grant, numbers, status, error_text(error), retry_after_ms))
            self.count += len(numbers)

    def add_part(
        self,
        batch: Popped[Any],
        start: int,
        stop: int,
        status: str = COMPLETED,
        error: str | BaseException | None = None,
    ) -> None:
        """Say something of a batch's messages from one place up to another, but for those of which
        their handler has said something itself."""
        for grant, low, high in batch.parts(start, stop):
            self.add(grant, grant.unsettled(low, high), status, error)

    def items(self) -> Iterator[AckItem]:
        """Yield what is said of each message, by its transaction id."""
        for said in self._said:
            yield from said.items()

    @property
    def fits_a_pop(self) -> bool:
        """Whether all of it can be said in the request for the next messages."""
        return 0 < self.count <= _MAX_WITH_POP and all(said.has_span for said in self._said)

    def body_of_pop(self) -> bytes:
        """Return what the request for the next messages says of these."""
        return msgspec.json.encode({"spans": _spans_of(self._said)})

    def lost_of_pop(self, error: LeaseLost) -> LostAcks:
        """Return what a server refused of what was said in the request for the next messages."""
        results = msgspec.convert(error.details.get("spans", []), list[_SpanResult])
        return _lost_of(_spans_of(self._said), results)

    async def send(self, cluster: Cluster, group: str | None, server: str) -> LostAcks:
        """Send them, to the server that granted the leases first if it is known."""
        lost = LostAcks()
        for part in _in_requests([said for said in self._said if said.has_span]):
            try:
                lost = lost.plus(await _send_spans(cluster, part, group, server))
            except NotFound:
                lost = lost.plus(await _send_items(cluster, part, group, server))
        for part in _in_requests([said for said in self._said if not said.has_span]):
            lost = lost.plus(await _send_items(cluster, part, group, server))
        return lost


class Said:
    """What is still to be said of a batch."""

    __slots__ = ("acks", "batch")

    def __init__(self, acks: Acks | None = None, batch: Popped[Any] | None = None) -> None:
        self.acks = acks or Acks()
        self.batch: Popped[Any] = batch or Popped()

    def body(self) -> bytes:
        """Return what the request for the next messages says of it; empty for nothing."""
        return self.acks.body_of_pop() if self.acks.count else b""

    def take(self) -> Acks:
        """Return what is to be said: whoever takes it says it."""
        acks, self.acks = self.acks, Acks()
        return acks


def acks_of(
    messages: Iterable[Delivered],
    status: str = COMPLETED,
    error: str | BaseException | None = None,
    delay: Seconds | None = None,
) -> Acks:
    """Say something of messages that a user has in hand, whatever was said of them before."""
    numbers: dict[Grant, list[int]] = {}
    for message in messages:
        numbers.setdefault(message._grant, []).append(message._number)
    acks = Acks()
    for grant, some in numbers.items():
        acks.add(grant, sorted(set(some)) if len(some) > 1 else some, status, error, delay)
    return acks


def ack_of(
    message: Delivered, status: str = COMPLETED, error: str | BaseException | None = None
) -> AckItem:
    """Return the acknowledgment of a message by its transaction id."""
    return next(_Said(message._grant, (message._number,), status, error_text(error)).items())


def _in_requests(said: list[_Said]) -> Iterator[list[_Said]]:
    """Yield it in parts of no more than one request may name."""
    part: list[_Said] = []
    count = 0
    for whole in said:
        for at in range(0, len(whole.numbers), MAX_ACKS):
            some = whole._replace(numbers=whole.numbers[at : at + MAX_ACKS])
            if part and count + len(some.numbers) > MAX_ACKS:
                yield part
                part, count = [], 0
            part.append(some)
            count += len(some.numbers)
    if part:
        yield part


# ---- by spans ----


class _Failed(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    offset: int
    status: str
    error: str | None = None
    retry_after_ms: int | None = None


class _Span(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    partition_id: str
    lease_id: str
    done: list[tuple[int, int]] = []
    failed: list[_Failed] = []

    @property
    def count(self) -> int:
        return sum(end - first for first, end in self.done) + len(self.failed)


class _SpanResult(msgspec.Struct):
    success: bool = True
    error: str | None = None
    lost: int = 0


class _SpansAnswer(msgspec.Struct):
    spans: list[_SpanResult] = []


_span_answers = msgspec.json.Decoder(_SpansAnswer)


async def _send_spans(
    cluster: Cluster, said: list[_Said], group: str | None, server: str
) -> LostAcks:
    spans = _spans_of(said)
    body = msgspec.json.encode({"consumerGroup": group, "spans": spans})
    answer = await cluster.call(
        "POST", "/api/v1/ack/spans", body, key=spans[0].partition_id, first=server
    )
    results = decode_answer(_span_answers, answer).spans
    return _lost_of(spans, results)


def _lost_of(spans: Sequence[_Span], results: Sequence[_SpanResult]) -> LostAcks:
    lost = LostAcks()
    for span, result in zip(spans, results, strict=False):
        if not result.success:
            lost = lost.plus(LostAcks(result.lost or span.count, result.error))
    return lost


def _spans_of(said: Iterable[_Said]) -> list[_Span]:
    spans: dict[PartitionLease, _Span] = {}
    for grant, numbers, status, error, retry_after_ms in said:
        assert isinstance(grant, FrameGrant)
        lease = grant.lease
        span = spans.get(lease)
        if span is None:
            span = spans[lease] = _Span(lease.partition_id, lease.id, [], [])
        if status == COMPLETED:
            for first, end in grant.runs(numbers):
                _add_run(span.done, first, end)
        else:
            base = grant.base_offset
            span.failed += [
                _Failed(base + number, status, error, retry_after_ms) for number in numbers
            ]
    for lease, span in spans.items():
        if lease.is_whole and not span.failed and span.count == lease.shown:
            # What is hidden is done already, and all at once is said the quickest.
            span.done = [lease.span]
    return list(spans.values())


def _add_run(runs: list[tuple[int, int]], first: int, end: int) -> None:
    if runs and runs[-1][1] == first:
        runs[-1] = (runs[-1][0], end)
    else:
        runs.append((first, end))


# ---- by transaction ids ----


class _Settled(msgspec.Struct):
    """What became of one acknowledgment."""

    success: bool = True
    error: str | None = None


class _ItemsAnswer(msgspec.Struct):
    results: list[_Settled] = []


_item_answers = msgspec.json.Decoder(_ItemsAnswer)


async def _send_items(
    cluster: Cluster, said: list[_Said], group: str | None, server: str
) -> LostAcks:
    items = [item for some in said for item in some.items()]
    body = msgspec.json.encode({"acknowledgments": items, "consumerGroup": group})
    answer = await cluster.call(
        "POST", "/api/v1/ack/batch", body, key=items[0].partition_id, first=server
    )
    refused = [
        result for result in decode_answer(_item_answers, answer).results if not result.success
    ]
    return LostAcks(len(refused), refused[0].error if refused else None)
