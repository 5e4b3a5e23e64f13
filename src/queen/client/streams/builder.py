"""The fluent stream: what is cut into windows, how, and what is known about it.

    visits = queen.stream("visits", "shop").sources("clicks", "purchases").partitioned()
    await visits.session(gap=1800).grace_period(30).define()

Every setter returns a new builder, so one can be kept and used again. A setter writes what it
was told under the name that the server has for it; `define` sends what was set and leaves the
rest to the server.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from queen.client.camel_case import EitherSpelling
from queen.client.durations import Seconds, told_ms
from queen.client.streams.pipeline import PipelineVerbs
from queen.client.transport.wire_format import instant
from queen.errors import NotFound

if TYPE_CHECKING:
    from queen.client.queen import Queen

Self = TypeVar("Self", bound="StreamBuilder")
Json = dict[str, Any]

_RESOURCE = "/api/v1/resources/streams"


class StreamBuilder(PipelineVerbs, EitherSpelling):
    """What a stream is to be. Durations are seconds, or a `timedelta`."""

    def __init__(self, queen: Queen, name: str, namespace: str = "", owner: Any = None) -> None:
        self._queen = queen
        # The client its user has in hand.
        self._owner = owner or queen
        self.name = name
        self._definition: Json = {"name": name, "namespace": namespace}
        # Replaced as a whole: a session has no duration.
        self._window: Json = {}

    def _with(self: Self, **fields: Any) -> Self:
        changed = copy.copy(self)
        changed._definition = {**self._definition, **fields}
        return changed

    def _cut(self: Self, window_type: str, **fields: Any) -> Self:
        changed = copy.copy(self)
        changed._window = {"window_type": window_type, **fields}
        changed._windows = (*self._windows, changed._window)
        return changed

    def sources(self: Self, *queues: str | Iterable[str], pattern: str | None = None) -> Self:
        """Set the queues that are cut into windows: several names, or a list of them.

        A pipeline may have a `pattern` instead, such as `orders-*`: `*` stands for any characters,
        `?` for one. Queues that match it later are read from their beginning.
        """
        if pattern is not None:
            if queues:
                raise ValueError("sources: name queues, or give a pattern, not both")
            return self._with(source_queue_names=[])._with_side(pattern=pattern)
        names: list[str] = []
        for given in queues:
            names += [given] if isinstance(given, str) else given
        changed = self._with(source_queue_names=names)
        changed._side = {field: value for field, value in self._side.items() if field != "pattern"}
        return changed

    def partitioned(self: Self, wanted: bool = True) -> Self:
        """Cut each partition into windows of its own; partitions of several queues that have
        the same name are one."""
        return self._with(partitioned=wanted)

    def tumbling_time(self: Self, duration: Seconds) -> Self:
        """Windows of this length, one after the other."""
        return self._cut("tumbling", window_duration_ms=told_ms("tumbling_time", duration))

    def sliding_time(self: Self, size: Seconds, slide: Seconds) -> Self:
        """Windows of this size, a new one with every slide: a message is in several."""
        return self._cut(
            "sliding",
            window_duration_ms=told_ms("sliding_time, size", size),
            window_slide_ms=told_ms("sliding_time, slide", slide),
        )

    def session(self: Self, gap: Seconds) -> Self:
        """A window lasts until nothing came for so long."""
        return self._cut("session", window_gap_ms=told_ms("session", gap))

    def count(self: Self, size: int, slide: int | None = None) -> Self:
        """Windows of so many messages; with a slide, a new one after every so many."""
        return self._cut("count", window_size_count=size, window_slide_count=slide)

    def grace_period(self: Self, duration: Seconds) -> Self:
        """How long after its end a window still waits."""
        return self._with(window_grace_period_ms=told_ms("grace_period", duration, least_ms=0))

    def lease_timeout(self: Self, duration: Seconds) -> Self:
        """How long a consumer has a window before somebody else gets it."""
        return self._with(window_lease_timeout_ms=told_ms("lease_timeout", duration))

    def retry_limit(self: Self, retries: int) -> Self:
        """A window that failed so often again is a dead window."""
        return self._with(retry_limit=retries)

    def retry_delay(self: Self, duration: Seconds) -> Self:
        """How long a window that failed waits before it comes again."""
        return self._with(retry_delay_ms=told_ms("retry_delay", duration, least_ms=0))

    def max_in_flight(self: Self, windows: int) -> Self:
        """How many windows of one key a group may have at once; more than one gives up order."""
        return self._with(max_in_flight=windows)

    def emit_empty(self: Self, wanted: bool = True) -> Self:
        """Hand out windows without messages too."""
        return self._with(emit_empty=wanted)

    # ---- asking ----

    def _body(self, recut: bool) -> Json:
        body = {**self._definition, **self._window}
        return {**body, "recut": True} if recut else body

    def _path(self, *parts: str, **query: Any) -> str:
        path = "/".join((_RESOURCE, *(quote(part, safe="") for part in (self.name, *parts))))
        given = {name: value for name, value in query.items() if value is not None}
        return f"{path}?{urlencode(given)}" if given else path

    async def _rows(self, noun: str, /, **query: Any) -> list[Json]:
        answer = await self._queen.request("GET", self._path(noun, **query))
        rows: list[Json] = next(value for value in answer.values() if isinstance(value, list))
        return rows


class Stream(StreamBuilder):
    """A stream, for programs on asyncio."""

    async def define(self, *, recut: bool = False, replace: bool = False) -> Json:
        """Define the stream, or change it; source queues that do not exist are created.

        A change that would cut windows anew that somebody has had already raises `Conflict`,
        whose `details["differs"]` says what it is about, unless `recut` allows it. A stream
        that says what Spark computes is stored as a pipeline; there `replace` allows any change.
        """
        if self.is_pipeline:
            return await self._define_pipeline(recut or replace)
        answer: Json = await self._queen.post("/api/v1/stream/define", self._body(recut or replace))
        return answer

    async def delete(self) -> bool:
        """Delete the stream and what groups know of it, not its queues; false when there was
        none."""
        try:
            await self._queen.request("DELETE", self._path())
        except NotFound:
            return False
        return True

    async def show(self) -> Json:
        """Return its definition, and how far it is."""
        answer: Json = await self._queen.request("GET", self._path())
        return answer

    async def seek(self, group: str, to: datetime | str) -> None:
        """Move a group to a time, to the `beginning` or to `now`."""
        body = {"streamName": self.name, "consumerGroup": group, "timestamp": instant(to)}
        await self._queen.post("/api/v1/stream/seek", body)

    async def windows(
        self,
        group: str | None = None,
        *,
        key: str | None = None,
        state: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Json]:
        """Return its windows; with a group, what state they are in for it: `planned`, `waiting`,
        `ready`, `leased`, `retrying`, `done` or `dead`."""
        query = {"group": group, "key": key, "state": state, "limit": limit, "offset": offset}
        return await self._rows("windows", **query)

    async def explain(self, group: str | None = None, *, key: str | None = None) -> Json:
        """Return why a group gets no window now, and when it gets the next."""
        path = self._path("explain", group=group, key=key)
        answer: Json = await self._queen.request("GET", path)
        return answer

    async def consumers(self, *, limit: int = 100, offset: int = 0) -> list[Json]:
        """Return the groups that read it, and how far they are."""
        return await self._rows("consumers", limit=limit, offset=offset)

    async def delete_group(self, group: str) -> bool:
        """Forget how far a group is; false when there was none."""
        answer = await self._queen.request("DELETE", self._path("consumers", group))
        return bool(answer["existed"])

    async def pause(self, group: str) -> None:
        """Give a group no more windows until it is resumed."""
        await self._queen.post(self._path("consumers", group, "pause"), {})

    async def resume(self, group: str) -> None:
        """Let a paused group go on."""
        await self._queen.post(self._path("consumers", group, "resume"), {})

    async def dead(
        self, group: str | None = None, *, limit: int = 100, offset: int = 0
    ) -> list[Json]:
        """Return the windows that a group, or any, has given up on, and why."""
        return await self._rows("dead", group=group, limit=limit, offset=offset)

    async def retry_dead(self, group: str, window_id: str | None = None) -> int:
        """Hand out dead windows again, one or all of a group; return how many."""
        body: Json = {"consumerGroup": group}
        if window_id is not None:
            body["windowId"] = window_id
        answer = await self._queen.post(self._path("dead", "retry"), body)
        return int(answer["retried"])
