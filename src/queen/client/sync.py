"""The same client for programs without asyncio.

A thread runs an event loop with the asyncio client in it; every call here hands its work over
and waits. So there is one client, and this only waits for it. Handlers run in threads.

A client that was not closed is closed when the program ends: a loop that is open gives back what it
has, and what is buffered is sent, if that is a matter of moments.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import signal
import threading
import weakref
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from queen.client.durations import Seconds
from queen.client.queen import Queen
from queen.client.queues.consumer import Consumer, Handler
from queen.client.queues.dead_letters import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterQuery,
)
from queen.client.queues.handler_rules import ErrorKinds
from queen.client.queues.messages import Delivered, Pushed
from queen.client.queues.queue import Queue, QueueBuilder
from queen.client.queues.replay import Stored, read_stored
from queen.client.queues.running import Runner
from queen.client.queues.transaction import Transaction
from queen.core.options import OptionState

if TYPE_CHECKING:
    from queen.client.spooling.refused import RefusedMessage
    from queen.client.spooling.spool import ClientSpool, SpoolState
    from queen.client.streams.sync import SyncStream, SyncStreamConsumer
    from queen.client.tasks.sync import SyncJob, SyncTask

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self", bound="SyncQueue")

_log = logging.getLogger("queen.client")

_END = object()
# How long a program that ends waits for what its clients still have to say.
_AT_EXIT_S = 2.0


class SyncReceived(Delivered, eq=False, gc=False):
    """A message that was leased to this consumer."""

    @property
    def _client(self) -> SyncQueen:
        queen: SyncQueen = self._grant.reader.owner
        return queen

    def ack(self) -> None:
        """Say that it is done. Raises `LeaseLost` when it is no longer ours to say."""
        self._client.ack(self)

    def nack(
        self, error: str | BaseException | None = None, *, delay: Seconds | None = None
    ) -> None:
        """Give it back as failed: it is retried, after a delay of its own or that of the queue,
        and in the end a dead letter."""
        self._client.nack(self, error, delay=delay)

    def give_back(self, *, delay: Seconds | None = None) -> None:
        """Give it back without fault: it comes again at once, or after a delay, and nothing is
        counted."""
        self._client.ack(self, "retry", delay=delay)

    def dead_letter(self, error: str | BaseException | None = None) -> None:
        """Set it aside now."""
        self._client.ack(self, "dlq", error=error)

    def renew(self, seconds: int | None = None) -> datetime:
        """Prolong the lease; return until when it now lasts."""
        return self._client.renew(self, seconds)

    def trace(self, data: Any, *, names: str | Iterable[str] = (), event: str = "info") -> None:
        """Record what happened to it, under names that lead through several queues."""
        self._client.trace(self, data, names=names, event=event)


class SyncQueen:
    """A client for programs without asyncio; it may be used from several threads.

    It takes what `Queen` takes. A queue is consumed with `queue.consume(handler)`, which
    returns when it was stopped, or with `for message in queue`.
    """

    def __init__(self, url: str | Sequence[str] | None = None, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        # Loops over messages or windows that were not left yet.
        self._loops: weakref.WeakSet[SyncLoop[Any]] = weakref.WeakSet()
        self._readers: weakref.WeakSet[AsyncGenerator[Any, None]] = weakref.WeakSet()
        try:
            self.asynchronous: Queen = self.wait_for(_create_client(url, settings))
        except BaseException:
            self._end()
            raise
        self.admin = SyncAdmin(self)
        inner = self.asynchronous.spool
        # What no server could take; None without the option.
        self.spool = None if inner is None else SyncSpool(self, inner)
        _open.add(self)

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something of the asyncio client and return its result."""
        if self.is_own_thread() or not self._thread.is_alive():
            work.close()
            raise RuntimeError(
                "an async handler of a SyncQueen cannot call it: make the handler a plain function"
                if self._thread.is_alive()
                else "the client is closed"
            )
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:
            # Ctrl-C: nobody waits for the answer any more.
            running.cancel()
            raise

    def is_own_thread(self) -> bool:
        """Whether this is the thread that nobody may wait in: the one that does the work."""
        return threading.current_thread() is self._thread

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call something of the asyncio client in its own thread, and do not wait for it."""
        self._loop.call_soon_threadsafe(function)

    def __enter__(self) -> SyncQueen:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back what open loops have, send what is buffered, then hang up. What still waits
        in the spool stays there."""
        if self.is_closed:
            return
        try:
            for open_loop in list(self._loops):
                open_loop.close()
            self.wait_for(self._leave())
        finally:
            self._end()

    @property
    def is_closed(self) -> bool:
        """Whether it can no longer be used; that of a parent cannot be used after a fork."""
        return self._loop.is_closed() or not self._thread.is_alive()

    def _end_with_program(self) -> None:
        """Close it as far as a moment allows; nobody is left who could be told of errors."""
        if self.is_closed:
            return
        leaving = asyncio.run_coroutine_threadsafe(self._leave(), self._loop)
        with contextlib.suppress(Exception):
            leaving.result(_AT_EXIT_S)
        if len(self.asynchronous.buffers):
            _log.warning("%d buffered messages were not sent", len(self.asynchronous.buffers))
        self._end()

    async def _leave(self) -> None:
        for open_loop in list(self._loops):
            await open_loop.leave()
        for reader in list(self._readers):
            await reader.aclose()
        await self.asynchronous.close()

    def _end(self) -> None:
        _open.discard(self)
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def queue(self, name: str | None = None) -> SyncQueue:
        """A queue; without a name, all queues of a namespace and task."""
        return SyncQueue(self.asynchronous, name, self)

    def stream(self, name: str, namespace: str = "") -> SyncStream:
        """A stream: windows over queues, to define and to look at."""
        from queen.client.streams.sync import SyncStream

        return SyncStream(self.asynchronous, name, namespace, self)

    def consumer(self, stream: str, group: str) -> SyncStreamConsumer:
        """A consumer of the windows of a stream; each group gets every window."""
        from queen.client.streams.sync import SyncStreamConsumer

        return SyncStreamConsumer(self.asynchronous, stream, group, self)

    def transaction(self) -> SyncTransaction:
        """Acks and pushes that happen together: `with queen.transaction() as transaction`."""
        return SyncTransaction(self)

    def flush(self) -> None:
        """Return when everything that was buffered is stored, and all that waits in the spool."""
        self.wait_for(self.asynchronous.flush())

    def ack(
        self,
        messages: Delivered | Sequence[Delivered],
        status: str = "completed",
        *,
        error: str | BaseException | None = None,
        delay: Seconds | None = None,
    ) -> None:
        """Say what became of messages; raises `LeaseLost` when some were no longer ours."""
        self.wait_for(self.asynchronous.ack(messages, status, error=error, delay=delay))

    def nack(
        self,
        messages: Delivered | Sequence[Delivered],
        error: str | BaseException | None = None,
        *,
        delay: Seconds | None = None,
    ) -> None:
        """Give messages back as failed; `delay` is how long they wait, instead of what the queue
        says."""
        self.wait_for(self.asynchronous.nack(messages, error, delay=delay))

    def renew(self, lease: Delivered | str, seconds: int | None = None) -> datetime:
        """Prolong a lease; raises `LeaseLost` when it is over."""
        return self.wait_for(self.asynchronous.renew(lease, seconds))

    def trace(
        self,
        message: Delivered,
        data: Any,
        *,
        names: str | Iterable[str] = (),
        event: str = "info",
    ) -> None:
        """Record what happened to a message."""
        self.wait_for(self.asynchronous.trace(message, data, names=names, event=event))

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send any request; return its answer decoded, None when it is empty."""
        return self.wait_for(self.asynchronous.request(method, path, body))

    @contextlib.contextmanager
    def stop_on_signals(self, consumer: Runner) -> Iterator[None]:
        """Let SIGTERM and SIGINT stop a consumer while the main thread waits for it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(*_: object) -> None:
            self.call_soon(consumer.stop)

        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            for number in numbers:
                signal.signal(number, before[number])


# What a program has not closed.
_open: weakref.WeakSet[SyncQueen] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for queen in list(_open):
        queen._end_with_program()


async def _cancel_all() -> None:
    """End what still runs, so that nothing complains when its loop is closed."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_AT_EXIT_S)


async def _create_client(url: str | Sequence[str] | None, settings: dict[str, Any]) -> Queen:
    return Queen(url, **settings)


class SyncQueue(QueueBuilder):
    """A queue, for programs without asyncio."""

    _message_kind = SyncReceived
    _owner: SyncQueen

    def _asynchronous(self) -> Queue:
        """The same queue for the asyncio client."""
        queue = Queue(self._queen, self.name)
        queue.__dict__.update(self.__dict__)
        return queue

    if TYPE_CHECKING:

        @overload  # type: ignore[override]
        def task(self: Self, task: str) -> Self: ...

        @overload
        def task(self, task: Callable[P, Coroutine[Any, Any, R]], /) -> SyncTask[P, R]: ...

        @overload
        def task(self, task: Callable[P, R], /) -> SyncTask[P, R]: ...

        @overload
        def task(
            self, *, name: str | None = None, **options: Any
        ) -> Callable[[Callable[P, Any]], SyncTask[P, Any]]: ...

        def task(self, task: Any = None, **options: Any) -> Any:
            """Set the task of a queue, or make a function a task of it; a decorator."""

    def _add_task(
        self, function: Callable[..., Any], name: str | None = None, **options: Any
    ) -> SyncTask[Any, Any]:
        from queen.client.tasks.sync import SyncTask
        from queen.client.tasks.task import TaskOptions

        return self._queen.add_task(SyncTask(self, function, name, TaskOptions(**options)))

    def job(self, job_id: str) -> SyncJob[Any]:
        """A job of this queue by its id, to ask what became of it."""
        from queen.client.tasks.sync import SyncJob

        return SyncJob(self._owner, self._asynchronous().job(job_id))

    def cron(self, name: str, cron: str, payload: Any = None, **options: Any) -> Any:
        """Push a payload again and again, by the calendar of a zone."""
        return self._owner.wait_for(self._asynchronous().cron(name, cron, payload, **options))

    def create(self) -> dict[str, Any]:
        """Create the queue, with the options that `config` names. A queue that exists gets them
        too; whatever is not named stays as it is."""
        return self._owner.wait_for(self._asynchronous().create())

    def alter(self) -> dict[str, Any]:
        """Change what `config`, `namespace` and `task` name of a queue that exists, and nothing
        else. An option of None goes back to its default."""
        return self._owner.wait_for(self._asynchronous().alter())

    def options(self) -> list[OptionState]:
        """Return all options of the queue: value, default, whether set, meaning and limits."""
        return self._owner.wait_for(self._asynchronous().options())

    def delete(self) -> bool:
        """Delete the queue with everything in it; false when there was none."""
        return self._owner.wait_for(self._asynchronous().delete())

    def push(self, items: Any, *, headers: Mapping[str, str] | None = None) -> list[Pushed]:
        """Push one payload, or a list of them; returns when they are stored."""
        return self._owner.wait_for(self._asynchronous().push(items, headers=headers))

    def pop(
        self, *, wait_s: float | None = None, batch: int | None = None, auto_ack: bool = False
    ) -> list[SyncReceived]:
        """Lease the next messages; empty when there are none."""
        wait_s = self._wait_s if wait_s is None else wait_s
        popped = self._owner.wait_for(self._pop(wait_s, batch or self._batch or 1, auto_ack))
        return popped.messages

    def consume(
        self,
        handler: Handler,
        *,
        retry_on: ErrorKinds | None = None,
        give_up_on: ErrorKinds | None = None,
        handler_timeout: Seconds | None = None,
    ) -> Consumer[SyncReceived]:
        """Run a handler on what comes, until told to stop; returns what was done.

        An error of `give_up_on` sets the message aside at once, unless `retry_on` names it, too.
        After `handler_timeout` the message has failed; the thread that is at work on it goes on,
        and its worker takes nothing new until it ends.
        """
        told = self._with_rules(retry_on, give_up_on, handler_timeout)
        consumer = Consumer[SyncReceived](told, handler, signals=False)
        with self._owner.stop_on_signals(consumer):
            return self._owner.wait_for(consumer.run())

    def __iter__(self) -> Iterator[SyncReceived]:
        """Yield messages one at a time; asking for the next one acks the last."""
        consumer = Consumer[SyncReceived](self, None, signals=False)
        return SyncLoop(self._owner, consumer, consumer.__aiter__)

    def dlq(self) -> SyncDeadLetters:
        """The dead letters of this queue and group."""
        source = (self._require_name(), self._partition, self._group)
        return SyncDeadLetters(self._queen, *source, self._owner)

    def replay(
        self, *, since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[Stored]:
        """Read what is stored, in bulk and without a group: no cursor moves. Raises `NotFound` when
        it is deleted meanwhile: what came then is not all of it."""
        messages = read_stored(self._queen, self._require_name(), self._partition, since, until)
        yield from iterate(self._owner, messages)


class _Closable(Protocol):
    """What an asyncio loop goes over, and has to be told when it is left."""

    async def aclose(self) -> None: ...


class SyncLoop(Generic[T]):
    """What an `async for` goes over, for a plain loop; leaving it early settles the same way."""

    # Until it has begun.
    _is_over = True

    def __init__(self, queen: SyncQueen, runner: Runner, start: Callable[[], _Closable]) -> None:
        self._queen = queen
        self._signals = contextlib.ExitStack()
        self._signals.enter_context(queen.stop_on_signals(runner))
        self._inner = queen.wait_for(_start_in_loop(start))
        self._is_over = False
        queen._loops.add(self)

    def __iter__(self) -> SyncLoop[T]:
        return self

    def __next__(self) -> T:
        item = self._queen.wait_for(_next(self._inner))
        if item is _END:
            self.close()
            raise StopIteration
        return cast("T", item)

    def close(self) -> None:
        if not self._is_over:
            self._signals.close()
            self._queen.wait_for(self.leave())

    async def leave(self) -> None:
        """Settle what is at hand, from within the loop of the client."""
        if not self._is_over:
            self._is_over = True
            await self._inner.aclose()

    def __del__(self) -> None:
        # A client that is closed has closed it. In the client's own thread nothing can be waited
        # for, and what it goes over ends by itself.
        if not (self._queen.is_closed or self._queen.is_own_thread()):
            self.close()


async def _start_in_loop(start: Callable[[], T]) -> T:
    return start()


def iterate(queen: SyncQueen, generator: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield what an asynchronous generator yields; it is closed with the client at the latest."""
    queen._readers.add(generator)
    try:
        while (item := queen.wait_for(_next(generator))) is not _END:
            yield item
    finally:
        if not (queen.is_closed or queen.is_own_thread()):
            queen.wait_for(generator.aclose())


async def _next(iterator: Any) -> Any:
    return await anext(iterator, _END)


class SyncDeadLetters(DeadLetterFilter):
    """Dead letters of a queue; `get`, `retry` and `purge` act on all that match."""

    _owner: SyncQueen

    def _asynchronous(self) -> DeadLetterQuery:
        letters = DeadLetterQuery.__new__(DeadLetterQuery)
        letters.__dict__.update(self.__dict__)
        return letters

    def get(self) -> DeadLetterPage:
        """Return the latest, and how many there are."""
        return self._owner.wait_for(self._asynchronous().get())

    def errors(self) -> list[dict[str, Any]]:
        """Return how many died of what."""
        return self._owner.wait_for(self._asynchronous().errors())

    def retry(self, letters: Sequence[DeadLetter] | None = None) -> int:
        """Deliver letters again, these or all that match; return how many."""
        return self._owner.wait_for(self._asynchronous().retry(letters))

    def purge(self) -> int:
        """Forget all that match for good; return how many."""
        return self._owner.wait_for(self._asynchronous().purge())


class SyncTransaction:
    """Acks and pushes that happen together; leaving the block commits."""

    def __init__(self, queen: SyncQueen) -> None:
        self._queen = queen
        self._inner = Transaction(queen.asynchronous)

    def ack(
        self,
        messages: Delivered | Sequence[Delivered],
        status: str = "completed",
        error: str | BaseException | None = None,
    ) -> SyncTransaction:
        """Acknowledge messages when the transaction commits."""
        self._inner.ack(messages, status, error)
        return self

    def push(
        self,
        queue: str,
        items: Any,
        *,
        partition: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> SyncTransaction:
        """Push messages when the transaction commits."""
        self._inner.push(queue, items, partition=partition, headers=headers)
        return self

    def commit(self) -> dict[str, Any]:
        """Do all of it, or raise and do nothing."""
        return self._queen.wait_for(self._inner.commit())

    def __enter__(self) -> SyncTransaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._queen.wait_for(self._inner.__aexit__(kind, error, trace))


class SyncSpool:
    """The spool of a client, for programs without asyncio."""

    def __init__(self, queen: SyncQueen, spool: ClientSpool) -> None:
        self._queen = queen
        self._spool = spool
        self.path = spool.path

    def statistics(self) -> SpoolState:
        """Return what waits."""
        return self._queen.wait_for(self._spool.statistics())

    def refused(self, limit: int = 100) -> list[RefusedMessage]:
        """Return messages that the broker has refused for what they are, with the reasons."""
        return self._queen.wait_for(self._spool.refused(limit))

    def retry(self, seqs: Sequence[int] | None = None) -> int:
        """Send refused messages again, these or all; return how many."""
        return self._queen.wait_for(self._spool.retry(seqs))

    def drop(self, seqs: Sequence[int] | None = None) -> None:
        """Forget refused messages for good, these or all."""
        self._queen.wait_for(self._spool.drop(seqs))

    def drained(self) -> None:
        """Return when nothing waits any more; what is in quarantine does not count."""
        self._queen.wait_for(self._spool.drained())


class SyncAdmin:
    """What operators ask for; the methods are those of `Admin`, and they wait."""

    def __init__(self, queen: SyncQueen) -> None:
        self._queen = queen

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._queen.asynchronous.admin, name)

        def call(*arguments: Any, **named: Any) -> Any:
            return self._queen.wait_for(method(*arguments, **named))

        return call
