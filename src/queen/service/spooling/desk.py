"""The desk: what waits in the spool of this process, and what a person can do about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

from queen.errors import InvalidFrame, NotFound
from queen.service.log.append import Append
from queen.service.spooling.basins import Basin, Basins
from queen.service.spooling.drain import Drain
from queen.service.spooling.entrance import Entrance
from queen.service.spooling.records import decode_append
from queen.spool.quarantine import Refused
from queen.spool.spool import SpoolStatistics
from queen.storage.breaker import Breaker


@dataclass(frozen=True, slots=True)
class SpoolNumbers:
    """The spools of this process together."""

    # Whether there is a spool at all.
    is_there: bool
    is_database_away: bool
    outages: int
    records: int = 0
    # False while files of earlier processes are still looked through: there may be more.
    is_counted: bool = True
    bytes: int = 0
    files: int = 0
    oldest_at_ms: int | None = None
    # Of the records, those that their queues do not take yet.
    waiting: int = 0
    quarantined: int = 0
    damaged: int = 0
    # Since the start of the process: messages that asked to be buffered, that had to be, and that
    # were drained; and batches that were drained.
    buffered_messages: int = 0
    failover_messages: int = 0
    drained_messages: int = 0
    batches: int = 0
    last_batch_records: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    spool_id: UUID
    refused: Refused
    # None when it cannot be decoded.
    append: Append | None


class SpoolDesk:
    def __init__(
        self, breaker: Breaker, entrance: Entrance, basins: Basins | None, drain: Drain | None
    ) -> None:
        self._breaker = breaker
        self._entrance = entrance
        self._basins = basins
        self._drain = drain

    async def numbers(self) -> SpoolNumbers:
        breaker = self._breaker
        if self._basins is None or self._drain is None:
            return SpoolNumbers(False, breaker.is_open, breaker.openings)
        drain, entrance = self._drain, self._entrance
        basins = [await basin.spool.statistics() for basin in self._basins]
        waiting = self._basins.waiting
        return SpoolNumbers(
            is_there=True,
            is_database_away=breaker.is_open,
            outages=breaker.openings,
            records=sum(each.records for each in basins),
            is_counted=all(each.is_scanned for each in basins),
            bytes=sum(each.bytes for each in basins),
            files=sum(each.files for each in basins),
            oldest_at_ms=_oldest(basins, drain.held_since_ms),
            waiting=0 if waiting is None else basins[-1].records,
            quarantined=sum(each.quarantined for each in basins),
            damaged=sum(each.damaged for each in basins),
            buffered_messages=entrance.buffered_messages,
            failover_messages=entrance.failover_messages,
            drained_messages=drain.drained_messages,
            batches=drain.batches,
            last_batch_records=drain.last_batch_records,
            problem=drain.problem,
        )

    async def quarantined(self, limit: int, offset: int) -> list[QuarantinedRecord]:
        """Return refused records, oldest first within each spool."""
        page: list[QuarantinedRecord] = []
        async for basin, refused in self._refused():
            if offset > 0:
                offset -= 1
            elif len(page) == limit:
                break
            else:
                page.append(await asyncio.to_thread(_read, basin, refused))
        return page

    async def retry(self, chosen: list[tuple[UUID, int]] | None) -> int:
        """Put refused records, all of them by default, into the spool again; return how many."""
        return await self._settle(chosen, again=True)

    async def drop(self, chosen: list[tuple[UUID, int]] | None) -> int:
        """Forget refused records, all of them by default; return how many."""
        return await self._settle(chosen, again=False)

    async def _settle(self, chosen: list[tuple[UUID, int]] | None, *, again: bool) -> int:
        wanted = None if chosen is None else set(chosen)
        settled = 0
        for basin, refused in [pair async for pair in self._refused()]:
            if wanted is not None and (basin.id, refused.seq) not in wanted:
                continue
            if again:
                record = await asyncio.to_thread(basin.spool.spool.quarantined_record, refused.seq)
                await self._entrance.spool_again(decode_append(record.kind, record.body))
            await asyncio.to_thread(basin.spool.spool.drop, [refused.seq])
            settled += 1
        if wanted is not None and settled < len(wanted):
            missing = len(wanted) - settled
            raise NotFound(f"records that are not in quarantine here: {missing}")
        return settled

    async def _refused(self) -> AsyncIterator[tuple[Basin, Refused]]:
        for basin in list(self._basins or ()):
            start = 0
            while page := await asyncio.to_thread(basin.spool.spool.quarantined, start, 100):
                for refused in page:
                    yield basin, refused
                start += len(page)


def _oldest(basins: list[SpoolStatistics], held_since_ms: int | None) -> int | None:
    times = [*(each.oldest_at_ms for each in basins), held_since_ms]
    return min((at_ms for at_ms in times if at_ms is not None), default=None)


def _read(basin: Basin, refused: Refused) -> QuarantinedRecord:
    record = basin.spool.spool.quarantined_record(refused.seq)
    try:
        append = decode_append(record.kind, record.body)
    except InvalidFrame:
        append = None
    return QuarantinedRecord(basin.id, refused, append)
