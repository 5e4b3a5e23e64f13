"""OpenTelemetry: spans of what a client does, and one trace through the queue.

A program that traces has imported OpenTelemetry and given it a provider before it pushes or
consumes anything. So nothing is imported here, and a program that does not trace pays for one look
into a dict.

    push       a producer's span; its messages carry it on as the header `traceparent`
    process    a handler at work: a child of the push when all of its messages are of one trace,
               else a trace of its own with links to theirs
    receive    a pop without a handler, with links to what it got
    settle     acks, below the handlers that they speak for
    window     a handler at work on a window, as `process`
    batch      a micro-batch of a pipeline

A delivery that follows a failed one of the same process has a link to it. Of a batch or a window at
most `MAX_LINKS` traces are linked, found among its first `MAX_LOOKED_AT` messages.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any

from queen.core.columns.headers import TRACEPARENT

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext

    from queen.client.queues.messages import Delivered
    from queen.client.streams.window import LeasedWindow

MAX_LINKS = 32
MAX_LOOKED_AT = 1000
# Failed deliveries of this process that a later one may be linked to.
_MAX_REMEMBERED = 10_000

_API = "opentelemetry.trace"
_NO_SPAN: AbstractContextManager[None] = nullcontext()

# Partition, offset and group of a message, or id and group of a window, and the span in which it
# failed last.
_Delivery = tuple[str, int, str | None]
_failed: OrderedDict[_Delivery, SpanContext] = OrderedDict()


def is_on() -> bool:
    """Whether this program traces: it has set up a provider of spans."""
    api = sys.modules.get(_API)
    if api is None:
        return False
    return not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


# ---- producing ----


@contextmanager
def pushing(queue: str, headers: Mapping[str, str] | None) -> Iterator[Mapping[str, str] | None]:
    """Trace a push; yields the headers that its messages get."""
    with _span(f"send {queue}", "PRODUCER", _about(queue, "send")):
        yield carried(headers)


def carried(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return headers with the trace that is under way, unless they have one."""
    if not is_on() or (headers and TRACEPARENT in headers):
        return headers
    trace = current()
    return {**trace, **(headers or {})} if trace else headers


def current() -> dict[str, str]:
    """Return the trace that is under way as headers; empty when there is none."""
    trace: dict[str, str] = {}
    if is_on():
        _propagator().inject(trace)
    return trace


# ---- consuming ----


def receiving(messages: Sequence[Delivered]) -> None:
    """Note that messages were delivered to somebody who has no handler."""
    queue = messages[0].queue
    parent, links = _among(message.headers for message in messages)
    about = _about(queue, "receive", len(messages), messages[0].consumer_group)
    with _span(f"receive {queue}", "CONSUMER", about, parent, links):
        pass


def processing(
    messages: Sequence[Delivered], note: Callable[[SpanContext], None] | None = None
) -> AbstractContextManager[None]:
    """Trace a handler that works on messages; `note` is told its span."""
    return _processing(messages, note) if is_on() else _NO_SPAN


@contextmanager
def _processing(
    messages: Sequence[Delivered], note: Callable[[SpanContext], None] | None
) -> Iterator[None]:
    first = messages[0]
    parent, links = _among(message.headers for message in messages)
    links += _links_of(list(filter(None, map(_failed.get, _keys(messages)))))
    about = _about(first.queue, "process", len(messages), first.consumer_group)
    about |= {
        "messaging.message.id": first.id,
        "messaging.destination.partition.id": first.partition,
        "messaging.queen.attempt": first.attempt,
    }
    with _span(f"process {first.queue}", "CONSUMER", about, parent, links) as span:
        if note is not None:
            note(span.get_span_context())
        try:
            yield
        except BaseException as error:
            _note_failure(_keys(messages), span, error)
            raise
        for key in _keys(messages):
            _failed.pop(key, None)


def traced(
    handler: Callable[[Any], Any], note: Callable[[SpanContext], None]
) -> Callable[..., Any]:
    """Return a handler of one message, each of whose calls is traced."""

    @wraps(handler)
    def call(message: Delivered) -> Any:
        with processing((message,), note):
            return handler(message)

    return call


def settling(
    queue: str,
    count: int,
    spans: Sequence[SpanContext],
    headers: Iterable[Mapping[str, str]] = (),
) -> AbstractContextManager[Any]:
    """Trace acks; `spans` are those of the handlers that they speak for. Where there are none and
    nothing else is under way, they belong to messages of these headers."""
    if not is_on():
        return _NO_SPAN
    parent, links = _below(spans)
    if parent is None and not current():
        parent, links = _among(headers)
    return _span(f"settle {queue}", "CLIENT", _about(queue, "settle", count), parent, links)


@contextmanager
def working_on_window(window: LeasedWindow, headers: Iterable[Mapping[str, str]]) -> Iterator[None]:
    """Trace a handler that works on a window with messages of these headers."""
    stream, key = window.stream_name, (window.id, 0, window.consumer_group)
    parent, links = _among(headers)
    links += _links_of(list(filter(None, [_failed.get(key)])))
    about = _about(stream, "process", window.count, window.consumer_group)
    about |= {"messaging.queen.attempt": window.attempt, "messaging.queen.window": window.id}
    with _span(f"process window {stream}", "CONSUMER", about, parent, links) as span:
        window.spans = (span.get_span_context(),)
        try:
            yield
        except BaseException as error:
            _note_failure([key], span, error)
            raise


def computing(stream: str) -> AbstractContextManager[Any]:
    """Trace what Spark computes of a window."""
    if not is_on():
        return _NO_SPAN
    return _span(f"spark batch {stream}", "INTERNAL", _about(stream, "process"))


def batch(
    pipeline: str,
    number: int,
    count: int,
    times: tuple[datetime, datetime],
    headers: Iterable[Mapping[str, str]],
) -> None:
    """Note a micro-batch of a pipeline that has ended; it belongs to messages of these headers."""
    from opentelemetry.trace import get_tracer

    parent, links = _among(headers)
    about = _about(pipeline, "process", count) | {"messaging.queen.batch": number}
    began_ns, ended_ns = (int(at.timestamp() * 1_000_000_000) for at in times)
    get_tracer("queen").start_span(
        f"pipeline batch {pipeline}",
        context=parent,
        attributes=about,
        links=links,
        start_time=began_ns,
    ).end(ended_ns)


# ---- spans ----


def _about(
    queue: str, operation: str, count: int | None = None, group: str | None = None
) -> dict[str, str | int]:
    """Return attributes of a span, in the words of OpenTelemetry's messaging conventions."""
    about: dict[str, str | int] = {
        "messaging.system": "queen",
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
    }
    if count is not None:
        about["messaging.batch.message_count"] = count
    if group is not None:
        about["messaging.consumer.group.name"] = group
    return about


def _span(
    name: str,
    kind: str,
    attributes: Mapping[str, str | int],
    parent: Context | None = None,
    links: Sequence[Link] = (),
) -> AbstractContextManager[Span]:
    from opentelemetry.trace import SpanKind, get_tracer

    return get_tracer("queen").start_as_current_span(
        name, context=parent, kind=SpanKind[kind], attributes=attributes, links=links
    )


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def _among(headers: Iterable[Mapping[str, str]]) -> tuple[Context | None, list[Link]]:
    """Return where a span belongs that works on messages of these headers, and its links."""
    from opentelemetry.context import Context
    from opentelemetry.trace import get_current_span

    propagator, contexts = _propagator(), OrderedDict[str, Any]()
    for carrier in islice(headers, MAX_LOOKED_AT):
        parent = carrier.get(TRACEPARENT)
        if parent is not None and parent not in contexts:
            span = get_current_span(propagator.extract(carrier, Context()))
            if span.get_span_context().is_valid:
                contexts[parent] = span.get_span_context()
                if len(contexts) == MAX_LINKS:
                    break
    return _below(list(contexts.values()))


def _below(spans: Sequence[SpanContext]) -> tuple[Context | None, list[Link]]:
    """Return the first of some spans as a parent, if they are of one trace, and links to the
    others, or to all. Without any, whatever is under way is the parent."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    if not spans:
        return None, []
    if len({span.trace_id for span in spans}) > 1:
        return Context(), _links_of(spans)
    parent = set_span_in_context(NonRecordingSpan(spans[0]))
    return parent, _links_of(spans[1:])


def _links_of(spans: Sequence[SpanContext]) -> list[Link]:
    from opentelemetry.trace import Link

    return [Link(span) for span in spans[:MAX_LINKS]]


def _keys(messages: Sequence[Delivered]) -> list[_Delivery]:
    return [
        (message.partition_id, message.offset, message.consumer_group)
        for message in messages[:MAX_LINKS]
    ]


def _note_failure(keys: Iterable[_Delivery], span: Span, error: BaseException) -> None:
    from opentelemetry.trace import StatusCode

    if not isinstance(error, Exception):
        # OpenTelemetry notes all others by itself.
        span.record_exception(error)
        span.set_status(StatusCode.ERROR, type(error).__name__)
    for key in keys:
        _failed[key] = span.get_span_context()
        _failed.move_to_end(key)
    while len(_failed) > _MAX_REMEMBERED:
        _failed.popitem(last=False)
