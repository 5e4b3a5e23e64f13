"""Where the messages of windows lie, for readers that fetch them in parallel.

A window is a list of ranges of offsets. Whoever reads many messages in many places at once,
Spark above all, asks for the ranges here and fetches what is stored from where it is stored.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from queen.errors import BadRequest
from queen.server.answers.windows import ranges_of, window_id
from queen.server.api.paging import limit_of, limit_param
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.times import parse_time
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.streams.definitions import Stream
from queen.service.streams.work import spans_of
from queen.wire import streams as wire
from queen.wire.answers import iso
from queen.wire.parts import Instant

_TAG = "streams"
_PAGE = 1000
_MOST = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END = datetime(9999, 12, 31, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LEASE = "00000007-0000-0000-002a-5f0c1d9e7a3b"

_LEASED = Doc(
    _TAG,
    "Show where the messages of a leased window lie",
    "Ranges are half-open. A lease that has ended is a 409.",
    query=(Param("leaseId", str, "The lease of the window.", required=True, example=_LEASE),),
    answers={200: wire.WindowRanges},
    errors=(409,),
)
_CLOSED = Doc(
    _TAG,
    "List closed windows and where their messages lie",
    """\
Windows that lie wholly between two times, in the order of their ends; with a group, only those
that it has finished. What a page lists stays as it is: windows that close later come after it.""",
    query=(
        Param("group", str, "A consumer group of the stream."),
        Param("fromTime", Instant, "Windows that start then or later."),
        Param("toTime", Instant, "Windows that end then or earlier."),
        Param("after", str, "Where the page before said that the next one begins."),
        limit_param(_PAGE, _MOST),
    ),
    answers={200: wire.WindowRangesPage},
)


class StreamRangeRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        closed = "/api/v1/resources/streams/{stream}/ranges"
        return [
            Route(
                "GET", "/api/v1/stream/window", Role.WRITE, self.leased_window, _LEASED, scoped=True
            ),
            Route("GET", closed, Role.READ, self.closed_windows, _CLOSED, scoped=True),
        ]

    async def leased_window(self, request: Request) -> Response:
        row = await self._broker.work.find_leased(
            request.caller, Query(request.query).text("leaseId")
        )
        stream = await self._broker.scope.stream(request.caller, row["stream"])
        (window,) = await self._windows(stream, [row])
        return Response(200, msgspec.json.encode(window))

    async def closed_windows(self, request: Request) -> Response:
        stream = await self._broker.scope.stream(request.caller, request.params[0])
        query = Query(request.query)
        group, limit = query.text("group"), limit_of(query, _PAGE, _MOST)
        rows = await self._broker.stream_overview.ranges(
            stream,
            _time(query, "fromTime", _EPOCH),
            _time(query, "toTime", _END),
            *_place(query.text("after")),
            await self._broker.work.find_group(stream, group) if group else None,
            limit,
        )
        windows = await self._windows(stream, rows)
        following = _following(rows[-1]) if len(rows) == limit else None
        return Response(200, msgspec.json.encode(wire.WindowRangesPage(windows, following)))

    async def _windows(self, stream: Stream, rows: list[Record]) -> list[wire.WindowRanges]:
        ids = {partition_id for row in rows for partition_id in row["partitions"]}
        partitions = await self._broker.catalog.partitions(ids)
        return [
            wire.WindowRanges(
                window_id(stream, row["key"], row["starts_at"], row["ends_at"], row["id"]),
                row["key"],
                iso(row["starts_at"]),
                iso(row["ends_at"]),
                row["messages"],
                row["bytes"],
                ranges_of(spans_of(row), partitions),
            )
            for row in rows
        ]


def _time(query: Query, name: str, default: datetime) -> datetime:
    text = query.text(name)
    return parse_time(name, text) if text else default


def _following(row: Record) -> str:
    return f"{(row['ends_at'] - _EPOCH) // _MICROSECOND}-{row['id']}"


def _place(text: str) -> tuple[datetime, int]:
    """Return the end and the number of the last window of the page before."""
    if not text:
        return _EPOCH, 0
    end, _, number = text.partition("-")
    is_place = end.isdecimal() and number.isdecimal() and len(end) < 18 and len(number) < 19
    if not is_place:
        raise BadRequest(f"after is not a place that a page has given: {text!r}")
    return _EPOCH + int(end) * _MICROSECOND, int(number)
