"""The fluent consumer of a stream: `queen.consumer("visits", "billing").process(handler)`.

Every setter returns a new builder; `stop` stops whatever was started from any of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

import msgspec

from queen.client.durations import Seconds, seconds_of
from queen.client.queues.consumer import Handler
from queen.client.queues.consuming import Consuming
from queen.client.queues.handler_rules import ErrorKinds
from queen.client.queues.running import Runner
from queen.client.streams.builder import Stream
from queen.client.streams.iteration import Windows
from queen.client.streams.messages import Leased
from queen.client.streams.processing import Processing
from queen.client.streams.taking import Taker
from queen.client.streams.window import LeasedWindow, Window
from queen.client.transport.errors_from_answer import decode_answer
from queen.client.transport.http import Poll
from queen.extras import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    from queen.client.queen import Queen
    from queen.spark.windows.leased_windows import FrameHandler, FrameWindow

Self = TypeVar("Self", bound="ConsumerBuilder[Any]")
W = TypeVar("W", bound=LeasedWindow)
H = TypeVar("H", bound=Handler)
Done = Callable[[Any], Awaitable[None] | None]
Failed = Callable[[Any, Exception], Awaitable[None] | None]


class _Polled(msgspec.Struct):
    window: Leased | None = None


_polled = msgspec.json.Decoder(_Polled)


class ConsumerBuilder(Consuming, Generic[W]):
    """How the windows of a stream are consumed."""

    # What its windows are.
    _kind: ClassVar[type[LeasedWindow]]

    def __init__(self, queen: Queen, stream: str, group: str, owner: Any = None) -> None:
        self._queen = queen
        # The client its user has in hand.
        self._owner = owner or queen
        self.stream = stream
        self.group = group
        self._name = queen.consumer_name
        self._concurrency = 1
        self._limit: int | None = None
        self._idle_s: float | None = None
        self._wait_s = 30.0
        self._auto_ack = True
        self._loads = True
        self._inline_bytes: int | None = None
        self._on_success: Done | None = None
        self._on_error: Failed | None = None
        # Shared by all builders that were made from one.
        self._started: weakref.WeakSet[Runner] = weakref.WeakSet()

    def concurrency(self: Self, windows: int) -> Self:
        """Work on so many windows at once."""
        return self._with(concurrency=windows)

    def limit(self: Self, windows: int) -> Self:
        """Stop after so many windows, over all workers."""
        return self._with(limit=windows)

    def idle(self: Self, duration: Seconds) -> Self:
        """Stop when no window came for so long."""
        return self._with(idle_s=seconds_of(duration))

    def wait(self: Self, duration: Seconds) -> Self:
        """How long one request waits for a window; 30 seconds unless told."""
        return self._with(wait_s=seconds_of(duration))

    def auto_ack(self: Self, wanted: bool = True) -> Self:
        """Ack when the handler returns, nack when it raises (the default)."""
        return self._with(auto_ack=wanted)

    def large(self: Self, wanted: bool = True) -> Self:
        """Hand out large windows without their messages; `window.stream()` yields them."""
        return self._with(loads=not wanted)

    def max_inline_bytes(self: Self, size: int) -> Self:
        """Above this a window is large: its messages are fetched apart from it."""
        return self._with(inline_bytes=size)

    def named(self: Self, name: str) -> Self:
        """Be known by this name where leases are shown; without one it is made of the host, the
        process and the number of the client in it."""
        return self._with(name=name)

    def on_success(self: Self, callback: Done) -> Self:
        """Call this with the window whenever a handler has returned."""
        return self._with(on_success=callback)

    def on_error(self: Self, callback: Failed) -> Self:
        """Call this with the window and the error whenever a handler has raised."""
        return self._with(on_error=callback)

    # ---- asking ----

    async def _poll(self, wait_s: float, poll: Poll | None = None) -> W | None:
        """Lease the next window, without the messages of a large one."""
        body = {
            "streamName": self.stream,
            "consumerGroup": self.group,
            "timeout": round(wait_s * 1000),
            "consumer": self._name,
            "subscriptionMode": self._mode,
            "subscriptionFrom": self._from,
            "maxInlineBytes": self._inline_bytes,
        }
        answer = await self._queen.cluster.call(
            "POST",
            "/api/v1/stream/poll",
            msgspec.json.encode({name: value for name, value in body.items() if value is not None}),
            key=f"{self.stream}:{self.group}",
            wait_s=wait_s,
            poll=poll,
        )
        leased = decode_answer(_polled, answer).window if answer.body else None
        if leased is None:
            return None
        kind = cast("type[W]", self._kind)
        window = kind(leased, self._queen, owner=self._owner, into=self._into)
        window._server = answer.server
        return window

    async def _poll_loaded(self, timeout: Seconds | None) -> W | None:
        wait_s = self._wait_s if timeout is None else seconds_of(timeout)
        window = await self._poll(wait_s)
        if window is not None and self._loads:
            await window._load()
        return window

    def _processing(self, handler: Handler, *, signals: bool) -> Processing[W]:
        """Return a run of a handler that `stop` knows of from now on."""
        run = Processing[W](self, handler, signals=signals)
        self._started.add(run)
        return run

    def _taker(self, *, signals: bool) -> Taker[W]:
        """Return what takes the windows of a loop; `stop` knows of it from now on."""
        taker = Taker[W](self, signals=signals)
        self._started.add(taker)
        return taker

    def _stop(self) -> None:
        for run in list(self._started):
            run.stop()


class StreamConsumer(ConsumerBuilder[Window]):
    """A consumer of a stream, for programs on asyncio."""

    _kind = Window

    def process(
        self,
        handler: Handler,
        *,
        signals: bool = True,
        retry_on: ErrorKinds | None = None,
        give_up_on: ErrorKinds | None = None,
        handler_timeout: Seconds | None = None,
    ) -> Processing[Window]:
        """Run a handler, sync or async, on every window: `await consumer.process(handler)`.

        A window is acked when the handler returns and given back as failed when it raises. Its
        lease is prolonged meanwhile; when it is lost all the same, an async handler is
        cancelled, and a sync one can see `window.is_lost`. SIGTERM and SIGINT stop it in good
        order.

        An error of `give_up_on` makes it a dead window at once, unless `retry_on` names it, too.
        `handler_timeout` is how long a handler may run: see the setters of these names.
        """
        told = self._with_rules(retry_on, give_up_on, handler_timeout)
        return told._processing(handler, signals=signals)

    def process_frames(
        self,
        handler: FrameHandler,
        spark: SparkSession,
        *,
        schema: str | DataType | None = None,
        headers: bool = False,
        signals: bool = True,
    ) -> Processing[FrameWindow]:
        """Run a handler on every window as a DataFrame: `handler(window, frame)`.

        Its columns are those of `format("queen")`; `schema` says what `data` is (`"user string,
        total double"`), and so does `into`; `headers` adds the column of that name.
        `window.write(frame, queue)` writes rows with the
        ack. The jobs of a handler are cancelled when its lease is lost; an async handler runs
        them with `await window.run(frame.count)`.
        """
        require("spark", "a window as a DataFrame")
        from queen.spark.windows.leased_windows import FrameWindow, frame_processing

        return frame_processing(
            self, FrameWindow, handler, spark, schema, signals=signals, headers=headers
        )

    def handler(self, handler: H) -> H:
        """Register a handler; `await queen.run()` runs all of them. A decorator."""
        self._queen.consumers.append(self._processing(handler, signals=False))
        return handler

    def __aiter__(self) -> Windows[Window]:
        """Yield windows one at a time; asking for the next acks the last. A loop that is left
        early gives the window at hand back as failed, unless it was acked."""
        return Windows(self._taker(signals=True))

    async def poll_window(self, timeout: Seconds | None = None) -> Window | None:
        """Lease the next window, None when there is none in time. Ack it yourself."""
        return await self._poll_loaded(timeout)

    async def seek(self, to: datetime | str) -> None:
        """Move the group to a time, to the `beginning` or to `now`."""
        await Stream(self._queen, self.stream).seek(self.group, to)

    def stop(self) -> None:
        """Finish the windows that are worked on and take no more."""
        self._stop()
