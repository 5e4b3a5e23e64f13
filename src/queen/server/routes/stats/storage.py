"""GET /api/v1/status/storage and /api/v1/system/doctor: does it last, and is it well."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from queen import __version__
from queen.server.api.routing import Doc, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import Request, Response
from queen.service.broker import Broker
from queen.service.stats.storage import Forecast
from queen.wire.answers import iso
from queen.wire.stats import storage as wire

_STORAGE = Doc(
    "Status",
    "What is stored, and how long the disk lasts",
    "Queues keep messages for ever unless retention is set. This names those that do, how fast "
    "they grow, and when the disk of the database is full.",
    answers={200: wire.StorageForecast},
)
_DOCTOR = Doc(
    "system",
    "What is wrong with the server and its database, and what to do",
    "Settings of PostgreSQL, clocks, held transactions, bloat, disk, retention, spool. A problem "
    "loses messages or stops the broker, now or soon; a warning makes it slow, or a problem later.",
    answers={200: wire.CheckupAnswer},
)


class StorageRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/status/storage", Role.READ, self.storage, _STORAGE),
            Route("GET", "/api/v1/system/doctor", Role.READ, self.doctor, _DOCTOR),
        ]

    async def storage(self, _request: Request) -> Response:
        await self._broker.statistics.current()
        forecast = await self._broker.storage.forecast()
        return Response(200, msgspec.json.encode(_answer(forecast)))

    async def doctor(self, _request: Request) -> Response:
        findings = [
            wire.Finding(finding.check, finding.level, finding.says, finding.advice)
            for finding in await self._broker.checkup.findings()
        ]
        levels = [finding.level for finding in findings]
        answer = wire.CheckupAnswer(
            version=__version__,
            now=iso(datetime.now(UTC)),
            problems=levels.count("problem"),
            warnings=levels.count("warning"),
            findings=findings,
        )
        return Response(200, msgspec.json.encode(answer))


def _answer(forecast: Forecast) -> wire.StorageForecast:
    disk = None
    if forecast.disk_path and forecast.disk_total_bytes and forecast.disk_free_bytes is not None:
        disk = wire.Disk(forecast.disk_path, forecast.disk_total_bytes, forecast.disk_free_bytes)
    return wire.StorageForecast(
        at=iso(forecast.at),
        database_bytes=forecast.database_bytes,
        disk=disk,
        growth_bytes_per_day=forecast.growth_bytes_per_day,
        observed_seconds=round(forecast.observed_seconds, 1),
        days_until_full=forecast.days_until_full and round(forecast.days_until_full, 1),
        queues_keeping_everything=forecast.keeping_count,
        bytes_kept_for_ever=forecast.keeping_bytes,
        queues=[
            wire.KeptQueue(
                queue.name, queue.messages, queue.stored_bytes, queue.pushed_bytes_per_day
            )
            for queue in forecast.keeping
        ],
        sentence=forecast.sentence(),
    )
