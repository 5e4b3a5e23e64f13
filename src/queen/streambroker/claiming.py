"""Entries that are delivered again: counted, and set aside when that happened too often.

A claim does not say how often an entry was delivered. The list of what is pending does, and is
asked for in the same atomic unit, so that nobody can claim or ack in between.

A server that keeps delivery limits never delivers an entry too often. For one that does not, a
limit is kept here: what was claimed and has passed it is added to the dead letters and acked, in
one step. If that step fails the entry is still pending, and the next claim comes to the same end.
"""

from __future__ import annotations

from typing import cast

from queen.streambroker.answers import (
    as_list,
    entries_read,
    entry_parts,
    good,
    is_missing,
    message_of,
    pending_rows,
)
from queen.streambroker.entry_data import with_origin
from queen.streambroker.interface import DEAD_LETTERS
from queen.streambroker.records import StreamMessage
from queen.streambroker.replies import Executor, Reply

_PAGE = 100
# A scan for idle entries looks at so many rows for each entry it may return.
_ROWS_PER_ENTRY = 10
_ALL = 2**31


class Claims:
    """Claims of one broker object, and the limits that it was told."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._limits: dict[tuple[bytes, bytes], int] = {}

    def set_limit(self, stream: bytes, group: bytes, limit: int | None) -> None:
        if limit is None:
            self._limits.pop((stream, group), None)
        else:
            self._limits[stream, group] = limit

    def has_limit(self, stream: bytes, group: bytes) -> bool:
        return (stream, group) in self._limits

    async def claim(
        self, stream: bytes, group: bytes, consumer: bytes, idle_ms: int, entry_ids: list[bytes]
    ) -> list[StreamMessage]:
        """Claim the entries named."""
        claim = (b"XCLAIM", stream, group, consumer, b"%d" % idle_ms, *entry_ids)
        rows = [(b"XPENDING", stream, group, each, each, b"1") for each in entry_ids]
        reply, *pending = await self._executor.execute([claim, *rows], is_atomic=True)
        if is_missing(reply):
            return []
        counts = {
            row.entry_id: row.deliveries for listed in pending for row in pending_rows(listed)
        }
        return await self._delivered(stream, group, as_list(reply), counts)

    async def claim_idle(
        self, stream: bytes, group: bytes, consumer: bytes, idle_ms: int, count: int
    ) -> list[StreamMessage]:
        """Claim what is idle, by id, up to a count; 0 is no limit."""
        messages: list[StreamMessage] = []
        cursor = b"0-0"
        while True:
            wanted = min(_PAGE, count - len(messages)) if count else _PAGE
            claim = (b"XAUTOCLAIM", stream, group, consumer, b"%d" % idle_ms, cursor)
            # What it may have claimed is among the rows that it looks at, from where it begins.
            rows = (b"XPENDING", stream, group, cursor, b"+", b"%d" % (wanted * _ROWS_PER_ENTRY))
            reply, pending = await self._executor.execute(
                [(*claim, b"COUNT", b"%d" % wanted), (*rows, consumer)], is_atomic=True
            )
            if is_missing(reply):
                return messages
            next_cursor, entries, *_ = as_list(reply)
            counts = {row.entry_id: row.deliveries for row in pending_rows(pending)}
            messages += await self._delivered(stream, group, as_list(entries), counts)
            cursor = cast("bytes", next_cursor)
            if cursor == b"0-0" or (count and len(messages) >= count):
                return messages

    async def history(
        self, stream: bytes, group: bytes, consumer: bytes, after: bytes, count: int
    ) -> list[StreamMessage]:
        """Return what a consumer has pending; that counts as a delivery."""
        read = (b"XREADGROUP", b"GROUP", group, consumer, b"COUNT", b"%d" % count)
        rows = (b"XPENDING", stream, group, b"(" + after, b"+", b"%d" % (count or _ALL), consumer)
        reply, pending = await self._executor.execute(
            [(*read, b"STREAMS", stream, after), rows], is_atomic=True
        )
        if is_missing(reply):
            return []
        counts = {row.entry_id: row.deliveries for row in pending_rows(pending)}
        parts = map(entry_parts, entries_read(good(reply)))
        return [message_of(entry_id, fields, counts.get(entry_id)) for entry_id, fields in parts]

    async def _delivered(
        self, stream: bytes, group: bytes, entries: list[Reply], counts: dict[bytes, int]
    ) -> list[StreamMessage]:
        """Return claimed entries as messages, without those that pass the limit now."""
        limit = self._limits.get((stream, group))
        messages = []
        for entry_id, fields in map(entry_parts, entries):
            count = counts.get(entry_id)
            if limit is not None and count is not None and count > limit:
                await self._set_aside(stream, group, entry_id, fields or [], count - 1)
            else:
                messages.append(message_of(entry_id, fields, count))
        return messages

    async def _set_aside(
        self, stream: bytes, group: bytes, entry_id: bytes, fields: list[bytes], deliveries: int
    ) -> None:
        letter = with_origin(fields, stream, group, entry_id, deliveries)
        replies = await self._executor.execute(
            [
                (b"XADD", stream + DEAD_LETTERS.encode(), b"*", *letter),
                (b"XACK", stream, group, entry_id),
            ],
            is_atomic=True,
        )
        for reply in replies:
            good(reply)
