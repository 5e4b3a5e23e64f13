"""Reading what was claimed: no more than fits an answer, and what cannot be read is told.

A lease may cover ten thousand messages of any size. What a pop is given is bounded by what
the messages weigh when they are decoded, over all its partitions; at least one segment is
read, and what is left stays for the next pop. All answers that have not been sent yet share
a bound too: past it answers are small, and a pop whose messages are large is told to come
again.

Each grant has an error of its own. A segment that this server cannot decrypt or decode ends
the grant before it; when it is the first one, there is nothing to give.
"""

from __future__ import annotations

from collections.abc import Iterable

from queen.errors import Overloaded, QueenError
from queen.service.consume.dispatch import Attempt
from queen.service.consume.feeds import Grant
from queen.service.log.segment_cache import SegmentCache, StoredSegment
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.merged.stretches import is_merged, stretches_of
from queen.storage.database import Database, Record

# What one pop is given, decoded; and what one statement reads, as it is stored.
_MAX_ANSWER_BYTES = 8 * 1024 * 1024
_MAX_STEP_BYTES = 32 * 1024 * 1024
_SMALL_BYTES = 256 * 1024
_ANY_SIZE = 2**62


class Budget:
    """Bytes of messages that were read and not sent yet."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.used = 0

    @property
    def room_bytes(self) -> int:
        """What the next answer may begin with. Clients that do not read keep others from large
        answers, and not from small ones."""
        if self.used <= self._max_bytes:
            return _ANY_SIZE
        return _SMALL_BYTES if self.used <= 2 * self._max_bytes else 0


class Claimed:
    """What one attempt was granted, while it is read."""

    def __init__(self, attempt: Attempt, budget: Budget) -> None:
        self.attempt = attempt
        self.grants: list[Grant] = []
        self._budget = budget
        self._taken = 0
        # What went wrong with a partition of it; told when nothing else can be given.
        self.error: QueenError | None = None

    @property
    def unread(self) -> list[Grant]:
        return [grant for grant in self.grants if not grant.is_read]

    def add(self, grant: Grant, stored: StoredSegment) -> None:
        """Take a segment, or end the answer before it."""
        size = stored.segment.size_bytes
        if size > self.room_bytes:
            self.cut()
            return
        self._taken += size
        grant.held_bytes += stored.size_bytes
        self._budget.used += stored.size_bytes
        grant.stored.append(stored)
        grant.is_read = stored.end_offset >= grant.stop

    @property
    def room_bytes(self) -> int:
        """What fits; the first segment does whatever its size, unless too much is under way."""
        free = self._budget.room_bytes
        if self._taken:
            return max(min(_MAX_ANSWER_BYTES, free) - self._taken, 0)
        return free

    def cut(self) -> None:
        """Give no more than was read."""
        if not self._taken and self.error is None:
            self.error = Overloaded()
        for grant in self.unread:
            grant.is_read = True
            grant.cut()

    def fail(self, grant: Grant, error: QueenError) -> None:
        """A segment of a grant cannot be read: it ends before that."""
        grant.is_read = grant.is_unreadable = True
        grant.cut()
        if self.error is None:
            self.error = error


class Reader:
    def __init__(
        self, database: Database, cache: SegmentCache, encryption: SegmentEncryption, max_bytes: int
    ) -> None:
        self._database = database
        self._cache = cache
        self._encryption = encryption
        self.budget = Budget(max_bytes)

    def release(self, grants: Iterable[Grant]) -> None:
        """Messages were sent, or nobody wants them: others may be read."""
        for grant in grants:
            self.budget.used -= grant.held_bytes
            grant.held_bytes = 0

    def read_cached(self, claims: list[Claimed]) -> None:
        """Fill in the messages that are at hand."""
        for claim in claims:
            for grant in claim.grants:
                cached = self._cache.span(grant.partition.id, grant.start, grant.stop)
                for stored in cached or ():
                    if not grant.is_read:
                        claim.add(grant, stored)

    async def read_some(self, claims: list[Claimed]) -> None:
        """Read on, as much as fits one statement; at least one grant gets further."""
        unread = [(claim, grant) for claim in claims for grant in claim.unread]
        rows = await self._database.fetch(
            "read_some",
            [grant.partition.id for _, grant in unread],
            [grant.read_to for _, grant in unread],
            [grant.stop for _, grant in unread],
            _MAX_ANSWER_BYTES,
            _MAX_STEP_BYTES,
        )
        for row in rows:
            claim, grant = unread[row["span"] - 1]
            if not grant.is_read:
                self._take(claim, grant, row)
        # What lies before the last row and brought none is gone, by retention.
        seen = {row["span"] for row in rows}
        last = max(seen, default=len(unread) + 1)
        for number, (_, grant) in enumerate(unread, 1):
            if number < last and number not in seen:
                grant.is_read = True

    def _take(self, claim: Claimed, grant: Grant, row: Record) -> None:
        try:
            # Frames are looked into as well: nothing is given that nobody could read.
            read = self._encryption.read_stored_within(row, claim.room_bytes)
        except QueenError as error:
            claim.fail(grant, error)
            return
        if read is None:
            claim.cut()
            return
        codec, body, segment = read
        if is_merged(row):
            for stretch in stretches_of(row, segment, row["low"], row["high"]):
                if not grant.is_read:
                    claim.add(grant, StoredSegment(*stretch))
            return
        place = row["base_offset"], row["created_at"]
        if claim.attempt.pop.is_framed:
            claim.add(grant, StoredSegment(*place, segment, codec, body))
        else:
            claim.add(grant, StoredSegment(*place, segment))
