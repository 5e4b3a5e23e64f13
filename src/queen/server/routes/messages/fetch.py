"""GET /api/v1/fetch/queue/:queue[/partition/:partition]: stored segments as frames.

Frames are whole segments: the first and the last may reach beyond the range that was asked
for, and their headers say by how much. The body is streamed page by page.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from queen.core.frame import CONTENT_TYPE
from queen.errors import NotFound
from queen.server.api.routing import Doc, Other, Param, Route
from queen.server.api.times import parse_time
from queen.server.auth.access import Role
from queen.server.protocol.answer_parts import stream_frames
from queen.server.protocol.http import Query, Request, check_name
from queen.service.broker import Broker
from queen.wire.frames.joined_frame import ACCEPT_ANY_ORDER, ACCEPT_JOINED, accepted_frames
from queen.wire.parts import Instant

_MAX_OFFSET = 2**62

_OFFSET = Annotated[int, Meta(ge=0, le=_MAX_OFFSET)]
_TIMES = (
    Param("fromTime", Instant, "Not before this time; without a zone it is UTC."),
    Param("toTime", Instant, "Before this time; without a zone it is UTC."),
)
_FRAMES = Other(CONTENT_TYPE, "Frames, one after the other; see `queen.core.frame`.")
_QUEUE = Doc(
    "messages",
    "Read the stored segments of a queue",
    f"""\
Streams stored messages as frames, without a lease and without a cursor: nothing is marked
as read. Frames are whole segments: the first and the last may reach beyond what was asked for,
and their headers say by how much. To those who accept `{ACCEPT_JOINED}` small segments are
sent many in one frame; to those who accept `{ACCEPT_ANY_ORDER}` those that were merged
come faster, and out of the order of time; small ones between them that cannot be merged come
alone.""",
    query=_TIMES,
    answers={200: _FRAMES},
)
_PARTITION = _QUEUE._replace(
    summary="Read the stored segments of a partition",
    query=(
        Param("fromOffset", _OFFSET, "The first offset.", 0),
        Param("toOffset", _OFFSET, "The offset after the last one; left out, all there are."),
        *_TIMES,
    ),
)


class FetchRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/fetch/queue/{queue}", Role.READ, self.queue, _QUEUE, scoped=True),
            Route(
                "GET",
                "/api/v1/fetch/queue/{queue}/partition/{partition}",
                Role.READ,
                self.partition,
                _PARTITION,
                scoped=True,
            ),
        ]

    async def queue(self, request: Request) -> None:
        query = Query(request.query)
        check_name("queue", request.params[0])
        queue = await self._broker.scope.existing_queue(request.caller, request.params[0])
        frames = self._broker.fetcher.queue(
            queue,
            from_time=_time(query, "fromTime"),
            to_time=_time(query, "toTime"),
            accepted=accepted_frames(request.headers.get(b"accept", b"")),
        )
        await stream_frames(request, frames)

    async def partition(self, request: Request) -> None:
        query = Query(request.query)
        check_name("queue", request.params[0])
        check_name("partition", request.params[1])
        queue = await self._broker.scope.queue(request.caller, request.params[0])
        partition = (
            await self._broker.catalog.partition(queue, request.params[1]) if queue else None
        )
        if partition is None:
            raise NotFound("Partition not found")
        frames = self._broker.fetcher.partition(
            partition,
            from_offset=query.number("fromOffset", 0, 0, _MAX_OFFSET),
            to_offset=query.number("toOffset", _MAX_OFFSET, 0, _MAX_OFFSET),
            from_time=_time(query, "fromTime"),
            to_time=_time(query, "toTime"),
            accepted=accepted_frames(request.headers.get(b"accept", b"")),
        )
        await stream_frames(request, frames)


def _time(query: Query, name: str) -> datetime | None:
    text = query.text(name)
    return parse_time(name, text) if text else None
