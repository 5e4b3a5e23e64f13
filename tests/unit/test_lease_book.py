"""The book of leases: what it knows of those it has no ids of, and how much it keeps."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import cast

from queen.core.frame import segment_of
from queen.core.visibility import DELETED
from queen.service.catalog import Partition, Queue
from queen.service.consume.lease_book import BareSpan, LeaseBook, Span, SpanBuilder
from queen.service.log.segment_cache import StoredSegment

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PARTITION = Partition(7, cast(Queue, None), "p", 0)


def stored(base: int, count: int, deleted: int | None = None) -> StoredSegment:
    ids = [f"t{base + at}".encode() for at in range(count)]
    extras = {DELETED: [at == deleted for at in range(count)]} if deleted is not None else {}
    return StoredSegment(base, NOW, segment_of(ids, [b"1"] * count, extras))


def test_a_bare_span_knows_what_is_hidden_and_no_ids() -> None:
    builder = SpanBuilder(3, 9, "g", with_ids=False)
    for segment in (stored(0, 5, deleted=4), stored(5, 5, deleted=1)):
        builder.add(segment)
    span = builder.bare_span(PARTITION, 1)
    assert type(span) is BareSpan
    assert (span.start, span.stop, sorted(span.hidden)) == (3, 9, [4, 6])


def test_what_retention_has_removed_is_hidden() -> None:
    for with_ids in (False, True):
        builder = SpanBuilder(3, 9, "g", with_ids=with_ids)
        builder.add(stored(5, 5))
        assert builder.bare_span(PARTITION, 1).hidden == {3, 4}
    # The ids that are left begin where the log does.
    span = builder.span(PARTITION, 1)
    assert (span.start, span.stop, sorted(span.hidden)) == (5, 9, [3, 4])
    assert span.offsets_of("t5") == [5]
    builder = SpanBuilder(3, 9, "g", with_ids=False)
    assert builder.bare_span(PARTITION, 1).hidden == set(range(3, 9))


def test_ids_that_were_read_are_kept_while_the_lease_is_here() -> None:
    book, lease_id = LeaseBook(), uuid.uuid4()
    bare = BareSpan(PARTITION, "g", 1, 0, 2)
    full = Span(PARTITION, "g", 1, 0, 2, ["a", "b"])
    assert not book.learn_ids(lease_id, full)
    assert len(book) == 0
    book.add(lease_id, bare)
    assert book.span(lease_id, PARTITION.id) is None
    assert book.bare_span(lease_id, PARTITION.id) is bare
    assert book.learn_ids(lease_id, full)
    assert book.span(lease_id, PARTITION.id) is full
    book.close(lease_id, PARTITION.id)
    assert book.bare_span(lease_id, PARTITION.id) is None


def test_the_book_is_bounded_with_and_without_ids() -> None:
    ids = [str(number) for number in range(1000)]
    for span in (BareSpan(PARTITION, "g", 1, 0, 1000), Span(PARTITION, "g", 1, 0, 1000, ids)):
        book = LeaseBook()
        for _ in range(100_000 // span.weight + 50):
            book.add(uuid.uuid4(), span)
        assert len(book) == 100_000 // span.weight
