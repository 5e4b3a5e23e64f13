"""Pushes that share requests: many tasks push a message each, and few requests are sent.

What is pushed while a request to the same server is under way waits for its answer, and then goes
together. There is no timer: a lone push waits for nobody, and the more there is to push, the more
a request holds. See `docs/decisions/0028-pushes-share-requests.md`.

A shared request is tried once. Whatever is not stored by it goes on by itself, as if it had never
been with others: with its own deadline, its own retries and its own error. So nothing that is
wrong with one push is told to another.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from queen.client.pushing.batches import PushBatch
from queen.client.pushing.requests import PushRequest
from queen.client.queues.messages import Pushed
from queen.client.queues.partial_requests import is_partly_done, is_stored
from queen.client.transport.cluster import Cluster
from queen.client.transport.errors_from_answer import error_named
from queen.errors import QueenError, Unreachable

_PATH = "/api/v1/push"
# Requests on their way to one server: while one is stored, the next is written.
MOST_UNDER_WAY = 2
_MOST_MESSAGES = 2000
_MOST_BYTES = 1024 * 1024
# After this long nobody waits any more for a request to end.
_SLOW_S = 1.0


class _Refused(NamedTuple):
    """A push that is not stored, and which of its messages are."""

    stored: dict[int, Pushed]
    # When no server has answered: why.
    error: Unreachable | None


class _Push:
    """A batch that waits for a request, or for its answer."""

    __slots__ = ("batch", "outcome", "request")

    def __init__(self, batch: PushBatch, outcome: asyncio.Future[list[Pushed] | _Refused]) -> None:
        self.batch = batch
        self.outcome = outcome
        # The one it is in; None while it waits for one.
        self.request: _SharedRequest | None = None

    def answer(self, outcome: list[Pushed] | _Refused) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


Alone = Callable[[PushBatch, dict[int, Pushed], float], Awaitable[list[Pushed]]]


class SharedPushes:
    """Small pushes of a client. `alone` stores one that could not be stored with others."""

    def __init__(self, cluster: Cluster, alone: Alone) -> None:
        self._cluster = cluster
        self._alone = alone
        self._queues: dict[str, _ServerQueue] = {}

    async def push(self, batch: PushBatch) -> list[Pushed]:
        """Store a batch together with what others push meanwhile."""
        deadline = time.monotonic() + self._cluster.retry_s
        server = self._cluster.first_for(f"{batch.queue}:{batch.partition}")
        queue = self._queues.get(server)
        if queue is None:
            queue = self._queues[server] = _ServerQueue(self._cluster)
        push = _Push(batch, asyncio.get_running_loop().create_future())
        queue.add(push)
        try:
            outcome = await push.outcome
        except asyncio.CancelledError:
            queue.leave(push)
            raise
        if isinstance(outcome, _Refused):
            if outcome.error is not None and time.monotonic() >= deadline:
                # A server that hangs has had all the time there was.
                error = outcome.error
                raise error_named(error.code, error.message, dict(error.details)) from error
            return await self._alone(batch, outcome.stored, deadline)
        return outcome


class _ServerQueue:
    """Pushes that wait for a request to one server, and the requests that are under way."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: deque[_Push] = deque()
        self._under_way: set[_SharedRequest] = set()
        self._is_called = False
        self._is_watched = False

    def add(self, push: _Push) -> None:
        self._waiting.append(push)
        if len(self._under_way) < MOST_UNDER_WAY:
            self._call()
        else:
            self._watch()

    def leave(self, push: _Push) -> None:
        """Forget a push that nobody waits for any more. A request that has others in it goes on."""
        if push.request is not None:
            push.request.leave()
        else:
            self._waiting.remove(push)

    def _call(self) -> None:
        # One turn of the loop first: what is pushed in the same moment goes together.
        if not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._send)

    def _watch(self) -> None:
        """Look in a while whether what somebody waits for now is still under way."""
        if not self._is_watched:
            self._is_watched = True
            loop = asyncio.get_running_loop()
            loop.call_later(_SLOW_S, self._leave_behind, tuple(self._under_way))

    def _leave_behind(self, requests: tuple[_SharedRequest, ...]) -> None:
        self._is_watched = False
        self._under_way.difference_update(requests)
        if self._waiting:
            self._call()

    def _send(self) -> None:
        self._is_called = False
        while self._waiting and len(self._under_way) < MOST_UNDER_WAY:
            request = _SharedRequest(self._cluster, self._take(), self._end)
            self._under_way.add(request)
            request.start()
        if self._waiting:
            self._watch()

    def _take(self) -> list[_Push]:
        taken: list[_Push] = []
        count = size_bytes = 0
        while self._waiting:
            batch = self._waiting[0].batch
            count, size_bytes = count + len(batch), size_bytes + batch.size_bytes
            if taken and (count > _MOST_MESSAGES or size_bytes > _MOST_BYTES):
                break
            taken.append(self._waiting.popleft())
        return taken

    def _end(self, request: _SharedRequest) -> None:
        """A request has its answer."""
        self._under_way.discard(request)
        if self._waiting:
            self._call()


class _SharedRequest:
    """One request, and the pushes in it."""

    def __init__(
        self, cluster: Cluster, pushes: list[_Push], end: Callable[[_SharedRequest], None]
    ) -> None:
        self._cluster = cluster
        self._pushes = pushes
        self._left = len(pushes)
        self._end = end
        self._task: asyncio.Task[None] | None = None
        for push in pushes:
            push.request = self

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def leave(self) -> None:
        """One of its pushes was cancelled; with the last one the request is."""
        self._left -= 1
        if self._left == 0 and self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            await self._send()
        except (ValueError, TypeError):
            # Something that cannot even be written: whose it is finds out alone.
            self._answer_refused(None)
        except BaseException:
            # Nobody shall wait for ever.
            self._answer_refused(None)
            raise
        finally:
            self._end(self)

    async def _send(self) -> None:
        # Some may have been cancelled since they were taken.
        self._pushes = [push for push in self._pushes if not push.outcome.done()]
        if not self._pushes:
            return
        batches = [push.batch for push in self._pushes]
        request = PushRequest(batches)
        first = batches[0]
        try:
            answer = await self._cluster.call(
                "POST", _PATH, request, key=f"{first.queue}:{first.partition}", retry_s=0.0
            )
            pushed = request.results(answer)
        except QueenError as error:
            request.explain(error)
            self._answer_refused(error)
            return
        if len(pushed) != sum(map(len, batches)):
            # Somebody's own JSON is not one value: whose it is finds out alone.
            self._answer_refused(None)
            return
        if len(pushed) == len(self._pushes):
            for push, result in zip(self._pushes, pushed, strict=True):
                push.answer([result])
            return
        start = 0
        for push in self._pushes:
            push.answer(pushed[start : start + len(push.batch)])
            start += len(push.batch)

    def _answer_refused(self, error: QueenError | None) -> None:
        """Let each push that is not stored go on by itself."""
        told = error.details["results"] if error is not None and is_partly_done(error) else ()
        pushed = {
            result["index"]: msgspec.convert(result, Pushed, strict=False)
            for result in filter(is_stored, told)
        }
        start = 0
        for push in self._pushes:
            places = range(start, start + len(push.batch))
            stored = {place - start: pushed[place] for place in places if place in pushed}
            is_stored_whole = len(stored) == len(push.batch)
            refused = _Refused(stored, error if isinstance(error, Unreachable) else None)
            push.answer(list(stored.values()) if is_stored_whole else refused)
            start = places.stop
