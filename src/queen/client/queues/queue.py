"""The fluent queue: `queen.queue("orders").partition("customer-7").push({...})`.

Every setter returns a new builder, so one can be kept and used again: nothing that is done
with a copy changes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from queen.client.queues.consumer import Consumer, Handler
from queen.client.queues.consuming import Consuming
from queen.client.queues.dead_letters import DeadLetterQuery
from queen.client.queues.messages import Popped, Pushed, Received, messages_of
from queen.client.queues.replay import Stored, read_stored
from queen.client.transport.errors_from_answer import decode_answer
from queen.client.transport.http import Answer, Poll
from queen.client.transport.wire_format import camel

if TYPE_CHECKING:
    from queen.client.queen import Queen

Self = TypeVar("Self", bound="QueueBuilder")
Done = Callable[[list[Any]], Awaitable[None] | None]
Failed = Callable[[list[Any], Exception], Awaitable[None] | None]

H = TypeVar("H", bound=Handler)

DEFAULT_PARTITION = "Default"


class QueueBuilder(Consuming):
    """What to do with one queue, or with all queues of a namespace and task."""

    # What its messages are decoded to.
    _pop_decoder: ClassVar[msgspec.json.Decoder[Popped[Any]]]

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
        self._batch = 1
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

    # ---- what it is ----

    def namespace(self: Self, namespace: str) -> Self:
        """Set the namespace of a queue that is created, or of all queues that are read."""
        return self._with(namespace=namespace)

    def task(self: Self, task: str) -> Self:
        """Set the task of a queue that is created, or of all queues that are read."""
        return self._with(task=task)

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

    def batch(self: Self, size: int) -> Self:
        """Take up to so many messages at once."""
        return self._with(batch=size)

    def partitions(self: Self, count: int) -> Self:
        """Take them from up to so many partitions."""
        return self._with(partitions=count)

    def concurrency(self: Self, workers: int) -> Self:
        """Let so many workers consume side by side, each with a partition of its own."""
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
        self, wait_s: float, batch: int, auto_ack: bool, poll: Poll | None = None
    ) -> Popped[Any]:
        query: dict[str, Any] = {"batch": batch, "wait": "true" if wait_s > 0 else "false"}
        if wait_s > 0:
            query["timeout"] = round(wait_s * 1000)
        optional = {
            "consumerGroup": self._group,
            "subscriptionMode": self._mode,
            "subscriptionFrom": self._from,
            "partitions": self._partitions if self._partitions > 1 else None,
            "autoAck": "true" if auto_ack else None,
        }
        path = self._pop_path(query)
        query.update((name, value) for name, value in optional.items() if value is not None)
        answer = await self._queen.cluster.call(
            "GET",
            f"{path}?{urlencode(query)}",
            key=self._key(),
            wait_s=max(wait_s, 0.0),
            poll=poll,
        )
        return self._decode_pop(answer)

    def _pop_path(self, query: dict[str, Any]) -> str:
        if self.name is None:
            labels = {"namespace": self._namespace, "task": self._task}
            query.update((name, value) for name, value in labels.items() if value)
            return "/api/v1/pop"
        path = f"/api/v1/pop/queue/{quote(self.name, safe='')}"
        if self._partition is None or self._partition == DEFAULT_PARTITION:
            return path
        return f"{path}/partition/{quote(self._partition, safe='')}"

    def _key(self) -> str:
        return f"{self.name}:{self._partition or '*'}:{self._group or ''}"

    def _decode_pop(self, answer: Answer) -> Popped[Any]:
        if not answer.body:
            return Popped()
        popped = decode_answer(self._pop_decoder, answer)
        epochs = {claim.partition_id: claim.epoch for claim in popped.claims}
        for message in popped.messages:
            message.epoch = epochs.get(message.partition_id, 0)
            message._queen = self._owner
            message._into = self._into
            message._server = answer.server
            message.queue = message.queue or self.name or ""
        return popped


class Queue(QueueBuilder):
    """A queue, for programs on asyncio."""

    _pop_decoder = msgspec.json.Decoder(Popped[Received])

    async def create(self) -> dict[str, Any]:
        """Create the queue, or overwrite its options; those not given have their default."""
        body = {
            "queue": self._require_name(),
            "namespace": self._namespace,
            "task": self._task,
            "options": self._options,
        }
        created: dict[str, Any] = await self._queen.post("/api/v1/configure", body)
        return created

    async def delete(self) -> bool:
        """Delete the queue with everything in it; false when there was none."""
        path = f"/api/v1/resources/queues/{quote(self._require_name(), safe='')}"
        answer = await self._queen.request("DELETE", path)
        return bool(answer["existed"])

    async def push(self, items: Any) -> list[Pushed]:
        """Push one payload, or a list of them; `Message` gives a payload an id or a time.
        A payload that is itself a list goes into a list: `push([[1, 2]])` is one message.

        Returns when they are stored, or, with status `buffered`, when they are on the disk of a
        server whose database is away. Sent again after a failure they keep their ids, so each is
        stored once.
        """
        messages = messages_of(items)
        queue, partition = self._require_name(), self._partition or DEFAULT_PARTITION
        if self._buffer is not None:
            return await self._queen.buffers.add(queue, partition, messages, *self._buffer)
        return await self._queen.push(queue, partition, messages, self._qos0)

    async def pop(
        self, *, wait_s: float | None = None, batch: int | None = None, auto_ack: bool = False
    ) -> list[Received]:
        """Lease the next messages; empty when there are none."""
        answer = await self._pop(
            self._wait_s if wait_s is None else wait_s, batch or self._batch, auto_ack
        )
        return answer.messages

    def consume(
        self, handler: Handler | None = None, *, signals: bool = True
    ) -> Consumer[Received]:
        """Consume until told to stop.

        `await queue.consume(handler)` runs the handler, sync or async, on what comes;
        `async for message in queue.consume()` yields messages one at a time, and asking for
        the next one acks the last; a loop that is left early gives the message at hand back
        as failed, unless it was acked. SIGTERM and SIGINT stop both in good order.
        """
        return Consumer(self, handler, signals=signals)

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
