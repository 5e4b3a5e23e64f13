"""Merging: small segments do not stay small.

A queue that is fed one message per request has a row for each message. When they are old enough,
neighbours of a partition become one row (`queen.service.merged.stretches`); nobody who reads them
can tell, but by their size and speed.

A round takes one queue and a range of its time, in which there is about half a megabyte, or which
is ten minutes long. What it merges begins and ends inside of that range, so that whoever reads a
queue in the order of time has few merged rows open at once. It reads without a lock. The statement
that writes waits for nobody: what has changed since, or is held by somebody, stays small.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

from queen.core.columns.joining import ColumnJoiner
from queen.core.frame import CODEC_MERGED, CODEC_RAW, Segment, compress, encode_body
from queen.errors import QueenError
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.upkeep.retention import JOB as RETENTION_JOB
from queen.storage.database import Record, Transaction

_log = logging.getLogger(__name__)

INTERVAL_S = 15.0
# How long a round rests, of what it took: however much there is to do, others have the processor
# for most of the time.
REST = 2.0
# How often one queue is merged before the others have their turn.
_TURN_ROUNDS = 25
# A range begins to be merged when it is complete: as old as that, beside what is left alone.
RANGE_S = 600.0
# Of a range: what is looked at, and what is merged.
_RANGE_ROWS = 4000
_RANGE_BYTES = 512 * 1024
# A segment that is larger gains nothing.
_SMALL_BYTES = 4 * 1024
# Whoever reads a message opens the whole of its segment.
_MERGED_MESSAGES = 500
_MERGED_BYTES = 64 * 1024
# Fewer are not worth a row of what they were.
_FEWEST = 4


class _Neighbours(NamedTuple):
    """Neighbours that become one segment."""

    rows: list[Record]
    codec: int
    hashes: bytes | None
    body: bytes


class Merger:
    def __init__(
        self, encryption: SegmentEncryption, age_s: float, range_s: float = RANGE_S
    ) -> None:
        self._encryption = encryption
        self._age_s = age_s
        self._range_s = range_s
        # The queue that was looked at last, in a walk over all of them.
        self._queue = 0
        self._rounds = 0
        self._has_merged = False
        # For whoever watches: rows that are gone, those that came in their place, and how often
        # somebody else was at work.
        self.rows_merged = 0
        self.rows_made = 0
        self.rounds_refused = 0

    async def merge_some(self, transaction: Transaction) -> bool:
        """Merge a range of the next queue that has one; return whether there may be more."""
        if not await transaction.fetchval("all_servers_know_merged"):
            return False
        # What retention removes must not be put in order meanwhile, nor the other way round.
        if not await transaction.fetchval("try_job", RETENTION_JOB):
            return False
        queue = await transaction.findrow(
            "queue_to_merge", self._queue, self._age_s + self._range_s, self._age_s
        )
        if queue is None:
            # The next walk is worth it if this one was.
            more, self._queue, self._has_merged = self._has_merged, 0, False
            return more
        merged = await self._merge(transaction, queue)
        self._has_merged |= merged
        self.rounds_refused += not merged
        self._rounds += 1
        if not merged or self._rounds >= _TURN_ROUNDS:
            self._queue, self._rounds = queue["id"], 0
        return True

    async def _merge(self, transaction: Transaction, queue: Record) -> bool:
        """Merge what is small in a range; return whether that was possible."""
        since, until = queue["since"], queue["until"]
        rows = await transaction.fetch(
            "segments_to_merge", queue["id"], since, until, _RANGE_ROWS, _SMALL_BYTES
        )
        rows, until = _whole_instants(rows, until)
        runs = []
        for small in _runs(rows):
            run = self._build(small)
            if run is not None:
                runs.append(run)
            # Requests have their turn.
            await asyncio.sleep(0)
        if not runs:
            await transaction.execute("note_merged", queue["id"], until)
            return True
        gone = [(row, number) for number, run in enumerate(runs, 1) for row in run.rows]
        rows_gone: int | None = await transaction.fetchval(
            "merge_segments",
            queue["id"],
            queue["revision"],
            until,
            [row["partition_id"] for row, _ in gone],
            [row["base_offset"] for row, _ in gone],
            [row["version"] for row, _ in gone],
            [number for _, number in gone],
            [run.codec for run in runs],
            [run.hashes for run in runs],
            [run.body for run in runs],
        )
        if rows_gone:
            self.rows_merged += rows_gone
            self.rows_made += len(runs)
        return rows_gone is not None

    def _build(self, rows: list[Record]) -> _Neighbours | None:
        """Return neighbours as one segment; None when one of them does not open: they stay."""
        try:
            segment = self._join(rows)
        except QueenError as error:
            _log.warning("segments of partition %d stay small: %s", rows[0]["partition_id"], error)
            return None
        codec, body = compress(encode_body(segment))
        hashes = None if rows[0]["hashes"] is None else b"".join([row["hashes"] for row in rows])
        return _Neighbours(rows, codec | CODEC_MERGED, hashes, body)

    def _join(self, rows: list[Record]) -> Segment:
        joiner = ColumnJoiner()
        if all(row["codec"] == CODEC_RAW and _messages(row) == 1 for row in rows):
            bodies = [row["body"] for row in rows]
            if joiner.add_lone(bodies) is not None:
                return joiner.segment()
        for row in rows:
            segment = self._encryption.decode_segment(row)
            if segment.count != _messages(row):
                raise QueenError(f"a body holds {segment.count} messages, not {_messages(row)}")
            joiner.add(segment)
        return joiner.segment()


def _messages(row: Record) -> int:
    count: int = row["end_offset"] - row["base_offset"]
    return count


def _whole_instants(rows: list[Record], until: datetime) -> tuple[list[Record], datetime]:
    """Return the rows of a range, and where it ends: there, or before one row too many."""
    size = 0
    for number, row in enumerate(rows):
        size += len(row["body"] or b"")
        if size > _RANGE_BYTES and row["created_at"] > rows[0]["created_at"]:
            return _before(rows[:number], row["created_at"])
    if len(rows) == _RANGE_ROWS and rows[-1]["created_at"] > rows[0]["created_at"]:
        return _before(rows, rows[-1]["created_at"])
    return rows, until


def _before(rows: list[Record], at: datetime) -> tuple[list[Record], datetime]:
    return [row for row in rows if row["created_at"] < at], at


def _runs(rows: Sequence[Record]) -> Iterator[list[Record]]:
    """Yield neighbours that are worth to be one segment."""
    ordered = sorted(rows, key=lambda row: (row["partition_id"], row["base_offset"]))
    for _, of_partition in groupby(ordered, key=lambda row: row["partition_id"]):
        run: list[Record] = []
        messages = size = 0
        for row in of_partition:
            if run and not _goes_on(run[-1], row, messages, size):
                yield from _worthy(run)
                run, messages, size = [], 0, 0
            if row["body"] is not None:
                run.append(row)
                messages += _messages(row)
                size += len(row["body"])
        yield from _worthy(run)


def _goes_on(last: Record, row: Record, messages: int, size: int) -> bool:
    return (
        row["body"] is not None
        and row["base_offset"] == last["end_offset"]
        and (row["hashes"] is None) == (last["hashes"] is None)
        and messages + _messages(row) <= _MERGED_MESSAGES
        and size + len(row["body"]) <= _MERGED_BYTES
    )


def _worthy(run: list[Record]) -> Iterator[list[Record]]:
    if len(run) >= _FEWEST:
        yield run
