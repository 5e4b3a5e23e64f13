"""The fluent queue: `queen.queue("orders").partition("customer-7").push({...})`.

Every setter returns a new builder, so one can be kept and used again: nothing that is done
with a copy changes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, overload
from urllib.parse import quote, urlencode

import msgspec

from queen.client import tracing
from queen.client.durations import Seconds
from queen.client.leases.grants import Popped, Reader
from queen.client.leases.pop_answers import FRAMES, read_grants
from queen.client.payloads import payload_decoder
from queen.client.pushing.batches import PushBatch
from queen.client.queues.consumer import Consumer, Handler
from queen.client.queues.consuming import Consuming
from queen.client.queues.dead_letters import DeadLetterQuery
from queen.client.queues.handler_rules import ErrorKinds
from queen.client.queues.messages import Pushed, Received, messages_of
from queen.client.queues.replay import Stored, read_stored
from queen.client.transport.http import Poll
from queen.client.transport.wire_format import camel
from queen.core.options import OptionState

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from queen.client.queen import Queen
    from queen.client.tasks.job import Job
    from queen.client.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self", bound="QueueBuilder")
Done = Callable[[list[Any]], Awaitable[None] | None]
Failed = Callable[[list[Any], Exception], Awaitable[None] | None]

H = TypeVar("H", bound=Handler)

DEFAULT_PARTITION = "Default"


class QueueBuilder(Consuming):
    """What to do with one queue, or with all queues of a namespace and task."""

    # What its messages are.
    _message_kind: ClassVar[type[Any]]

    def __init__(self, queen: Queen, name: str | None, owner: Any = None) -> None:
        self._queen = queen
        # Whom messages speak to: the client their consumer has in hand.
        self._owner = owner or queen
        self.name = name
        self._namespace: str | None = None
        self._task: str | None = None
        self._partition: str | None = None
        self._options: dict[str, Any] = {}
        self._group: str | None = None
        # None: as the group is.
        self._shared: bool | None = None
        # None: one at a time, and as many are taken ahead as that is quick.
        self._batch: int | None = None
        self._partitions = 1
        self._concurrency = 1
        self._limit: int | None = None
        self._idle_s: float | None = None
        self._each = False
        self._auto_ack = True
        self._wait_s = 30.0
        self._buffer: tuple[int, float] | None = None
        # How a push asks to be buffered by the server, in the words of the wire.
        self._qos0: dict[str, Any] | None = None
        self._on_success: Done | None = None
        self._on_error: Failed | None = None
        self._consumer_name: str | None = None

    # ---- what it is ----

    def namespace(self: Self, namespace: str) -> Self:
        """Set the namespace of a queue that is created, or of all queues that are read."""
        return self._with(namespace=namespace)

    def task(self, task: Any = None, **options: Any) -> Any:
        """Set the task of a queue that is created, or of all queues that are read; or, as a
        decorator, make a function a task of this queue (`queen.client.tasks`)."""
        if isinstance(task, str):
            return self._with(task=task)
        if task is None:
            return lambda function: self._add_task(function, **options)
        return self._add_task(task)

    def _add_task(self, function: Callable[..., Any], **options: Any) -> Any:
        raise NotImplementedError

    def partition(self: Self, partition: str) -> Self:
        """Push to, or read from, this partition. `Default` reads from any."""
        return self._with(partition=partition)

    def config(self: Self, options: dict[str, Any] | None = None, **more: Any) -> Self:
        """Set options of the queue, in the names of Python or of the wire."""
        given = {**(options or {}), **more}
        return self._with(
            options={**self._options, **{camel(name): value for name, value in given.items()}}
        )

    def _require_name(self) -> str:
        if self.name is None:
            raise ValueError('this needs the name of a queue: queen.queue("orders")')
        return self.name

    # ---- producing ----

    def buffer(
        self: Self, max_messages: int = 1000, max_ms: float = 100, *, on_server: bool = False
    ) -> Self:
        """Gather pushes and send them together; `push` then returns at once.

        With `on_server` they are sent one by one and gathered there: see `qos0`.

        Nothing is lost when sending fails: messages stay in the buffer and are sent again, unless
        they are refused for good; then the next push or flush raises the error and has them.
        `await queen.flush()` returns when all of them are stored.
        """
        if on_server:
            return self.qos0(max_ms, max_messages)
        return self._with(buffer=(max_messages, max_ms / 1000), qos0=None)

    def qos0(self: Self, max_ms: float | None = None, max_messages: int | None = None) -> Self:
        """Push at the cost of a write to a file: the server answers `buffered` at once and stores
        messages in batches, after `max_ms` or when `max_messages` wait (100 and 100, unless the
        server is set otherwise).

        They outlive the server's process. If its machine fails, the last tenth of a second may be
        lost.
        """
        asked = {"qos0": True, "bufferMs": max_ms, "bufferMax": max_messages}
        given = {name: value for name, value in asked.items() if value is not None}
        return self._with(qos0=given, buffer=None)

    # ---- consuming ----

    def group(self: Self, group: str) -> Self:
        """Read as a consumer of this group; each group gets every message."""
        return self._with(group=group)

    def named(self: Self, name: str) -> Self:
        """Be known by this name where leases are shown; without one it is made of the host, the
        process and the number of the client in it."""
        return self._with(consumer_name=name)

    def shared(self: Self, wanted: bool = True) -> Self:
        """Let the group be shared: order does not matter to it. Workers then hold messages of one
        partition at the same time, and one that is slow or fails holds up no other. With False it
        reads in order again; a group of which nobody says anything stays as it is."""
        return self._with(shared=wanted)

    def batch(self: Self, size: int) -> Self:
        """Take up to so many messages at once, and hand them over as a list, or with a size of 1
        as the message alone; without this they are handed over one at a time, in order. For a
        handler that is quick `consume` takes several such batches under one lease, and hands them
        over one after the other; with a size of 1 it never does."""
        return self._with(batch=size)

    def partitions(self: Self, count: int) -> Self:
        """Take them from up to so many partitions."""
        return self._with(partitions=count)

    def concurrency(self: Self, workers: int) -> Self:
        """Let so many workers consume side by side, each with a partition of its own; in a `shared`
        group each with messages of its own."""
        return self._with(concurrency=workers)

    def limit(self: Self, messages: int) -> Self:
        """Stop after so many messages, over all workers."""
        return self._with(limit=messages)

    def idle(self: Self, seconds: float) -> Self:
        """Stop when nothing came for so long."""
        return self._with(idle_s=seconds)

    def each(self: Self) -> Self:
        """Give the handler one message at a time, each with its own outcome."""
        return self._with(each=True)

    def auto_ack(self: Self, wanted: bool = True) -> Self:
        """For `consume`: ack when the handler returns, nack when it raises (the default).
        For `pop`: the server acks as it delivers, and what is lost on the way is lost."""
        return self._with(auto_ack=wanted)

    def wait(self: Self, seconds: float) -> Self:
        """How long a pop waits for messages; 0 asks once."""
        return self._with(wait_s=seconds)

    def on_success(self: Self, callback: Done) -> Self:
        """Call this with the messages whenever a handler has returned."""
        return self._with(on_success=callback)

    def on_error(self: Self, callback: Failed) -> Self:
        """Call this with the messages and the error whenever a handler has raised."""
        return self._with(on_error=callback)

    async def _pop(
        self,
        wait_s: float,
        batch: int,
        auto_ack: bool,
        poll: Poll | None = None,
        said: bytes = b"",
    ) -> Popped[Any]:
        """Ask for messages, and say with that what became of the last ones."""
        asked = {
            "batch": batch,
            "wait": "true" if wait_s > 0 else "false",
            "timeout": round(wait_s * 1000) if wait_s > 0 else None,
            "consumerGroup": self._group,
            "shared": None if self._shared is None else str(self._shared).lower(),
            "subscriptionMode": self._mode,
            "subscriptionFrom": self._from,
            "partitions": self._partitions if self._partitions > 1 else None,
            "autoAck": "true" if auto_ack else None,
            "consumer": self._consumer_name or self._queen.consumer_name,
        }
        if self.name is None:
            asked |= {"namespace": self._namespace or None, "task": self._task or None}
        answer = await self._queen.cluster.call(
            "POST" if said else "GET",
            _pop_path(self.name, self._partition, *asked.items()),
            said,
            key=self._key(),
            wait_s=max(wait_s, 0.0),
            poll=poll,
            accept=FRAMES if self._queen.consumes_frames else b"",
        )
        reader = Reader(self._owner, payload_decoder(self._into), answer.server)
        grants, lease_s = read_grants(answer, reader, self.name or "")
        return Popped(self._message_kind, grants, lease_s)

    def _may_say_with_pop(self, server: str) -> bool:
        """Whether the next pop goes to the server that granted a lease."""
        cluster = self._queen.cluster
        return self.name is not None and cluster.first_for(self._key()) in ("", server)

    def _key(self) -> str:
        return f"{self.name}:{self._partition or '*'}:{self._group or ''}"


# A consumer asks for the same again and again.
@lru_cache(maxsize=1000)
def _pop_path(queue: str | None, partition: str | None, *asked: tuple[str, Any]) -> str:
    """Return where a pop asks for what; None is not asked for."""
    query = urlencode([(name, value) for name, value in asked if value is not None])
    if queue is None:
        return f"/api/v1/pop?{query}"
    path = f"/api/v1/pop/queue/{quote(queue, safe='')}"
    if partition is None or partition == DEFAULT_PARTITION:
        return f"{path}?{query}"
    return f"{path}/partition/{quote(partition, safe='')}?{query}"


class Queue(QueueBuilder):
    """A queue, for programs on asyncio."""

    _message_kind = Received

    # ---- tasks ----

    if TYPE_CHECKING:

        @overload  # type: ignore[override]
        def task(self: Self, task: str) -> Self: ...

        @overload
        def task(self, task: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...

        @overload
        def task(self, task: Callable[P, R], /) -> Task[P, R]: ...

        @overload
        def task(
            self, *, name: str | None = None, **options: Any
        ) -> Callable[[Callable[P, Any]], Task[P, Any]]: ...

        def task(self, task: Any = None, **options: Any) -> Any:
            """Set the task of a queue, or make a function a task of it; a decorator."""

    def _add_task(
        self, function: Callable[..., Any], name: str | None = None, **options: Any
    ) -> Task[Any, Any]:
        from queen.client.tasks.task import Task, TaskOptions

        return self._queen.add_task(Task(self, function, name, TaskOptions(**options)))

    def job(self, job_id: str) -> Job[Any]:
        """A job of this queue by its id, to ask what became of it."""
        from queen.client.tasks.job import Job
        from queen.client.tasks.task import DEFAULT_GROUP

        group = self._group or DEFAULT_GROUP
        return Job(
            self._queen, self._require_name(), job_id, partition=self._partition, group=group
        )

    async def cron(self, name: str, cron: str, payload: Any = None, **options: Any) -> Any:
        """Push a payload again and again, under a name: `cron` is minute, hour, day, month and
        weekday, in the `zone` that is named (UTC without one).

        `catch_up` says what becomes of ticks that no server was there for: `none`, the `last`
        (the default), or `all`, but no more than `catch_up_limit`. What is stored under this name
        is replaced, unless `replace` is false.
        """
        return await self._queen.admin.define_schedule(
            name, self._require_name(), cron, payload, partition=self._partition, **options
        )

    # ---- the queue ----

    async def create(self) -> dict[str, Any]:
        """Create the queue, with the options that `config` names. A queue that exists gets them
        too; whatever is not named stays as it is, and `changed` in the answer lists the rest."""
        return await self._alter(create=True)

    async def alter(self) -> dict[str, Any]:
        """Change what `config`, `namespace` and `task` name of a queue that exists, and nothing
        else. An option of None goes back to its default; encryption is taken off by False, a label
        by an empty text."""
        return await self._alter(create=False)

    async def _alter(self, *, create: bool) -> dict[str, Any]:
        body = {
            "namespace": self._namespace,
            "task": self._task,
            "options": self._options,
            "create": create,
        }
        answer: dict[str, Any] = await self._queen.request("PATCH", self._options_path(), body)
        return answer

    async def options(self) -> list[OptionState]:
        """Return all options of the queue: value, default, whether set, meaning and limits."""
        answer = await self._queen.request("GET", self._options_path())
        return msgspec.convert(answer["options"], list[OptionState])

    def _options_path(self) -> str:
        return f"/api/v1/resources/queues/{quote(self._require_name(), safe='')}/options"

    async def delete(self) -> bool:
        """Delete the queue with everything in it; false when there was none."""
        path = f"/api/v1/resources/queues/{quote(self._require_name(), safe='')}"
        answer = await self._queen.request("DELETE", path)
        return bool(answer["existed"])

    async def push(self, items: Any, *, headers: Mapping[str, str] | None = None) -> list[Pushed]:
        """Push one payload, or a list of them; `Message` gives a payload an id or a time.
        A payload that is itself a list goes into a list: `push([[1, 2]])` is one message.
        All of them get the headers, except for those that a `Message` has itself.

        Returns when they are stored, or, with status `buffered`, when they are on the disk of a
        server whose database is away. Sent again after a failure they keep their ids, so each is
        stored once.
        """
        if not tracing.is_on():
            return await self._push(items, headers)
        with tracing.pushing(self._require_name(), headers) as traced:
            return await self._push(items, traced)

    async def _push(self, items: Any, headers: Mapping[str, str] | None) -> list[Pushed]:
        queue, partition = self._require_name(), self._partition or DEFAULT_PARTITION
        if self._buffer is not None:
            messages = messages_of(items, headers)
            return await self._queen.buffers.add(queue, partition, messages, *self._buffer)
        batch = PushBatch.of(queue, partition, items, headers)
        return await self._queen.pushes.push(batch, self._qos0)

    async def pop(
        self, *, wait_s: float | None = None, batch: int | None = None, auto_ack: bool = False
    ) -> list[Received]:
        """Lease the next messages; empty when there are none."""
        answer = await self._pop(
            self._wait_s if wait_s is None else wait_s, batch or self._batch or 1, auto_ack
        )
        if tracing.is_on() and answer.messages:
            tracing.receiving(answer.messages)
        return answer.messages

    def consume(
        self,
        handler: Handler | None = None,
        *,
        signals: bool = True,
        retry_on: ErrorKinds | None = None,
        give_up_on: ErrorKinds | None = None,
        handler_timeout: Seconds | None = None,
    ) -> Consumer[Received]:
        """Consume until told to stop.

        `await queue.consume(handler)` runs the handler, sync or async, on what comes;
        `async for message in queue.consume()` yields messages one at a time, and asking for
        the next one acks the last; a loop that is left early gives the message at hand back
        as failed, unless it was acked. SIGTERM and SIGINT stop both in good order.

        What a handler raises is a failure, and is retried. An error of `give_up_on` sets the
        message aside at once, unless `retry_on` names it, too. `handler_timeout` is how long a
        handler may run: see the setters of these names.
        """
        told = self._with_rules(retry_on, give_up_on, handler_timeout)
        return Consumer(told, handler, signals=signals)

    def consumer(self, handler: H) -> H:
        """Register a handler; `await queen.run()` runs all of them. A decorator."""
        self._queen.consumers.append(Consumer(self, handler, signals=False))
        return handler

    def dlq(self) -> DeadLetterQuery:
        """The dead letters of this queue and group."""
        return DeadLetterQuery(self._queen, self._require_name(), self._partition, self._group)

    def replay(
        self, *, since: datetime | None = None, until: datetime | None = None
    ) -> AsyncIterator[Stored]:
        """Read what is stored, in bulk and without a group: no cursor moves. Raises `NotFound` when
        it is deleted meanwhile: what came then is not all of it."""
        return read_stored(self._queen, self._require_name(), self._partition, since, until)
