"""What a request wants appended to one partition, and what became of it."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Container, Sequence

from queen.core.frame import (
    MAX_BUILT_BYTES,
    Extras,
    Segment,
    compress,
    encode_body,
    segment_of,
)
from queen.core.hashing import hash_ids
from queen.errors import QueenError
from queen.service.catalog import Partition

# A request with this many messages for one partition becomes a segment of its own, encoded
# while the database is busy with the flush before. Smaller ones are merged at the flush.
OWN_SEGMENT_MESSAGES = 32
# The offset of a message that is stored somewhere.
UNKNOWN_OFFSET = -1


class Append:
    """Messages of one request for one partition.

    After the flush, `offset_of` tells where each message is and `is_duplicate` whether it
    was there before; where one is that a repeated transaction stored may be unknown.
    """

    __slots__ = (
        "_offsets",
        "base_offset",
        "encoded",
        "error",
        "extras",
        "first_try_head",
        "hashes",
        "ids",
        "is_again",
        "is_aside",
        "is_buffered",
        "partition",
        "payloads",
        "queue",
        "repeats",
        "request",
        "segment",
        "target",
        "unnamed",
        "weight",
    )

    def __init__(
        self,
        queue: str,
        partition: str,
        ids: Sequence[bytes],
        payloads: Sequence[bytes] | None,
        weight: int,
        extras: Extras | None = None,
        segment: Segment | None = None,
    ) -> None:
        self.queue = queue
        self.partition = partition
        # Transaction ids as they are stored and compared.
        self.ids = ids
        self.payloads = payloads
        self.extras = extras
        self.weight = weight
        self.segment = segment
        self.encoded: tuple[int, bytes] | None = None
        self.hashes: array[int] | None = None
        self.target: Partition | None = None
        self.request: Request | None = None
        self.base_offset = 0
        # Messages that are stored already: index -> offset, or the append and index in the
        # same flush that stores the first of two equal ids.
        self.repeats: dict[int, int | tuple[Append, int]] | None = None
        self._offsets: list[int] | None = None
        # Where the partition ended when a flush with unknown outcome was first tried.
        self.first_try_head: int | None = None
        self.error: QueenError | None = None
        # Stored before and now stored once more, on purpose.
        self.is_again = False
        # Waits for something slow; whoever made it wait answers it.
        self.is_aside = False
        # Waits in the spool, and has no offset yet.
        self.is_buffered = False
        # Messages whose ids were made here: the same request, sent again, has others for them.
        self.unnamed: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.ids)

    def encode(self) -> None:
        """Make a segment of these messages alone, unless they are too many bytes for one."""
        if self.segment is None:
            assert self.payloads is not None
            if self.weight > MAX_BUILT_BYTES:
                return
            self.segment = segment_of(self.ids, self.payloads, self.extras)
        self.encoded = compress(encode_body(self.segment))

    def hash(self) -> array[int]:
        if self.hashes is None:
            self.hashes = hash_ids(self.ids)
        return self.hashes

    def fresh(self) -> list[int]:
        """Return the indexes of messages that are not stored yet."""
        repeats = self.repeats or {}
        return [index for index in range(len(self.ids)) if index not in repeats]

    def body_of(self, index: int) -> bytes:
        if self.payloads is not None:
            return bytes(self.payloads[index])
        assert self.segment is not None
        return self.segment.payloads(index, index + 1)[0]

    def offset_of(self, index: int) -> int:
        if self.repeats is None:
            return self.base_offset + index
        repeat = self.repeats.get(index)
        if isinstance(repeat, tuple):
            return repeat[0].offset_of(repeat[1])
        if repeat is not None:
            return repeat
        if self._offsets is None:
            before, self._offsets = 0, []
            for position in range(len(self.ids)):
                self._offsets.append(self.base_offset + position - before)
                before += position in self.repeats
        return self._offsets[index]

    def is_duplicate(self, index: int) -> bool:
        if self.repeats is None or index not in self.repeats:
            return False
        repeat = self.repeats[index]
        if isinstance(repeat, tuple) or self.first_try_head is None:
            return True
        # Found behind the point where our own first try began: that try had succeeded.
        return repeat < self.first_try_head

    def counts_on(self, appends: Container[Append]) -> bool:
        """Whether a message of it is to be stored by one of some other appends."""
        repeats = (self.repeats or {}).values()
        return any(isinstance(repeat, tuple) and repeat[0] in appends for repeat in repeats)

    def answer(self, error: QueenError | None = None) -> None:
        self.error = error
        request, self.request = self.request, None
        if request is not None:
            request.count_down()

    def fail(self, error: QueenError) -> None:
        """Answer with an error, unless it has its answer or somebody else will give it."""
        if self.request is not None and not self.is_aside:
            self.answer(error)


class Request:
    """A push request: answered when all of its appends are."""

    __slots__ = ("_done", "_left", "_told", "appends", "at_once")

    def __init__(self, appends: list[Append]) -> None:
        self.appends = appends
        self._left = len(appends)
        self._told: Callable[[], object] | None = None
        self._done: asyncio.Future[None] | None = None
        # Whoever is called is called in the same moment, and not when the event loop is free.
        self.at_once = False
        for append in appends:
            append.request = self

    @property
    def is_answered(self) -> bool:
        return not self._left

    def then(self, told: Callable[[], object]) -> None:
        """Have something called, once, when all are answered."""
        self._told = told
        if self.is_answered:
            self._tell()

    async def wait(self) -> None:
        """Return when all are answered."""
        if not self.is_answered:
            self._done = asyncio.get_running_loop().create_future()
            await self._done

    def count_down(self) -> None:
        self._left -= 1
        if not self.is_answered:
            return
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
        self._tell()

    def _tell(self) -> None:
        told, self._told = self._told, None
        if told is None:
            return
        if self.at_once:
            told()
        else:
            asyncio.get_running_loop().call_soon(told)
