"""One trace through the queue, asserted with OpenTelemetry's own exporter."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from queen import Message, Queen, SyncQueen
from queen.client import tracing
from queen.client.queues.messages import Received
from queen.testing import run_jobs
from tests.api import Api
from tests.spans import Spans, context_of, is_below, linked, recorded, trace_of

_TRACE = "0af7651916cd43dd8448eb211c80319c"
_PARENT = f"00-{_TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    with recorded(monkeypatch) as made:
        yield made


async def test_push_process_and_ack_are_one_trace(queen: Queen, queue: str, spans: Spans) -> None:
    inside: list[str] = []

    async def handle(message: Received) -> None:
        inside.append(tracing.current()["traceparent"])
        await queen.queue(f"{queue}-next").push(message.data)

    with spans.root("request"):
        await queen.queue(queue).push({"order": 7})
    await queen.queue(queue).limit(1).consume(handle, signals=False)
    request, send = spans.only("request"), spans.only(f"send {queue}")
    process, settle = spans.only(f"process {queue}"), spans.only(f"settle {queue}")
    assert is_below(send, request) and is_below(process, send) and is_below(settle, process)
    assert is_below(spans.only(f"send {queue}-next"), process)
    assert inside[0].startswith(f"00-{trace_of(send):032x}-{context_of(process).span_id:016x}-")
    assert process.attributes is not None
    assert process.attributes["messaging.queen.attempt"] == 1


@pytest.mark.parametrize("kind", [RuntimeError, asyncio.CancelledError])
async def test_what_fails_is_linked_with_what_comes_again(
    queen: Queen, queue: str, spans: Spans, kind: type[BaseException]
) -> None:
    await queen.queue(queue).config(retry_delay=0).create()

    async def handle(message: Received) -> None:
        if message.attempt == 1:
            raise kind("once")

    await queen.queue(queue).push(1)
    await queen.queue(queue).limit(2).consume(handle, signals=False)
    first, second = spans.named(f"process {queue}")
    assert not first.status.is_ok and first.events[0].name == "exception"
    assert linked(second) == {context_of(first).span_id}
    assert trace_of(second) == trace_of(first)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_list_of_several_traces_has_links(
    queen: Queen, queue: str, spans: Spans, is_async: bool
) -> None:
    for number in range(3):
        await queen.queue(queue).push(number)

    async def handle(_messages: list[Received]) -> None: ...

    def handle_in_thread(_messages: list[Received]) -> None: ...

    consuming = queen.queue(queue).batch(3).limit(3)
    await consuming.consume(handle if is_async else handle_in_thread, signals=False)
    process = spans.only(f"process {queue}")
    sent = spans.named(f"send {queue}")
    assert linked(process) == {context_of(span).span_id for span in sent}
    assert process.parent is None and trace_of(process) not in map(trace_of, sent)


async def test_messages_that_a_thread_gets_one_by_one_have_a_span_each(
    queen: Queen, queue: str, spans: Spans
) -> None:
    with spans.root("all"):
        for number in range(5):
            await queen.queue(queue).push(number)
    consuming = queen.queue(queue).limit(5)
    await consuming.consume(lambda _message: None, signals=False)
    processed = spans.named(f"process {queue}")
    assert len(processed) == 5
    for span, sent in zip(processed, spans.named(f"send {queue}"), strict=True):
        assert is_below(span, sent)


async def test_a_pop_and_its_ack_without_a_handler(queen: Queen, queue: str, spans: Spans) -> None:
    await queen.queue(queue).push(1)
    (message,) = await queen.queue(queue).pop()
    await message.ack()
    send = spans.only(f"send {queue}")
    assert is_below(spans.only(f"receive {queue}"), send)
    assert is_below(spans.only(f"settle {queue}"), send)


async def test_a_window_and_what_it_pushes(queen: Queen, queue: str, spans: Spans) -> None:
    await queen.stream(queue).sources(queue).count(2).grace_period(0).define()
    with spans.root("both"):
        await queen.queue(queue).push(1)
        await queen.queue(queue).push(2)

    async def handle(window: Any) -> None:
        window.push(f"{queue}-out", len(window.all_messages))

    await queen.consumer(queue, "g").limit(1).process(handle, signals=False)
    (message,) = await queen.queue(f"{queue}-out").pop(wait_s=10)
    window = spans.only(f"process window {queue}")
    first, second = spans.named(f"send {queue}")
    assert is_below(window, first) and linked(window) == {context_of(second).span_id}
    assert is_below(spans.only(f"receive {queue}-out"), window)
    assert f"-{context_of(window).span_id:016x}-" in message.headers["traceparent"]
    assert is_below(spans.only(f"settle {queue}"), window)


async def test_jobs_belong_to_the_trace_of_who_pushed_them(
    queen: Queen, queue: str, spans: Spans
) -> None:
    @queen.queue(queue).task
    async def build(number: int) -> int:
        return number

    with spans.root("request"):
        await build.delay(1)
        await build.with_options(key="one").delay(2)
        await build.after(0.05, 3)
    request, sent = spans.only("request"), spans.named(f"send {queue}")
    assert len(sent) == 3 and all(is_below(span, request) for span in sent)
    done = 0
    while done < 3:
        done += await run_jobs(queen, [queue])
    processed = spans.named(f"process {queue}")
    assert {span.parent and span.parent.span_id for span in processed} == {
        context_of(span).span_id for span in sent
    }
    settled = spans.named(f"settle {queue}")
    assert settled and {trace_of(span) for span in settled} == {trace_of(request)}


def test_a_client_without_asyncio_belongs_to_the_span_of_its_caller(
    sync_queen: SyncQueen, queue: str, spans: Spans
) -> None:
    with spans.root("caller"):
        sync_queen.queue(queue).push(1)
        sync_queen.queue(queue).task(len).delay([])
    for send in spans.named(f"send {queue}"):
        assert is_below(send, spans.only("caller"))


async def test_a_message_keeps_the_trace_that_it_has(
    queen: Queen, queue: str, spans: Spans
) -> None:
    await queen.queue(queue).push(Message(1, headers={"traceparent": _PARENT}))
    (message,) = await queen.queue(queue).pop()
    assert dict(message.headers) == {"traceparent": _PARENT}
    assert trace_of(spans.only(f"receive {queue}")) == int(_TRACE, 16)


@pytest.mark.parametrize("is_imported", [False, True])
async def test_who_does_not_trace_sends_no_header(
    queen: Queen, queue: str, monkeypatch: pytest.MonkeyPatch, is_imported: bool
) -> None:
    if not is_imported:
        monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert not tracing.is_on()
    await queen.queue(queue).push(1)
    (message,) = await queen.queue(queue).pop()
    assert message.headers == {}


def test_a_request_gives_its_trace_to_messages_that_have_none(api: Api, queue: str) -> None:
    items = [
        {"queue": queue, "payload": 1},
        {"queue": queue, "payload": 2, "headers": {"a": "b"}},
        {"queue": queue, "payload": 3, "headers": {"traceparent": _PARENT.replace("b7", "c8")}},
    ]
    headers = {"traceparent": _PARENT, "tracestate": "vendor=1"}
    assert api.call("POST", "/api/v1/push", {"items": items}, headers=headers).status == 201
    given = {"traceparent": _PARENT, "tracestate": "vendor=1"}
    assert [message["headers"] for message in api.messages(queue, batch=10)] == [
        given,
        {"a": "b", **given},
        {"traceparent": _PARENT.replace("b7", "c8")},
    ]
    bad = {"traceparent": "00-not-a-trace-01"}
    plain = {"items": [{"queue": f"{queue}-2", "payload": 1}]}
    assert api.call("POST", "/api/v1/push", plain, headers=bad).status == 201
    assert "headers" not in api.messages(f"{queue}-2")[0]
