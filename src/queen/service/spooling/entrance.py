"""The entrance: every push comes through here, and goes to the log or to the spool.

    to the log       as ever, answered after the commit
    to the spool     what asks to be buffered; what comes while the database is away or an operator
                     holds pushes back; and what comes for a partition with records in the spool,
                     since order is kept

What is spooled for any other reason than that it asked for it is on the disk before the answer.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from queen.errors import InMaintenance, QueenError, Unavailable
from queen.service.admin.maintenance import Maintenance
from queen.service.log.append import Append, Request
from queen.service.log.push import Pusher, raise_if_none_stored
from queen.service.spooling.basins import Basins
from queen.service.spooling.drain import Drain
from queen.service.spooling.records import encode_append, kind_of
from queen.service.stats.activity import Activity
from queen.storage.breaker import Breaker


class Buffering(NamedTuple):
    """How long messages may wait in the spool, and how many of them. None: as is set."""

    within_ms: float | None = None
    most: int | None = None


class Entrance:
    def __init__(
        self,
        pusher: Pusher,
        maintenance: Maintenance,
        breaker: Breaker,
        activity: Activity,
        basins: Basins | None,
        drain: Drain | None,
    ) -> None:
        self._pusher = pusher
        self._maintenance = maintenance
        self._breaker = breaker
        self._activity = activity
        self._basins = basins
        self._drain = drain
        self.buffered_messages = 0
        self.failover_messages = 0

    async def push(self, appends: list[Append], buffering: Buffering | None = None) -> None:
        """Take messages; those that are buffered say so. Raises when none of them were taken;
        where only some were not, their appends say why."""
        spooled = self._to_spool(appends, buffering)
        if not spooled:
            await self._pusher.store(appends)
            if not self.is_done(appends):
                await self.finish(appends)
            return
        if len(spooled) == len(appends):
            await self._spool(appends, buffering)
        else:
            set_aside = set(spooled)
            direct = [append for append in appends if append not in set_aside]
            await self._spool(spooled, buffering)
            await self._pusher.store(direct)
            await self._spool_lost(direct)
        raise_if_none_stored(appends)
        self._activity.count_push(appends)

    def is_behind(self, appends: list[Append]) -> bool:
        """Whether something waits in the spool of this process that must be stored before."""
        drain = self._drain
        if drain is None or drain.is_clear:
            return False
        return any(drain.is_behind((append.queue, append.partition)) for append in appends)

    def submit(self, appends: list[Append]) -> Request | None:
        """Begin to store messages; None when they, or some of them, cannot go to the log now. When
        it is done, see `is_done` and `finish`."""
        return None if self._to_spool(appends, None) else self._pusher.submit(appends)

    def is_done(self, appends: list[Append]) -> bool:
        """Count a push that is stored as a whole; false when there is more to do for it."""
        if any(append.error is not None for append in appends):
            return False
        self._activity.count_push(appends)
        return True

    async def finish(self, appends: list[Append]) -> None:
        """Do what is left for a push that the log did not take as a whole; raises as `push`."""
        await self._spool_lost(appends)
        raise_if_none_stored(appends)
        self._activity.count_push(appends)

    def buffer(self, appends: list[Append], buffering: Buffering) -> bool:
        """Write messages that ask to be buffered to the spool, if nobody has to be waited for."""
        if self._drain is None or self._basins is None:
            return False
        bodies, keys = [encode_append(append) for append in appends], self._drain.keys
        for append in appends:
            keys.add((append.queue, append.partition))
        try:
            is_written = self._basins.own.spool.append_now(bodies, kind_of(appends[0]))
        except QueenError:
            is_written = False
        if not is_written:
            for append in appends:
                keys.done((append.queue, append.partition))
            return False
        self._note_spooled(appends, buffering)
        self._activity.count_push(appends)
        return True

    async def spool_again(self, append: Append) -> None:
        """Put what was refused before behind all that waits; raises when there is no room."""
        await self._spool([append], None)
        if append.error is not None:
            raise append.error

    def _to_spool(self, appends: list[Append], buffering: Buffering | None) -> list[Append]:
        """Return what cannot, or need not, go to the log now."""
        drain = self._drain
        if drain is None:
            if self._maintenance.pushes_are_held:
                raise InMaintenance
            return []
        if buffering or self._breaker.is_open or not self._maintenance.pushes_are_stored:
            return appends
        if drain.is_clear:
            return []
        return [each for each in appends if drain.is_behind((each.queue, each.partition))]

    async def _spool_lost(self, appends: list[Append]) -> None:
        """Spool what the database did not take because it is away."""
        if self._drain is None:
            return
        lost = [each for each in appends if each.error is not None and _is_outage(each.error)]
        if lost:
            await self._spool(lost, None)

    async def _spool(self, appends: list[Append], buffering: Buffering | None) -> None:
        assert self._drain is not None and self._basins is not None
        keys, bodies = self._drain.keys, [encode_append(append) for append in appends]
        # Before it is written: what comes for these partitions meanwhile goes behind them.
        for append in appends:
            keys.add((append.queue, append.partition))
        try:
            spool = self._basins.own.spool
            await spool.append(
                bodies, kind_of(appends[0]), durable=None if buffering is not None else True
            )
        except asyncio.CancelledError:
            # Nobody waits for the answer; what was written is drained all the same.
            self._drain.expect(len(appends), 0.0, 1)
            raise
        except QueenError as error:
            for append in appends:
                keys.done((append.queue, append.partition))
                # Of a first try with unknown outcome that is still the truth.
                append.error = append.error or error
            return
        self._note_spooled(appends, buffering)

    def _note_spooled(self, appends: list[Append], buffering: Buffering | None) -> None:
        assert self._drain is not None and self._basins is not None
        messages = 0
        for append in appends:
            append.error = None
            append.is_buffered = True
            messages += len(append)
        if buffering is None:
            self.failover_messages += messages
            self._drain.expect(messages, 0.0, 1)
            return
        self.buffered_messages += messages
        settings = self._basins.settings
        within_ms = settings.flush_ms if buffering.within_ms is None else buffering.within_ms
        most = settings.flush_messages if buffering.most is None else buffering.most
        self._drain.expect(messages, within_ms / 1000, most)


def _is_outage(error: QueenError) -> bool:
    return isinstance(error, Unavailable) and error.is_outage
