"""Spans that a test makes, kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """What was exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the spans of a name, the first to end first."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    @contextmanager
    def root(self, name: str) -> Iterator[None]:
        """Do something in a span of the test's own."""
        with self.provider.get_tracer("tests").start_as_current_span(name):
            yield


def context_of(span: ReadableSpan) -> trace.SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def trace_of(span: ReadableSpan) -> int:
    return context_of(span).trace_id


def is_below(span: ReadableSpan, other: ReadableSpan) -> bool:
    """Whether one span is the child of another."""
    return span.parent is not None and (span.parent.trace_id, span.parent.span_id) == (
        trace_of(other),
        context_of(other).span_id,
    )


def linked(span: ReadableSpan) -> set[int]:
    """Return the ids of the spans that a span has links to."""
    return {link.context.span_id for link in span.links}


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """Trace for the time of a test: a program sets its provider once, and tests share a process."""
    spans = Spans()
    with monkeypatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", spans.provider)
        yield spans
