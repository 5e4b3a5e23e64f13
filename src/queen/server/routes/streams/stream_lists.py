"""GET /api/v1/resources/streams/…: what streams there are, how far groups are, and why."""

from __future__ import annotations

from datetime import datetime

import msgspec

from queen.core.streams import StreamDefinition
from queen.errors import BadRequest, NotFound
from queen.server.answers.windows import ranges_of, window_id
from queen.server.api.audit import audit
from queen.server.api.failures import decode_body
from queen.server.api.paging import page_of, page_params
from queen.server.api.routing import Doc, Param, Route
from queen.server.api.stats_rows import iso_or_none
from queen.server.api.times import parse_time
from queen.server.auth.access import Role
from queen.server.protocol.http import Query, Request, Response, check_name
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.scope import listed
from queen.service.streams.definitions import Stream
from queen.service.streams.overview import Reason, next_end
from queen.service.streams.work import spans_of
from queen.wire import streams as wire
from queen.wire.answers import iso

_TAG = "streams"
_STATES = ("planned", "waiting", "ready", "leased", "retrying", "done", "dead")

_definition = msgspec.json.Decoder(StreamDefinition)
_retry = msgspec.json.Decoder(wire.RetryRequest)

_GROUP = Param("group", str, "A consumer group of the stream.")
_KEY = Param("key", str, "One key: a partition name, or `__GLOBAL__`.")

_LIST = Doc(_TAG, "List the streams", query=page_params(100), answers={200: wire.StreamList})
_STATS = Doc(_TAG, "Count streams, leases and windows", answers={200: wire.StreamStats})
_SHOW = Doc(_TAG, "Show a stream", answers={200: wire.StreamRow})
_DELETE = Doc(
    _TAG,
    "Delete a stream with its windows and groups",
    "The queues and their messages stay.",
    answers={200: wire.StreamDeleted},
)
_CONSUMERS = Doc(
    _TAG,
    "Show how far the groups of a stream are",
    query=page_params(100),
    answers={200: wire.StreamConsumers},
)
_FORGET = Doc(_TAG, "Forget a group of a stream", answers={200: wire.GroupDeleted})
_PAUSE = Doc(
    _TAG,
    "Hand out no more windows to a group",
    "What is leased can still be acknowledged.",
    answers={200: wire.Paused},
)
_RESUME = Doc(_TAG, "Hand out windows to a group again", answers={200: wire.Paused})
_WINDOWS = Doc(
    _TAG,
    "List the windows of a stream",
    "Newest first; with a state the oldest first. States are those of a group.",
    query=(
        _GROUP,
        _KEY,
        Param("state", str, "Only windows in this state: " + ", ".join(_STATES) + "."),
        *page_params(100),
    ),
    answers={200: wire.WindowList},
)
_EXPLAIN = Doc(
    _TAG,
    "Say why windows are where they are",
    "For the stream, and with a group for each of its unfinished windows.",
    query=(_GROUP, _KEY),
    answers={200: wire.Explanation},
)
_DEAD = Doc(
    _TAG,
    "List the windows that were given up",
    query=(_GROUP, *page_params(100)),
    answers={200: wire.DeadWindows},
)
_RETRY = Doc(
    _TAG,
    "Try dead windows again",
    "One of them, or all of a group; each gets a full set of tries.",
    body=wire.RetryRequest,
    answers={200: wire.RetryAnswer},
    example={"consumerGroup": "billing"},
)


class StreamListRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        base = "/api/v1/resources/streams"
        stream = f"{base}/{{stream}}"
        group = f"{stream}/consumers/{{group}}"
        return [
            Route("GET", base, Role.READ, self.streams, _LIST, scoped=True),
            Route("GET", f"{base}/stats", Role.READ, self.stats, _STATS, scoped=True),
            Route("GET", stream, Role.READ, self.show, _SHOW, scoped=True),
            Route("DELETE", stream, Role.ADMIN, self.delete, _DELETE, scoped=True),
            Route("GET", f"{stream}/consumers", Role.READ, self.consumers, _CONSUMERS, scoped=True),
            Route("DELETE", group, Role.ADMIN, self.forget, _FORGET, scoped=True),
            Route("POST", f"{group}/pause", Role.WRITE, self.pause, _PAUSE, scoped=True),
            Route("POST", f"{group}/resume", Role.WRITE, self.resume, _RESUME, scoped=True),
            Route("GET", f"{stream}/windows", Role.READ, self.windows, _WINDOWS, scoped=True),
            Route("GET", f"{stream}/explain", Role.READ, self.explain, _EXPLAIN, scoped=True),
            Route("GET", f"{stream}/dead", Role.READ, self.dead, _DEAD, scoped=True),
            Route("POST", f"{stream}/dead/retry", Role.WRITE, self.retry, _RETRY, scoped=True),
        ]

    async def _stream(self, request: Request) -> Stream:
        return await self._broker.scope.stream(request.caller, request.params[0])

    async def streams(self, request: Request) -> Response:
        limit, offset = page_of(Query(request.query), 100)
        namespaces = listed(request.caller.namespaces)
        rows = await self._broker.stream_overview.streams(namespaces, limit, offset)
        return Response(200, msgspec.json.encode(wire.StreamList([_row(row) for row in rows])))

    async def show(self, request: Request) -> Response:
        stream = await self._stream(request)
        rows = await self._broker.stream_overview.streams(None, 1, 0, stream.name)
        if not rows:
            raise NotFound(f"Stream {stream.name!r} not found")
        return Response(200, msgspec.json.encode(_row(rows[0])))

    async def stats(self, request: Request) -> Response:
        row = await self._broker.stream_overview.stats(listed(request.caller.namespaces))
        answer = wire.StreamStats(
            row["streams"],
            row["partitioned"],
            row["leases"],
            row["groups"],
            row["consumers"],
            row["done"],
            row["last_hour"],
            round(row["lease_s"], 3),
            row["dead"],
        )
        return Response(200, msgspec.json.encode(answer))

    async def delete(self, request: Request) -> Response:
        stream = await self._stream(request)
        if not await self._broker.streams.delete(stream.name):
            raise NotFound(f"Stream {stream.name!r} not found")
        await audit(self._broker, request, "stream.delete", stream.name)
        answer = wire.StreamDeleted(True, "Stream deleted successfully")
        return Response(200, msgspec.json.encode(answer))

    # ---- groups ----

    async def consumers(self, request: Request) -> Response:
        stream = await self._stream(request)
        limit, offset = page_of(Query(request.query), 100)
        rows = await self._broker.stream_overview.consumers(stream, limit, offset)
        answer = wire.StreamConsumers([_consumer(row) for row in rows])
        return Response(200, msgspec.json.encode(answer))

    async def forget(self, request: Request) -> Response:
        stream, group = await self._stream(request), request.params[1]
        existed = await self._broker.stream_overview.delete_group(stream, group)
        self._broker.work.forget_group(stream, group)
        await audit(self._broker, request, "stream.group.delete", f"{stream.name}/{group}")
        answer = wire.GroupDeleted(True, bool(existed))
        return Response(200, msgspec.json.encode(answer))

    async def pause(self, request: Request) -> Response:
        return await self._switch(request, paused=True)

    async def resume(self, request: Request) -> Response:
        return await self._switch(request, paused=False)

    async def _switch(self, request: Request, *, paused: bool) -> Response:
        stream, group = await self._stream(request), request.params[1]
        rows = await self._broker.stream_overview.pause_group(stream, group, paused)
        if not rows:
            raise NotFound("Consumer group not found")
        self._broker.work.look(stream.id)
        act = "stream.group.pause" if paused else "stream.group.resume"
        await audit(self._broker, request, act, f"{stream.name}/{group}")
        return Response(200, msgspec.json.encode(wire.Paused(True, paused)))

    # ---- windows ----

    async def windows(self, request: Request) -> Response:
        stream = await self._stream(request)
        query = Query(request.query)
        group, key, state = (query.text(name) or None for name in ("group", "key", "state"))
        if state is not None and state not in _STATES:
            raise BadRequest(f"state must be one of {', '.join(_STATES)}")
        if state is not None and group is None:
            raise BadRequest("state is that of a group: say which one")
        limit, offset = page_of(query, 100)
        overview = self._broker.stream_overview
        if group is None:
            rows = await overview.windows(stream, key, limit, offset)
            windows = [_window(stream, row) for row in rows]
        else:
            group_id = await self._broker.work.find_group(stream, group)
            rows = await overview.group_windows(group_id, key, state, limit, offset)
            windows = [_group_window(stream, row) for row in rows]
        return Response(200, msgspec.json.encode(wire.WindowList(windows)))

    async def explain(self, request: Request) -> Response:
        stream = await self._stream(request)
        query = Query(request.query)
        group, key = query.text("group"), query.text("key") or None
        group_id = await self._broker.work.find_group(stream, group) if group else None
        reasons = await self._broker.stream_overview.explain(stream, group_id, key)
        now = await self._broker.clock.now()
        end = next_end(stream, now)
        ready = None if end is None else iso(end + stream.definition.grace)
        answer = wire.Explanation(
            stream.name,
            iso(now),
            iso_or_none(stream.planned_until),
            None if end is None else iso(end),
            ready,
            _why(stream, ready),
            [_explained_key(reason) for reason in reasons],
        )
        return Response(200, msgspec.json.encode(answer))

    async def dead(self, request: Request) -> Response:
        stream = await self._stream(request)
        query = Query(request.query)
        limit, offset = page_of(query, 100)
        rows, total = await self._broker.stream_overview.dead(
            stream, query.text("group"), limit, offset
        )
        ids = {partition_id for row in rows for partition_id in row["partitions"]}
        partitions = await self._broker.catalog.partitions(ids)
        windows = [
            wire.DeadWindow(
                _window_id(stream, row),
                row["group_name"],
                row["key"],
                iso(row["starts_at"]),
                iso(row["ends_at"]),
                row["messages"],
                row["attempts"],
                row["error"],
                iso(row["failed_at"]),
                ranges_of(spans_of(row), partitions),
            )
            for row in rows
        ]
        return Response(200, msgspec.json.encode(wire.DeadWindows(windows, total)))

    async def retry(self, request: Request) -> Response:
        stream = await self._stream(request)
        sent = decode_body(_retry, request.body)
        check_name("consumer group", sent.consumerGroup)
        group_id = await self._broker.work.find_group(stream, sent.consumerGroup)
        window = _parse_window_id(stream, sent.windowId) if sent.windowId else (None,) * 4
        retried = await self._broker.work.retry_dead(stream, group_id, *window)
        if sent.windowId and not retried:
            raise NotFound("Dead window not found")
        target = f"{stream.name}/{sent.consumerGroup}"
        await audit(self._broker, request, "stream.dead.retry", target, retried=retried)
        return Response(200, msgspec.json.encode(wire.RetryAnswer(retried)))


def _window_id(stream: Stream, row: Record) -> str:
    return window_id(stream, row["key"], row["starts_at"], row["ends_at"], row["id"])


def _parse_window_id(stream: Stream, text: str) -> tuple[str, datetime, datetime, int | None]:
    """Return key, start, end and number that the id of a window is made of."""
    prefix = f"{stream.uuid}:"
    rest, number = text.removeprefix(prefix), ""
    is_counted = stream.definition.window_type == "count"
    if is_counted:
        rest, _, number = rest.rpartition(":")
    # Times hold colons themselves: they are as long as every ISO time with a Z.
    length = len(iso(stream.created_at))
    start, end = rest[-2 * length - 1 : -length - 1], rest[-length:]
    is_numbered = number.isdecimal() and len(number) < 19
    if not text.startswith(prefix) or len(rest) < 2 * length + 2 or is_counted != is_numbered:
        raise BadRequest(f"windowId is not that of a window of {stream.name}")
    key = rest[: -2 * length - 2]
    times = parse_time("windowId", start), parse_time("windowId", end)
    return key, *times, int(number) if is_counted else None


def _row(row: Record) -> wire.StreamRow:
    definition = _definition.decode(row["definition"])
    return wire.StreamRow(
        id=str(row["uuid"]),
        name=row["name"],
        namespace=row["namespace"],
        source_queues=row["sources"],
        **msgspec.structs.asdict(definition),
        created_at=iso(row["created_at"]),
        updated_at=iso(row["updated_at"]),
        planned_until=iso_or_none(row["planned_until"]),
        active_leases=row["leases"],
        consumer_groups=row["groups"],
    )


def _consumer(row: Record) -> wire.StreamConsumer:
    return wire.StreamConsumer(
        row["name"],
        iso_or_none(row["last_done_end"]),
        row["done"],
        iso_or_none(row["last_done_at"]),
        row["waiting"],
        row["leased"],
        row["retrying"],
        row["dead"],
        round(row["behind_s"], 3),
        row["paused"],
        iso(row["created_at"]),
    )


def _window(stream: Stream, row: Record) -> wire.WindowRow:
    return wire.WindowRow(
        _window_id(stream, row),
        row["key"],
        iso(row["starts_at"]),
        iso(row["ends_at"]),
        row["messages"],
        row["bytes"],
    )


def _group_window(stream: Stream, row: Record) -> wire.WindowRow:
    window = _window(stream, row)
    window.state, window.attempts = row["state"], row["attempts"] or 0
    window.consumer, window.error = row["consumer"], row["error"]
    window.lease_expires_at = iso_or_none(row["lease_until"])
    window.retry_at = iso_or_none(row["retry_at"])
    return window


def _explained_key(reason: Reason) -> wire.ExplainedKey:
    row, state = reason.row, reason.state
    if state == "open":
        begins, closes = iso(row["begins_at"]), row["closes_at"]
        end = iso(closes) if closes.year < 9000 else None
        return wire.ExplainedKey(reason.key, state, reason.why, start=begins, end=end)
    held = iso(row["available_at"]) if state in ("leased", "retrying") else None
    return wire.ExplainedKey(
        reason.key,
        state,
        reason.why,
        start=iso(row["starts_at"]),
        end=iso(row["ends_at"]),
        messages=row["messages"],
        attempts=row["attempts"],
        consumer=row["consumer"] if state == "leased" else None,
        lease_expires_at=held if state == "leased" else None,
        retry_at=held if state == "retrying" else None,
        error=row["error"],
    )


def _why(stream: Stream, ready: str | None) -> str:
    definition = stream.definition
    if stream.planned_until is None:
        return "nothing was written to the sources yet"
    if ready is not None:
        return f"the window that is open now is handed out at {ready}"
    if definition.window_type == "count":
        return f"a window is handed out when a key has {definition.window_size_count} messages"
    return f"a session ends when nothing has arrived for {definition.window_gap_ms} ms"
