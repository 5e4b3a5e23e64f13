"""Streams for programs without asyncio: the same code, waited for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from queen.client.durations import Seconds
from queen.client.queues.consumer import Handler
from queen.client.queues.handler_rules import ErrorKinds
from queen.client.queues.messages import Pushed
from queen.client.streams.builder import Json, Stream, StreamBuilder
from queen.client.streams.consumer import ConsumerBuilder
from queen.client.streams.iteration import Windows
from queen.client.streams.messages import WindowMessage
from queen.client.streams.processing import Processing
from queen.client.streams.window import LeasedWindow
from queen.client.sync import SyncLoop, iterate
from queen.extras import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    from queen.client.sync import SyncQueen
    from queen.spark.windows.leased_windows import FrameHandler, SyncFrameWindow


class SyncWindow(LeasedWindow):
    """A window, leased to this consumer for a while; its fields are those of `Window`."""

    _owner: SyncQueen

    def ack(self, success: bool = True, error: str | BaseException | None = None) -> list[Pushed]:
        """Say that it is done, and store what `push` collected; or that it failed, and is to be
        tried again. Raises `LeaseLost` when it is no longer ours to say."""
        return self._owner.wait_for(self._ack(success, error))

    def nack(self, error: str | BaseException | None = None) -> None:
        """Give it back as failed: it is retried, and in the end a dead window."""
        self._owner.wait_for(self._ack(False, error))

    def give_back(self) -> None:
        """Give it back without fault: it comes again at once and nothing is counted."""
        self._owner.wait_for(self._give_back())

    def renew(self, ms: int | None = None) -> datetime:
        """Prolong the lease by so many milliseconds from now; return until when it lasts."""
        return self._owner.wait_for(self._renew(ms))

    @contextlib.contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Prolong the lease at half its time: `with window.kept_alive(): ...`. A consumer does
        so by itself; this is for windows of `poll_window`."""
        renewal = contextlib.AsyncExitStack()
        self._owner.wait_for(renewal.enter_async_context(self._keep_alive()))
        try:
            yield
        finally:
            self._owner.wait_for(renewal.aclose())

    def load(self) -> SyncWindow:
        """Fetch the messages of a large window; does nothing when they are here."""
        return self._owner.wait_for(self._load())

    def stream(self) -> Iterator[WindowMessage]:
        """Yield the messages one by one, a large window's without having all at once."""
        return iterate(self._owner, self._read())


class SyncStream(StreamBuilder):
    """A stream, for programs without asyncio."""

    _owner: SyncQueen

    def _asynchronous(self) -> Stream:
        """The same stream for the asyncio client."""
        stream = Stream(self._queen, self.name)
        stream.__dict__.update(self.__dict__)
        return stream

    def define(self, *, recut: bool = False, replace: bool = False) -> Json:
        """Define the stream, or change it; source queues that do not exist are created."""
        return self._owner.wait_for(self._asynchronous().define(recut=recut, replace=replace))

    def delete(self) -> bool:
        """Delete the stream and what groups know of it, not its queues."""
        return self._owner.wait_for(self._asynchronous().delete())

    def show(self) -> Json:
        """Return its definition, and how far it is."""
        return self._owner.wait_for(self._asynchronous().show())

    def seek(self, group: str, to: datetime | str) -> None:
        """Move a group to a time, to the `beginning` or to `now`."""
        self._owner.wait_for(self._asynchronous().seek(group, to))

    def windows(self, group: str | None = None, **query: Any) -> list[Json]:
        """Return its windows; with a group, what state they are in for it."""
        return self._owner.wait_for(self._asynchronous().windows(group, **query))

    def explain(self, group: str | None = None, *, key: str | None = None) -> Json:
        """Return why a group gets no window now, and when it gets the next."""
        return self._owner.wait_for(self._asynchronous().explain(group, key=key))

    def consumers(self, *, limit: int = 100, offset: int = 0) -> list[Json]:
        """Return the groups that read it, and how far they are."""
        return self._owner.wait_for(self._asynchronous().consumers(limit=limit, offset=offset))

    def delete_group(self, group: str) -> bool:
        """Forget how far a group is; false when there was none."""
        return self._owner.wait_for(self._asynchronous().delete_group(group))

    def pause(self, group: str) -> None:
        """Give a group no more windows until it is resumed."""
        self._owner.wait_for(self._asynchronous().pause(group))

    def resume(self, group: str) -> None:
        """Let a paused group go on."""
        self._owner.wait_for(self._asynchronous().resume(group))

    def dead(self, group: str | None = None, *, limit: int = 100, offset: int = 0) -> list[Json]:
        """Return the windows that a group, or any, has given up on, and why."""
        return self._owner.wait_for(self._asynchronous().dead(group, limit=limit, offset=offset))

    def retry_dead(self, group: str, window_id: str | None = None) -> int:
        """Hand out dead windows again, one or all of a group; return how many."""
        return self._owner.wait_for(self._asynchronous().retry_dead(group, window_id))


class SyncStreamConsumer(ConsumerBuilder[SyncWindow]):
    """A consumer of a stream, for programs without asyncio. Handlers run in threads."""

    _kind = SyncWindow
    _owner: SyncQueen

    def process(
        self,
        handler: Handler,
        *,
        retry_on: ErrorKinds | None = None,
        give_up_on: ErrorKinds | None = None,
        handler_timeout: Seconds | None = None,
    ) -> Processing[SyncWindow]:
        """Run a handler on every window, until told to stop; returns what was done.

        An error of `give_up_on` makes it a dead window at once, unless `retry_on` names it, too.
        After `handler_timeout` the window has failed; the thread that is at work on it goes on, and
        its worker takes nothing new until it ends.
        """
        told = self._with_rules(retry_on, give_up_on, handler_timeout)
        run = told._processing(handler, signals=False)
        with self._owner.stop_on_signals(run):
            return self._owner.wait_for(run.run())

    def process_frames(
        self,
        handler: FrameHandler,
        spark: SparkSession,
        *,
        schema: str | DataType | None = None,
        headers: bool = False,
    ) -> Processing[SyncFrameWindow]:
        """Run a handler on every window as a DataFrame: `handler(window, frame)`.

        Its columns are those of `format("queen")`; `schema` says what `data` is (`"user string,
        total double"`), and so does `into`; `headers` adds the column of that name.
        `window.write(frame, queue)` writes rows with the
        ack. The jobs of a handler are cancelled when its lease is lost.
        """
        require("spark", "a window as a DataFrame")
        from queen.spark.windows.leased_windows import SyncFrameWindow, frame_processing

        run = frame_processing(
            self, SyncFrameWindow, handler, spark, schema, signals=False, headers=headers
        )
        with self._owner.stop_on_signals(run):
            self._owner.wait_for(run.run())
        return run

    def __iter__(self) -> SyncLoop[SyncWindow]:
        """Yield windows one at a time; asking for the next acks the last."""
        taker = self._taker(signals=False)
        return SyncLoop(self._owner, taker, lambda: Windows(taker))

    def poll_window(self, timeout: Seconds | None = None) -> SyncWindow | None:
        """Lease the next window, None when there is none in time. Ack it yourself."""
        return self._owner.wait_for(self._poll_loaded(timeout))

    def seek(self, to: datetime | str) -> None:
        """Move the group to a time, to the `beginning` or to `now`."""
        self._owner.wait_for(Stream(self._queen, self.stream).seek(self.group, to))

    def stop(self) -> None:
        """Finish the windows that are worked on and take no more."""
        self._owner.call_soon(self._stop)
