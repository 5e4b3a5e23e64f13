from __future__ import annotations

from datetime import UTC, datetime

import pytest

from queen.core.frame import (
    CODEC_ENCRYPTED,
    CODEC_RAW,
    CODEC_ZSTD,
    Segment,
    compress,
    encode_body,
    segment_of,
    stored_segment,
)
from queen.service.log.segment_cache import SegmentCache, StoredSegment

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def segment(count: int, size: int = 1) -> Segment:
    ids = [str(n).encode() for n in range(count)]
    return segment_of(ids, [b"1" * size] * count)


def test_a_span_over_several_segments_is_found() -> None:
    cache = SegmentCache(1_000_000)
    for base in (0, 10, 20):
        cache.put(1, base, NOW, segment(10))
    found = cache.span(1, 5, 25)
    assert found is not None
    assert [stored.base_offset for stored in found] == [0, 10, 20]
    assert found[0].part(5, 25) == (5, 10)
    assert found[2].part(5, 25) == (0, 5)


def test_a_gap_means_not_found() -> None:
    cache = SegmentCache(1_000_000)
    cache.put(1, 0, NOW, segment(10))
    cache.put(1, 20, NOW, segment(10))
    assert cache.span(1, 5, 25) is None
    assert cache.span(1, 12, 15) is None
    assert cache.span(1, 0, 10) is not None
    assert cache.span(2, 0, 10) is None


def test_the_oldest_go_first_and_the_bound_holds() -> None:
    cache = SegmentCache(100_000)
    for base in range(0, 10_000, 10):
        cache.put(base % 7, base, NOW, segment(10, 100))
        assert cache.size_bytes <= 100_000
    assert cache.span(0, 0, 10) is None
    assert cache.span(9990 % 7, 9990, 10_000) is not None


def test_what_is_put_after_everything_was_forgotten_is_found() -> None:
    cache = SegmentCache(1_000_000)
    for partition in (1, 2):
        cache.put(partition, 0, NOW, segment(10))
    cache.forget_all()
    cache.put(1, 5, NOW, segment(10))
    assert cache.span(2, 0, 10) is None
    assert cache.span(1, 0, 5) is None
    assert cache.span(1, 5, 15) is not None


@pytest.mark.parametrize(("count", "codec"), [(1, CODEC_RAW), (500, CODEC_ZSTD)])
def test_a_body_is_kept_as_it_lies_or_put_together_again(count: int, codec: int) -> None:
    columns = segment(count)
    encoded = compress(encode_body(columns))
    assert encoded[0] == codec
    stored = StoredSegment(0, NOW, columns, *encoded)
    assert stored.encoded() == encoded
    kept_bytes = len(encoded[1]) if codec == CODEC_ZSTD else 0
    assert stored.size_bytes == columns.size_bytes + kept_bytes


def test_a_body_that_is_encrypted_is_framed_in_the_clear() -> None:
    columns = segment(500)
    stored = StoredSegment(0, NOW, columns, CODEC_ENCRYPTED, b"nobody can read this")
    assert stored_segment(*stored.encoded()).payloads() == columns.payloads()
