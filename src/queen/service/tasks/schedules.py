"""Schedules: what is to be pushed by the calendar, as it is defined, paused and deleted."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from queen.core.frame import CODEC_RAW
from queen.core.names import DEFAULT_PARTITION
from queen.core.payload import as_line
from queen.core.tasks.cron import BadCron, next_ticks, parse_cron, parse_zone
from queen.errors import BadRequest, Conflict, NotFound
from queen.service.clock import Clock
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.outbox.scheduled import Outbox
from queen.storage.database import Database, Record, Transaction
from queen.wire.schedules import ScheduleRequest

# What of a definition is compared, and under which name it stands on the wire.
_COMPARED = {
    "queue": "queue",
    "partition": "partition",
    "cron": "cron",
    "zone": "zone",
    "catch_up": "catchUp",
    "catch_up_limit": "catchUpLimit",
}


class StoredSchedule(NamedTuple):
    """What became of a definition."""

    created: bool
    changed: bool
    next_at: datetime


class Schedules:
    def __init__(
        self, database: Database, clock: Clock, outbox: Outbox, encryption: SegmentEncryption
    ) -> None:
        self._database = database
        self._clock = clock
        self._outbox = outbox
        self._encryption = encryption

    async def define(
        self, asked: ScheduleRequest, subject: str | None, among: list[str] | None
    ) -> StoredSchedule:
        """Store a schedule; the same one again changes nothing.

        Names are one for all namespaces. With `among`, one of another namespace is left as it
        is, and nothing is told of it but that it is there.
        """
        next_at = next_tick(asked.cron, asked.zone, await self._clock.now())
        values = await self._values(asked, subject)
        created = await self._database.findval("insert_schedule", *values, next_at)
        if created is not None:
            await self._database.fetchval("tell_schedules")
            return StoredSchedule(created=True, changed=False, next_at=next_at)
        async with self._database.transaction() as transaction:
            stored = await transaction.findrow("lock_schedule", asked.name)
            if stored is None:
                raise Conflict("the schedule was deleted at the same moment; define it again")
            if among is not None and stored["namespace"] not in among:
                raise Conflict(f"the name {asked.name!r} is taken: choose another one")
            differs = self._differences(stored, asked)
            if not differs:
                return StoredSchedule(created=False, changed=False, next_at=stored["next_at"])
            if not asked.replace:
                raise _differs(asked.name, differs)
            next_at = stored["next_at"]
            if "cron" in differs or "zone" in differs:
                next_at = next_tick(asked.cron, asked.zone, stored["now"])
            await transaction.execute("replace_schedule", *values, next_at)
            await transaction.fetchval("tell_schedules")
            return StoredSchedule(created=False, changed=True, next_at=next_at)

    async def _values(self, asked: ScheduleRequest, subject: str | None) -> tuple[object, ...]:
        codec, payload = CODEC_RAW, as_line(bytes(asked.payload))
        partition = asked.partition or DEFAULT_PARTITION
        if await self._outbox.encrypted_queues([asked.queue]):
            codec, payload = self._encryption.encrypt_outbox_message(
                asked.queue, partition, payload
            )
        return (
            asked.name,
            asked.queue,
            partition,
            asked.cron,
            asked.zone,
            payload,
            codec,
            asked.catch_up,
            asked.catch_up_limit,
            subject,
        )

    def _differences(self, stored: Record, asked: ScheduleRequest) -> list[str]:
        """Return in what a definition differs from the one that is stored."""
        wanted = {
            "queue": asked.queue,
            "partition": asked.partition or DEFAULT_PARTITION,
            "cron": asked.cron,
            "zone": asked.zone,
            "catch_up": asked.catch_up,
            "catch_up_limit": asked.catch_up_limit,
        }
        differs = [_COMPARED[name] for name, value in wanted.items() if stored[name] != value]
        payload = self._encryption.decrypt_outbox_message(
            stored["queue"], stored["partition"], stored["codec"], stored["payload"]
        )
        return differs + ["payload"] * (payload != as_line(bytes(asked.payload)))

    async def page(
        self,
        among: list[str] | None,
        limit: int,
        offset: int,
        queue: str | None = None,
        name: str | None = None,
    ) -> list[Record]:
        """Return schedules by name; of a queue, and among some namespaces."""
        return await self._database.fetch("schedules_page", name, queue, among, limit, offset)

    async def find(self, name: str, among: list[str] | None) -> Record:
        """Return one schedule, or raise `NotFound`."""
        rows = await self.page(among, 1, 0, name=name)
        if not rows:
            raise NotFound(f"Schedule {name!r} not found")
        return rows[0]

    async def pause(self, name: str) -> bool:
        """Let a schedule rest; return whether it did not before."""
        return await self._turn(name, paused=True)

    async def resume(self, name: str) -> bool:
        """Let it go on with the tick that comes next; what it has missed is not made up."""
        return await self._turn(name, paused=False)

    async def _turn(self, name: str, *, paused: bool) -> bool:
        async with self._database.transaction() as transaction:
            stored = await self._lock(transaction, name)
            if stored["is_paused"] == paused:
                return False
            next_at = stored["next_at"]
            if not paused:
                next_at = next_tick(stored["cron"], stored["zone"], stored["now"])
            await transaction.execute("turn_schedule", name, paused, next_at)
            await transaction.fetchval("tell_schedules")
        return True

    async def _lock(self, transaction: Transaction, name: str) -> Record:
        row = await transaction.findrow("lock_schedule", name)
        if row is None:
            raise NotFound(f"Schedule {name!r} not found")
        return row

    async def delete(self, name: str) -> None:
        """Forget a schedule; what it has pushed stays."""
        if await self._database.findval("delete_schedule", name) is None:
            raise NotFound(f"Schedule {name!r} not found")


def next_tick(cron: str, zone: str, after: datetime) -> datetime:
    """Return when an expression comes due next; raises `BadRequest` when it is none."""
    return ticks_of(cron, zone, after, 1)[0]


def ticks_of(cron: str, zone: str, after: datetime, count: int) -> list[datetime]:
    """Return the next ticks of an expression; raises `BadRequest` when it is none."""
    try:
        return next_ticks(parse_cron(cron), parse_zone(zone), after, count)
    except BadCron as reason:
        raise BadRequest(str(reason)) from None


def _differs(name: str, differs: list[str]) -> Conflict:
    error = Conflict(
        f"schedule {name!r} is defined differently ({', '.join(differs)}): "
        "allow it with replace, or take another name"
    )
    error.details = {"differs": differs}
    return error
