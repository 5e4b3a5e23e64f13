"""GET /api/v1/resources/streams/{stream}/timeline: the last windows of each key, side by side."""

from __future__ import annotations

from datetime import datetime
from itertools import groupby
from typing import Annotated

import msgspec
from msgspec import Meta

from queen.server.answers.windows import window_id
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.stats_rows import iso_or_none
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.streams.definitions import Stream
from queen.service.streams.overview import next_end
from queen.wire import streams as wire
from queen.wire.answers import iso

_KEYS, _MOST_KEYS = 20, 100
_WINDOWS, _MOST_WINDOWS = 30, 100

_TIMELINE = Doc(
    "streams",
    "Show the last windows of the keys of a stream",
    "With a group, what it has done about each window, and first the keys that need somebody: "
    "those with dead windows, then those with work to do.",
    query=(
        Param("group", str, "A consumer group of the stream."),
        Param("key", str, "One key: a partition name, or `__GLOBAL__`."),
        Param("keys", Annotated[int, Meta(ge=1, le=_MOST_KEYS)], "At most so many keys.", _KEYS),
        Param(
            "windows",
            Annotated[int, Meta(ge=1, le=_MOST_WINDOWS)],
            "At most so many windows of each.",
            _WINDOWS,
        ),
    ),
    answers={200: wire.Timeline},
)


class StreamTimelineRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        path = "/api/v1/resources/streams/{stream}/timeline"
        return [Route("GET", path, Role.READ, self.timeline, _TIMELINE, scoped=True)]

    async def timeline(self, request: Request) -> Response:
        stream = await self._broker.scope.stream(request.caller, request.params[0])
        query = Query(request.query)
        keys = query.number("keys", _KEYS, 1, _MOST_KEYS)
        windows = query.number("windows", _WINDOWS, 1, _MOST_WINDOWS)
        group, key = query.text("group") or None, query.text("key") or None
        group_id = await self._broker.work.find_group(stream, group) if group else None
        rows, gathered = await self._broker.stream_overview.timeline(
            stream, group_id, key, keys, windows
        )
        now = await self._broker.clock.now()
        answer = wire.Timeline(
            stream=stream.name,
            group=group,
            now=iso(now),
            planned_until=iso_or_none(stream.planned_until),
            keys=[
                wire.TimelineKey(of_key, [_window(stream, row) for row in windows_of_key])
                for of_key, windows_of_key in groupby(rows, lambda row: row["key"])
            ],
            open=_open_windows(stream, now, gathered),
        )
        return Response(200, msgspec.json.encode(answer))


def _window(stream: Stream, row: Record) -> wire.TimelineWindow:
    return wire.TimelineWindow(
        id=window_id(stream, row["key"], row["starts_at"], row["ends_at"], row["id"]),
        start=iso(row["starts_at"]),
        end=iso(row["ends_at"]),
        messages=row["messages"],
        bytes=row["bytes"],
        state=row["state"],
        attempts=row["attempts"],
        consumer=row["consumer"],
        lease_expires_at=iso_or_none(row["lease_until"]),
        retry_at=iso_or_none(row["retry_at"]),
        leased_at=iso_or_none(row["granted_at"]),
        settled_at=iso_or_none(row["settled_at"]),
        error=row["error"],
    )


def _open_windows(stream: Stream, now: datetime, gathered: list[Record]) -> list[wire.OpenWindow]:
    definition = stream.definition
    end = next_end(stream, now)
    if end is not None:
        start, ready = end - definition.slide, end + definition.grace
        return [wire.OpenWindow(None, iso(start), iso(end), iso(ready))]
    return [
        wire.OpenWindow(row["key"], iso(row["begins_at"]), _closing(row["closes_at"]), None)
        for row in gathered
    ]


def _closing(at: datetime) -> str | None:
    # What only messages close is said to close at the end of time.
    return iso(at) if at.year < 9000 else None
