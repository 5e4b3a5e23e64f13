"""What a handler raises decides what becomes of its message, and its time is limited.

In both faces of the client, with messages in frames and in JSON.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from queen import Queen, Received, SyncQueen, SyncWindow, Window
from queen.errors import BadRequest, HandlerTimeout
from tests.conftest import ServerProcess
from tests.waiting import spend_async, until

BOTH = pytest.mark.parametrize("frames", [True, False], ids=["frames", "json"])


@pytest.fixture
async def queen(server: ServerProcess, frames: bool) -> AsyncIterator[Queen]:
    async with Queen(server.url, retry_s=5, frames=frames) as made:
        yield made


@pytest.fixture
def sync_queen(server: ServerProcess, frames: bool) -> Iterator[SyncQueen]:
    with SyncQueen(server.url, retry_s=5, frames=frames) as made:
        yield made


class Hopeless(ValueError):
    pass


def fail_some(number: int, attempt: int) -> None:
    """One is hopeless; one fails twice, and the second time in a way that is worth a retry."""
    if number == 1:
        raise Hopeless("no retry would mend it")
    if number == 3 and attempt == 1:
        raise KeyError("not yet")
    if number == 3 and attempt == 2:
        raise BrokenPipeError("not now")


SEEN = [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (4, 1)]
KINDS: dict[str, Any] = {"give_up_on": (Hopeless, OSError), "retry_on": BrokenPipeError}


@BOTH
async def test_an_error_decides_what_becomes_of_a_message(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(retry_limit=3, retry_delay=0).create()
    await queen.queue(queue).push(list(range(5)))
    seen: list[tuple[int, int]] = []

    async def handle(message: Received) -> None:
        seen.append((message.data, message.attempt))
        fail_some(message.data, message.attempt)

    done = await queen.queue(queue).limit(7).idle(20).consume(handle, **KINDS)
    assert (seen, done.handled, done.failed) == (SEEN, 4, 3)
    page = await queen.queue(queue).dlq().get()
    assert [(one.data, one.retry_count, one.error_message) for one in page.messages] == [
        (1, 1, "Hopeless: no retry would mend it")
    ]


@BOTH
def test_the_same_without_asyncio(sync_queen: SyncQueen, queue: str) -> None:
    sync_queen.queue(queue).config(retry_limit=3, retry_delay=0).create()
    sync_queen.queue(queue).push(list(range(5)))
    seen: list[tuple[int, int]] = []

    def handle(message: Any) -> None:
        seen.append((message.data, message.attempt))
        fail_some(message.data, message.attempt)

    told = sync_queen.queue(queue).limit(7).idle(20)
    done = told.give_up_on(Hopeless, OSError).retry_on(BrokenPipeError).consume(handle)
    assert (seen, done.handled, done.failed) == (SEEN, 4, 3)
    page = sync_queen.queue(queue).dlq().get()
    assert [(one.data, one.retry_count, one.error_message) for one in page.messages] == [
        (1, 1, "Hopeless: no retry would mend it")
    ]


@BOTH
async def test_a_list_that_is_hopeless_is_given_up_as_a_whole(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push(list(range(4)))

    async def handle(messages: list[Received]) -> None:
        if any(message.data == 1 for message in messages):
            raise Hopeless

    await queen.queue(queue).batch(2).limit(4).idle(20).consume(handle, give_up_on=Hopeless)
    page = await queen.queue(queue).dlq().get()
    assert sorted(one.data for one in page.messages) == [0, 1]


@BOTH
async def test_an_async_handler_that_takes_too_long_is_cancelled(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(retry_limit=3, retry_delay=0).create()
    await queen.queue(queue).push([1, 2])
    seen: list[tuple[int, int]] = []
    ends: list[str] = []

    async def handle(message: Received) -> None:
        seen.append((message.data, message.attempt))
        if message.data == 1 and message.attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

    errors: list[Exception] = []
    told = queen.queue(queue).limit(3).idle(20).on_error(lambda _, error: errors.append(error))
    done = await told.consume(handle, handler_timeout=0.2)
    assert (seen, ends, done.failed) == ([(1, 1), (1, 2), (2, 1)], ["cancelled"], 1)
    assert [str(error) for error in errors] == ["the handler took longer than 0.2 s"]


@BOTH
async def test_a_timeout_of_the_handlers_own_is_an_error_like_any_other(
    queen: Queen, queue: str
) -> None:
    await queen.queue(queue).push(1)

    async def handle(_: Received) -> None:
        raise TimeoutError("its own")

    told = queen.queue(queue).limit(1).idle(20).handler_timeout(20)
    await told.consume(handle, give_up_on=TimeoutError)
    (letter,) = (await queen.queue(queue).dlq().get()).messages
    assert letter.error_message == "TimeoutError: its own"


@BOTH
def test_a_thread_that_takes_too_long_has_failed_and_its_worker_waits_for_it(
    sync_queen: SyncQueen, queue: str
) -> None:
    sync_queen.queue(queue).config(retry_limit=3, retry_delay=0).create()
    sync_queen.queue(queue).push([1, 2])
    release = threading.Event()
    seen: list[tuple[int, int]] = []
    at_work: list[int] = []

    def handle(message: Any) -> None:
        at_work.append(message.data)
        seen.append((message.data, message.attempt))
        assert len(at_work) == 1, "a second handler was begun beside the first"
        if message.data == 1 and message.attempt == 1:
            release.wait(60)
        at_work.remove(message.data)

    def let_go_once_it_is_back() -> None:
        # It was given back while its thread is still at work: anybody may have it.
        others = sync_queen.queue(queue)
        until(lambda: seen)
        taken = until(lambda: others.pop(wait_s=0, batch=1))
        taken[0].give_back()
        release.set()

    watcher = threading.Thread(target=let_go_once_it_is_back)
    watcher.start()
    done = sync_queen.queue(queue).limit(3).idle(20).consume(handle, handler_timeout=0.2)
    watcher.join()
    assert (seen, done.failed) == ([(1, 1), (1, 2), (2, 1)], 1)


@BOTH
async def test_a_message_may_be_given_back_with_a_delay(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(retry_delay=0).create()
    await queen.queue(queue).push([1])
    for give in ("nack", "give_back"):
        (message,) = await queen.queue(queue).pop(wait_s=20)
        await getattr(message, give)(delay=600)
        assert await queen.queue(queue).pop(wait_s=0) == []
        await queen.admin.seek("__QUEUE_MODE__", queue, to="beginning")
    (message,) = await queen.queue(queue).pop(wait_s=20)
    await message.nack(delay=0.01)
    assert await queen.queue(queue).pop(wait_s=20)


@BOTH
async def test_what_makes_no_sense_is_refused_at_once(queen: Queen, queue: str) -> None:
    wrongs: list[Any] = [{"give_up_on": "ValueError"}, {"retry_on": 7}, {"handler_timeout": 0}]
    for wrong in wrongs:
        with pytest.raises(BadRequest):
            queen.queue(queue).consume(print, **wrong)


# ---- what was cancelled elsewhere ----

CANCELLED = "RuntimeError: a handler raised CancelledError"


async def await_what_was_cancelled() -> None:
    inner = asyncio.create_task(spend_async(60))
    inner.cancel()
    await inner


def raise_cancelled() -> None:
    raise asyncio.CancelledError


@BOTH
@pytest.mark.parametrize("handler_timeout", [None, 20])
async def test_a_handler_that_awaits_what_was_cancelled_has_failed(
    queen: Queen, queue: str, handler_timeout: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: Received) -> None:
        if message.data == 1:
            await await_what_was_cancelled()

    def handle_in_thread(message: Received) -> None:
        if message.data == 1:
            raise_cancelled()

    def make_coroutine(message: Received) -> Any:
        return handle(message)

    for handler in (handle, handle_in_thread, make_coroutine):
        await queen.queue(queue).config(retry_limit=0).create()
        await queen.queue(queue).push([0, 1, 2])
        told = queen.queue(queue).limit(3).idle(20)
        done = await told.consume(handler, handler_timeout=handler_timeout)
        assert (done.handled, done.failed) == (2, 1)
    page = await queen.queue(queue).dlq().get()
    assert [dead.error_message for dead in page.messages] == [CANCELLED] * 3
    assert caplog.text.count("a handler failed: RuntimeError") == 3


@BOTH
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_what_would_end_a_program_is_a_failure_in_a_thread(
    queen: Queen, queue: str, kind: type[BaseException]
) -> None:
    def handle(message: Received) -> None:
        if message.data == 1:
            raise kind

    await queen.queue(queue).config(retry_limit=0).create()
    for told in (queen.queue(queue), queen.queue(queue).handler_timeout(20)):
        await queen.queue(queue).push([0, 1, 2])
        done = await told.limit(3).idle(20).consume(handle)
        assert (done.handled, done.failed) == (2, 1)


@BOTH
async def test_a_consumer_that_is_cancelled_ends(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push(1)
    begun = asyncio.Event()

    async def handle(_: Received) -> None:
        begun.set()
        await spend_async(60)

    consuming = asyncio.create_task(queen.queue(queue).consume(handle, signals=False))
    await begun.wait()
    consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consuming


@pytest.mark.parametrize("frames", [True], ids=["windows"])
async def test_the_same_of_windows_and_callbacks(queen: Queen, queue: str) -> None:
    stream = queen.stream(queue).sources(queue).count(1).grace_period(0).retry_limit(0)
    await stream.define()
    await queen.queue(queue).push([1, 2])

    async def handle(window: Window) -> None:
        if window.messages[0].data == 1:
            await await_what_was_cancelled()

    async def note(*_: Any) -> None:
        await await_what_was_cancelled()

    told = queen.consumer(queue, "g").limit(2).idle(30).on_error(note)
    done = await told.process(handle)
    assert (done.handled, done.failed) == (1, 1)
    (dead,) = await stream.dead("g")
    assert dead["error"] == CANCELLED


# ---- windows ----


@pytest.mark.parametrize("frames", [True], ids=["windows"])
async def test_windows_are_given_up_and_their_handlers_cancelled(queen: Queen, queue: str) -> None:
    stream = queen.stream(queue).sources(queue).count(1).grace_period(0).retry_delay(0)
    await stream.define()
    await queen.queue(queue).push([1, 2, 3])
    seen: list[tuple[int, int]] = []

    async def handle(window: Window) -> None:
        number = window.messages[0].data
        seen.append((number, window.attempt))
        if number == 1:
            raise Hopeless("no retry would mend it")
        if number == 2 and window.attempt == 1:
            await spend_async(60)

    told = queen.consumer(queue, "g").limit(4).idle(30)
    done = await told.process(handle, give_up_on=Hopeless, handler_timeout=1)
    assert (seen, done.failed) == ([(1, 1), (2, 1), (2, 2), (3, 1)], 2)
    (dead,) = await stream.dead("g")
    assert (dead["error"], dead["attempts"]) == ("Hopeless: no retry would mend it", 1)


@pytest.mark.parametrize("frames", [True], ids=["windows"])
def test_the_same_in_threads(sync_queen: SyncQueen, queue: str) -> None:
    stream = sync_queen.stream(queue).sources(queue).count(1).grace_period(0).retry_delay(0)
    stream.define()
    sync_queen.queue(queue).push([1, 2])
    release = threading.Event()
    seen: list[tuple[int, int]] = []

    def handle(window: SyncWindow) -> None:
        number = window.messages[0].data
        seen.append((number, window.attempt))
        if number == 1:
            release.wait(60)

    def note(_: Any, error: Exception) -> None:
        assert isinstance(error, HandlerTimeout)
        release.set()

    told = sync_queen.consumer(queue, "g").limit(2).idle(30).on_error(note)
    done = told.process(handle, give_up_on=HandlerTimeout, handler_timeout=0.2)
    assert (seen, done.failed) == ([(1, 1), (2, 1)], 1)
    (dead,) = stream.dead("g")
    assert dead["error"] == "HandlerTimeout: the handler took longer than 0.2 s"
