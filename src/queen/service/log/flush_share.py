"""One partition's share of a flush, and the segments it becomes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from queen.core.columns.headers import HEADERS
from queen.core.frame import (
    MAX_BUILT_BYTES,
    MAX_MESSAGES,
    Extras,
    Segment,
    compress,
    encode_body,
    segment_of,
)
from queen.errors import QueenError, Unavailable
from queen.service.catalog import Partition
from queen.service.log.append import Append
from queen.service.log.segment_encryption import SegmentEncryption

_MAX_MERGED_BYTES = 1024 * 1024
_NO_KEYS: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)


class BuiltSegment(NamedTuple):
    """A segment ready to be stored."""

    size: int
    codec: int
    body: bytes
    hashes: bytes | None
    columns: Segment


class Share:
    """The appends of one flush for one partition, and what is to be stored of them."""

    __slots__ = (
        "appends",
        "few_keys",
        "head",
        "keys",
        "keys_from",
        "keys_to",
        "known",
        "known_at",
        "partition",
        "refused",
        "segments",
    )

    def __init__(self, partition: Partition, appends: list[Append]) -> None:
        self.partition = partition
        self.appends = appends
        # Where this server believed the partition to end when it last built segments for it.
        self.head = 0
        # Offset up to which transaction ids have been compared; None when nobody has to.
        self.known: int | None = None
        # When the message before that was written.
        self.known_at: datetime | None = None
        # The hashes of the whole flush, mixed with their partitions, and which are this share's.
        self.keys = _NO_KEYS
        self.keys_from = self.keys_to = 0
        # The same as plain numbers, instead of them, when the whole flush has only a few.
        self.few_keys: list[int] = []
        self.segments: list[BuiltSegment] = []
        # Appends that cannot be stored, and why; the others can.
        self.refused: dict[Append, QueenError] = {}

    @property
    def key(self) -> tuple[str, str]:
        return self.partition.queue.name, self.partition.name

    @property
    def compares_index(self) -> bool:
        """Whether ids are compared with everything retained. Until the index is complete they
        are compared with the window."""
        return self.dedup == "forever" and self.partition.queue.is_indexed

    @property
    def compares_window(self) -> bool:
        return self.dedup != "off" and not self.compares_index

    def note_try(self) -> None:
        """Nobody knows whether this was appended: whoever tries again looks from here on."""
        for append in self.appends:
            if append.first_try_head is None:
                append.first_try_head = self.head

    def drop_refused(self) -> dict[Append, QueenError]:
        """Take out what cannot be stored, and what counts on it; return both."""
        if not self.refused:
            return {}
        refused, self.refused = self.refused, {}
        while refused:
            lost = [
                append
                for append in self.appends
                if append not in refused and append.counts_on(refused)
            ]
            if not lost:
                break
            refused |= {
                append: Unavailable("a message of the same id was refused") for append in lost
            }
        self.appends = [append for append in self.appends if append not in refused]
        return refused

    def raise_refusal(self) -> None:
        """Raise why an append cannot be stored, if there is one."""
        for error in self.refused.values():
            raise error

    def place(self, offset: int) -> None:
        """Note where the messages are stored."""
        for append in self.appends:
            append.base_offset = offset
            offset += len(append) - len(append.repeats or ())

    def answer(self) -> None:
        for append in self.appends:
            append.answer()

    def answer_at_once(self) -> None:
        for append in self.appends:
            if append.request is not None:
                append.request.at_once = True
                append.answer()

    @property
    def dedup(self) -> str:
        # What is delivered again on purpose is not a duplicate.
        return "off" if self.appends[0].is_again else self.partition.queue.options.dedup

    @property
    def ids(self) -> Sequence[bytes]:
        if len(self.appends) == 1:
            return self.appends[0].ids
        return list(chain.from_iterable(append.ids for append in self.appends))

    @property
    def total(self) -> int:
        return sum(built.size for built in self.segments)

    def build(self, encryption: SegmentEncryption) -> None:
        """Turn what is new among the appends into segments, in order."""
        self.head = self.partition.head
        self._build()
        if self.partition.queue.options.encryption_enabled:
            self.segments = [
                built._replace(codec=codec, body=body)
                for built in self.segments
                for codec, body in [
                    encryption.encrypt_segment(self.partition.id, built.codec, built.body)
                ]
            ]

    def _build(self) -> None:
        self.segments = []
        only = self.appends[0]
        if len(self.appends) == 1 and not only.repeats:
            if only.encoded is None:
                only.encode()
            if only.encoded is not None:
                self._add_own_segment(only)
            else:
                self._add_merged_segments([only])
            return
        small: list[Append] = []
        weight = messages = 0
        for append in self.appends:
            own = append.encoded is not None and not append.repeats
            full = (
                weight + append.weight > _MAX_MERGED_BYTES or messages + len(append) > MAX_MESSAGES
            )
            if small and (own or full):
                self._add_merged_segments(small)
                small, weight, messages = [], 0, 0
            if own:
                self._add_own_segment(append)
            else:
                small.append(append)
                weight += append.weight
                messages += len(append)
        if small:
            self._add_merged_segments(small)

    def _add_own_segment(self, append: Append) -> None:
        assert append.encoded is not None and append.segment is not None
        hashes = append.hash().tobytes() if self.dedup != "off" else None
        self.segments.append(BuiltSegment(len(append), *append.encoded, hashes, append.segment))

    def _add_merged_segments(self, appends: list[Append]) -> None:
        ids: list[bytes] = []
        payloads: list[bytes] = []
        hashes = array("Q")
        hashed = self.dedup != "off"
        for append in appends:
            if append.repeats is None and append.payloads is not None:
                ids += append.ids
                payloads += append.payloads
                if hashed:
                    hashes += append.hash()
                continue
            for index in append.fresh():
                ids.append(append.ids[index])
                payloads.append(append.body_of(index))
                if hashed:
                    hashes.append(append.hash()[index])
        if not ids:
            return
        extras = _merge_extras(appends)
        for start, stop in _parts(_sizes(payloads, extras)):
            columns = {name: column[start:stop] for name, column in (extras or {}).items()}
            segment = segment_of(ids[start:stop], payloads[start:stop], columns)
            stored = hashes[start:stop].tobytes() if hashed else None
            built = BuiltSegment(stop - start, *compress(encode_body(segment)), stored, segment)
            self.segments.append(built)


def _sizes(payloads: list[bytes], extras: Extras | None) -> list[int]:
    """Return how many bytes each message is."""
    sizes = list(map(len, payloads))
    headers = extras.get(HEADERS) if extras else None
    if headers is not None:
        sizes = [size + len(text or "") for size, text in zip(sizes, headers, strict=True)]
    return sizes


def _parts(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Yield which messages go into a segment together: nearly always all of them into one."""
    start = total = 0
    if sum(sizes) <= MAX_BUILT_BYTES:
        yield start, len(sizes)
        return
    for at, size in enumerate(sizes):
        if at > start and total + size > MAX_BUILT_BYTES:
            yield start, at
            start, total = at, 0
        total += size
    yield start, len(sizes)


def _merge_extras(appends: list[Append]) -> dict[str, list[object]] | None:
    names = {name for append in appends if append.extras for name in append.extras}
    if not names:
        return None
    merged: dict[str, list[object]] = {}
    for name in names:
        column: list[object] = []
        for append in appends:
            values = (append.extras or {}).get(name)
            column += [values[index] if values else None for index in append.fresh()]
        merged[name] = column
    return merged
