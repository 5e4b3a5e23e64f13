"""A push on its way into the log: seen by its sender, checked, split by time, stored."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from queen.core.columns.headers import headers_text
from queen.core.names import DEFAULT_PARTITION
from queen.core.schedule import BadTime, due_at
from queen.errors import EncryptionUnavailable, InvalidItem, ItemNotFound, NotFound
from queen.service.clock import Clock
from queen.service.home.home import Home
from queen.service.intake.frames import appends_of_frames
from queen.service.intake.items import Planned, plan, plan_plain, sift
from queen.service.log.append import Append, Request
from queen.service.outbox.scheduled import Outbox, Scheduled
from queen.service.scope import Scope, Viewer
from queen.service.spooling.entrance import Buffering
from queen.wire.requests import PlainPushItem, PushItem


class Later(NamedTuple):
    """A message that is due later, and its index in the request."""

    item_index: int
    message: Scheduled


class Pushed(NamedTuple):
    """What became of the items of a request."""

    planned: list[Planned]
    later: list[Later]
    refused: list[InvalidItem]

    @property
    def stored(self) -> list[Planned]:
        return [planned for planned in self.planned if planned.append.error is None]

    @property
    def is_buffered(self) -> bool:
        """Whether some of it waits in the spool."""
        return any(planned.append.is_buffered for planned in self.planned)

    @property
    def failed(self) -> list[Planned]:
        return [planned for planned in self.planned if planned.append.error is not None]


class BegunPush:
    """Items that are on their way into the log."""

    __slots__ = ("_appends", "_home", "planned", "then")

    def __init__(
        self,
        home: Home,
        planned: list[Planned],
        appends: list[Append],
        request: Request,
    ) -> None:
        self._home = home
        self._appends = appends
        self.planned = planned
        # Tells when the log has answered.
        self.then = request.then

    def is_done(self) -> bool:
        """Whether all of them are stored now; if not, `pushed` says what became of them."""
        return self._home.is_done(self._appends)

    async def pushed(self) -> Pushed:
        await self._home.finish(self._appends)
        return Pushed(self.planned, [], [])


class _ByTime(NamedTuple):
    """The items of a request by when they are due."""

    items: list[PushItem]
    indexes: list[int]
    later: list[Later]
    refused: list[InvalidItem]


class Intake:
    def __init__(self, scope: Scope, clock: Clock, home: Home, outbox: Outbox) -> None:
        self._scope = scope
        self._clock = clock
        self._home = home
        self._outbox = outbox

    async def push(
        self,
        viewer: Viewer,
        items: list[PushItem],
        indexes: Sequence[int],
        *,
        trusted: bool,
        buffering: Buffering | None = None,
    ) -> Pushed:
        """Take items, each for itself; returns after the commit, or when they are in the spool.
        Raises when none was taken for a reason that is not theirs. `trusted`: see `plan`."""
        planned, refused, timed = plan(items, indexes, trusted=trusted, subject=viewer.subject)
        if timed:
            return await self._push_timed(viewer, items, indexes, buffering)
        if viewer.namespaces is not None:
            planned, hidden = await self._leave_out_hidden(viewer, planned)
            refused += hidden
        await self._home.push([append for append, _, _ in planned], buffering)
        return Pushed(planned, [], refused)

    def begin(self, viewer: Viewer, items: list[PlainPushItem]) -> BegunPush | None:
        """Begin to take the items of a body that is `trusted`. None when something about them is
        unusual: then `push` says what becomes of them."""
        planned = self._plan_plain(viewer, items)
        if planned is None:
            return None
        appends = [append for append, _, _ in planned]
        request = self._home.submit(appends)
        if request is None:
            return None
        return BegunPush(self._home, planned, appends, request)

    def buffer(
        self, viewer: Viewer, items: list[PlainPushItem], buffering: Buffering
    ) -> list[Planned] | None:
        """Take such items into the spool, if that means to wait for nothing."""
        planned = self._plan_plain(viewer, items)
        if planned is None:
            return None
        is_done = self._home.buffer([append for append, _, _ in planned], buffering)
        return planned if is_done else None

    def _plan_plain(self, viewer: Viewer, items: list[PlainPushItem]) -> list[Planned] | None:
        planned = plan_plain(items, viewer.subject)
        if planned is not None and viewer.namespaces is not None:
            are_seen = all(self._scope.is_seen(viewer, append.queue) for append, _, _ in planned)
            return planned if are_seen else None
        return planned

    async def _push_timed(
        self,
        viewer: Viewer,
        items: list[PushItem],
        indexes: Sequence[int],
        buffering: Buffering | None,
    ) -> Pushed:
        """Push what is due now, and put the rest into the outbox."""
        items, indexes, later, refused = await self._split_by_time(viewer, items, indexes)
        planned, bad, _ = plan(items, indexes, trusted=False, subject=viewer.subject)
        planned, hidden = await self._leave_out_hidden(viewer, planned)
        # A failed push may be repeated without harm, what is scheduled not: it comes last.
        await self._home.push([append for append, _, _ in planned], buffering)
        await self._outbox.put([scheduled.message for scheduled in later])
        return Pushed(planned, later, refused + bad + hidden)

    async def push_frames(
        self,
        viewer: Viewer,
        body: bytes,
        max_bytes: int,
        buffering: Buffering | None = None,
        trace: Mapping[str, str] | None = None,
    ) -> list[Append]:
        """Take whole segments; those that were refused have their error."""
        appends = await self.appends_of_frames(viewer, body, max_bytes, trace)
        await self._home.push(appends, buffering)
        return appends

    async def appends_of_frames(
        self,
        viewer: Viewer,
        body: bytes,
        max_bytes: int,
        trace: Mapping[str, str] | None = None,
    ) -> list[Append]:
        """Return the frames of a request, checked; raises when one is wrong or not to be seen."""
        appends = appends_of_frames(body, max_bytes, viewer.subject, trace)
        for name in await self._scope.hidden_queues(viewer, {append.queue for append in appends}):
            raise NotFound(f"Queue {name!r} not found; nothing was stored")
        return appends

    async def plan_all(
        self, viewer: Viewer, items: list[PushItem]
    ) -> tuple[list[Planned], list[Later]]:
        """Return the appends, and what is due later; one bad item refuses all."""
        kept: list[PushItem] = items
        indexes: Sequence[int] = range(len(items))
        later: list[Later] = []
        refused: list[InvalidItem] = []
        if any(item.is_timed for item in items):
            kept, indexes, later, refused = await self._split_by_time(viewer, items, indexes)
        planned, bad, _ = plan(kept, indexes, trusted=False, subject=viewer.subject)
        planned, hidden = await self._leave_out_hidden(viewer, planned)
        refused += bad + hidden
        if refused:
            first = min(refused, key=lambda error: error.index)
            reason = f"{first.reason}; nothing of the transaction was done"
            raise type(first)(first.index, reason)
        for append, append_indexes, _ in planned:
            given = [items[index].transactionId for index in append_indexes]
            append.unnamed = frozenset(at for at, name in enumerate(given) if not name)
        return planned, later

    async def _split_by_time(
        self, viewer: Viewer, items: list[PushItem], indexes: Sequence[int]
    ) -> _ByTime:
        """Check items, and split those that are due later from those that are pushed now."""
        good, good_indexes, refused = sift(items, indexes)
        by_time = _ByTime([], [], [], refused)
        now = await self._clock.now()
        timed = {item.queue for item in good if item.is_timed}
        hidden = await self._scope.hidden_queues(viewer, timed)
        encrypted = await self._outbox.encrypted_queues(timed)
        for index, item in zip(good_indexes, good, strict=True):
            if item.queue in hidden:
                refused.append(ItemNotFound(index, f"Queue {item.queue!r} not found"))
                continue
            try:
                at = due_at(item.deliverAt, item.delay, item.delayMs, now)
                if at is None:
                    by_time.items.append(item)
                    by_time.indexes.append(index)
                    continue
                message = _schedule(item, at, viewer.subject)
                if item.queue in encrypted:
                    message = self._outbox.encrypt(message)
                by_time.later.append(Later(index, message))
            except (BadTime, EncryptionUnavailable) as reason:
                refused.append(InvalidItem(index, str(reason)))
        return by_time

    async def _leave_out_hidden(
        self, viewer: Viewer, planned: list[Planned]
    ) -> tuple[list[Planned], list[InvalidItem]]:
        """Return what goes to queues that the viewer may see, and the items that do not."""
        hidden = await self._scope.hidden_queues(viewer, {append.queue for append, _, _ in planned})
        refused: list[InvalidItem] = [
            ItemNotFound(index, f"Queue {append.queue!r} not found")
            for append, indexes, _ in planned
            if append.queue in hidden
            for index in indexes
        ]
        return [kept for kept in planned if kept.append.queue not in hidden], refused


def _schedule(item: PushItem, at: datetime, subject: str | None) -> Scheduled:
    return Scheduled(
        item.queue,
        item.partition or DEFAULT_PARTITION,
        item.transactionId or str(uuid.uuid4()),
        item.traceId,
        bytes(item.payload),
        at,
        subject,
        is_named=bool(item.transactionId),
        headers=(headers_text(item.headers) or "").encode() or None,
    )
