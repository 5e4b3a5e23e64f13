"""Client-side buffering: many small pushes, few requests.

Messages are gathered by queue and partition and sent as segment frames, compressed and column
by column, all that is there in one request. A partition's messages are sent in order, one
request at a time. What could not be sent stays where it is and is sent again; only an error
that will not pass takes messages out, and it hands them over with it.

A request goes to several partitions, and each has its own outcome. What is stored is not sent
again. A partition whose queue takes nothing for now is held back for a while, so that it does
not hold up the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from queen.client.payloads import encode_payload
from queen.client.pushing.items import MOST_BYTES, FramedMessage, is_plain
from queen.client.queues.messages import BUFFERED, Message, Pushed
from queen.client.queues.partial_requests import Outcome
from queen.client.transport.errors_from_answer import is_worth_repeating
from queen.core.columns.headers import headers_text
from queen.errors import (
    BadRequest,
    InvalidFrame,
    InvalidItem,
    NotFound,
    PayloadTooLarge,
    QueenError,
    QueueFull,
)

if TYPE_CHECKING:
    from queen.client.queen import NamedFrame, Queen

_log = logging.getLogger("queen.client")

_FRAME_MESSAGES = 1000
_REQUEST_MESSAGES = 10_000
_MAX_WAITING = 100_000
_MAX_WAITING_BYTES = 256 * 1024 * 1024
# What a partition, or all of them, waits after a failure; it doubles from one to the next.
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0

PartitionKey = tuple[str, str]


class Pause:
    """How long to wait after the next failure: longer each time, never the same for two."""

    __slots__ = ("_next_s",)

    def __init__(self) -> None:
        self._next_s = 0.0

    @property
    def is_first(self) -> bool:
        return self._next_s == 0.0

    def next_s(self) -> float:
        now_s = self._next_s or _PAUSE_S
        self._next_s = min(now_s * 2, _LONGEST_PAUSE_S)
        return now_s * random.uniform(0.5, 1.0)  # noqa: S311

    def reset(self) -> None:
        self._next_s = 0.0


class Backlog:
    """What waits for one partition, oldest first."""

    __slots__ = ("held_until", "messages", "most", "pause")

    def __init__(self) -> None:
        # Whatever has no room in a frame is not buffered.
        self.messages: deque[FramedMessage] = deque()
        self.pause = Pause()
        # By the monotonic clock.
        self.held_until = 0.0
        # What its queue last had room for; a queue need not have room for a whole frame, ever.
        self.most = _REQUEST_MESSAGES

    def hold(self, error: QueenError) -> None:
        """Send less, if there is room for less; else leave it alone for a while."""
        room = getattr(error, "left", 0) if isinstance(error, QueueFull) else 0
        if 0 < room < min(self.most, len(self.messages)):
            self.most = room
            return
        if self.pause.is_first:
            _log.warning("sending a buffer, again until it is stored: %s", error)
        self.held_until = time.monotonic() + self.pause.next_s()

    def replace(self, count: int, kept: list[FramedMessage]) -> None:
        """Put what is kept of the oldest messages in their stead."""
        for _ in range(count):
            self.messages.popleft()
        self.messages.extendleft(reversed(kept))
        if len(kept) < count:
            self.pause.reset()
            self.most = _REQUEST_MESSAGES


class Buffers:
    """All that this client has not sent yet."""

    def __init__(self, queen: Queen) -> None:
        self._queen = queen
        self._backlogs: OrderedDict[PartitionKey, Backlog] = OrderedDict()
        self._waiting = 0
        self._waiting_bytes = 0
        # Messages in the next request.
        self._most = _REQUEST_MESSAGES
        self._pause = Pause()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        # Something was added.
        self._news = asyncio.Event()
        # Something was refused, and the rest has to wait.
        self._failed = asyncio.Event()
        self._error: QueenError | None = None

    def __len__(self) -> int:
        return self._waiting

    async def add(
        self, queue: str, partition: str, messages: list[Message], most: int, longest_s: float
    ) -> list[Pushed]:
        """Keep messages until there are enough of them, or until they have waited enough."""
        self._raise_error()
        if not all(map(is_plain, messages)):
            # A schedule or a trace does not fit a frame of plain messages. What was pushed
            # before them is stored before them.
            await self._flush({(queue, message.partition or partition) for message in messages})
            return await self._queen.push(queue, partition, messages)
        framed = [
            FramedMessage(
                message.transaction_id, encode_payload(message.data), headers_text(message.headers)
            )
            for message in messages
        ]
        await self._wait_for_room()
        for message, waiting in zip(messages, framed, strict=True):
            backlog = self._backlogs.setdefault((queue, message.partition or partition), Backlog())
            backlog.messages.append(waiting)
        self._waiting += len(messages)
        self._waiting_bytes += _bytes(framed)
        self._news.set()
        if self._waiting >= most or self._is_full:
            self._start()
        else:
            self._start_in(longest_s)
        return [
            Pushed(status=BUFFERED, transaction_id=message.transaction_id) for message in messages
        ]

    @property
    def _is_full(self) -> bool:
        return self._waiting >= _MAX_WAITING or self._waiting_bytes >= _MAX_WAITING_BYTES

    async def _wait_for_room(self) -> None:
        while self._is_full:
            # Nobody may have asked to send it yet.
            self._start()
            self._room.clear()
            await self._room.wait()
            self._raise_error()

    async def flush(self) -> None:
        """Return when everything is stored; raise why it cannot be."""
        await self._flush(None)

    async def _flush(self, keys: set[PartitionKey] | None) -> None:
        """Return when what waits is stored, all of it or that of some partitions."""
        while self._waiting if keys is None else not keys.isdisjoint(self._backlogs):
            self._start()
            await self._wait_for_progress()
            if self._failed.is_set():
                self._raise_error()
        self._raise_error()

    async def _wait_for_progress(self) -> None:
        """Wait until something was stored, or until there is an error to tell."""
        task = self._task
        if task is None:
            return
        self._room.clear()
        waits = [asyncio.ensure_future(event.wait()) for event in (self._room, self._failed)]
        try:
            await asyncio.wait((task, *waits), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if task.done():
            task.result()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            self._failed.clear()
            raise error

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None and self._waiting:
            self._task = asyncio.create_task(self._send_all())

    def _start_in(self, longest_s: float) -> None:
        """Send what waits after a while, or earlier if somebody else wants it earlier."""
        loop = asyncio.get_running_loop()
        if self._task is not None or (
            self._timer is not None and self._timer.when() <= loop.time() + longest_s
        ):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(longest_s, self._start)

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                self._news.clear()
                taken = self._take()
                if taken:
                    await self._send(taken)
                    continue
                if self._error is not None:
                    # All that can be sent now is sent; whoever waits need not wait for the rest.
                    self._failed.set()
                await self._wait_until_ready()
        finally:
            self._task = None

    async def _wait_until_ready(self) -> None:
        """Wait until a partition is no longer held back, or until there are others."""
        earliest = min(backlog.held_until for backlog in self._backlogs.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, earliest - time.monotonic())):
                await self._news.wait()

    def _take(self) -> dict[PartitionKey, list[FramedMessage]]:
        """Return what goes into one request, the oldest of each partition first."""
        taken: dict[PartitionKey, list[FramedMessage]] = {}
        left, left_bytes = self._most, MOST_BYTES
        now = time.monotonic()
        for name, backlog in self._backlogs.items():
            if backlog.held_until > now:
                continue
            for sent in islice(backlog.messages, min(left, backlog.most)):
                if taken and sent.size_bytes > left_bytes:
                    return taken
                left, left_bytes = left - 1, left_bytes - sent.size_bytes
                taken.setdefault(name, []).append(sent)
            if not left:
                break
        return taken

    async def _send(self, taken: dict[PartitionKey, list[FramedMessage]]) -> None:
        frames = list(_frames(taken))
        try:
            outcomes = await self._queen.try_frames(frames, 0.0)
        except QueenError as error:
            if not is_worth_repeating(error):
                self._isolate_fault(error, taken)
                return
            if self._pause.is_first:
                _log.warning("sending a buffer, again until it is stored: %s", error)
            await asyncio.sleep(self._pause.next_s())
            return
        self._pause.reset()
        if all(outcome.is_stored for outcome in outcomes):
            self._most = min(self._most * 2, _REQUEST_MESSAGES)
        self._settle(taken, frames, outcomes)

    def _settle(
        self,
        taken: dict[PartitionKey, list[FramedMessage]],
        frames: list[NamedFrame],
        outcomes: list[Outcome],
    ) -> None:
        """Drop what is stored, hand over what never will be, and keep the rest."""
        kept: dict[PartitionKey, list[FramedMessage]] = {name: [] for name in taken}
        for (queue, partition, messages), outcome in zip(frames, outcomes, strict=True):
            name = (queue, partition)
            if outcome.error is not None and outcome.is_refused_for_good:
                self._hand_over(outcome.error, {name: messages})
            elif not outcome.is_stored:
                kept[name] += messages
                self._keep(name, outcome.error)
        for name, messages in taken.items():
            self._replace(name, messages, kept[name])

    def _keep(self, name: PartitionKey, error: QueenError | None) -> None:
        backlog = self._backlogs[name]
        if error is None:
            # Asked about first, the server says why.
            self._backlogs.move_to_end(name, last=False)
        elif backlog.held_until <= time.monotonic():
            backlog.hold(error)

    def _replace(
        self, name: PartitionKey, taken: list[FramedMessage], kept: list[FramedMessage]
    ) -> None:
        """Leave only what is kept of what was taken."""
        backlog = self._backlogs[name]
        backlog.replace(len(taken), kept)
        if not backlog.messages:
            del self._backlogs[name]
        self._waiting -= len(taken) - len(kept)
        self._waiting_bytes -= _bytes(taken) - _bytes(kept)
        self._room.set()

    def _isolate_fault(
        self, error: QueenError, taken: dict[PartitionKey, list[FramedMessage]]
    ) -> None:
        """Hand over what will never be taken, and only that: halve it until the fault is alone."""
        count = sum(map(len, taken.values()))
        can_part = isinstance(error, BadRequest | NotFound)
        if count == 1 or not can_part or (len(taken) == 1 and not _is_of_message(error, taken)):
            self._hand_over(error, taken)
            for name, messages in taken.items():
                self._replace(name, messages, [])
        else:
            self._most = count // 2

    def _hand_over(
        self, error: QueenError, refused: dict[PartitionKey, list[FramedMessage]]
    ) -> None:
        """Give messages that will never be taken to whoever pushes or flushes next."""
        self._error = self._error or error
        self._error.details.setdefault("unsent", []).extend(
            {
                "queue": queue,
                "partition": partition,
                "transactionId": message.transaction_id,
                "payload": message.payload,
                "code": error.code,
                "error": error.message,
            }
            for (queue, partition), messages in refused.items()
            for message in messages
        )

    async def close(self) -> None:
        """Send what is left; raise when it cannot be."""
        try:
            await self._flush_to_the_end()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._task is not None:
                self._task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._task

    async def _flush_to_the_end(self) -> None:
        """Flush; what was refused does not keep the rest from being sent."""
        first: QueenError | None = None
        while self._waiting or self._error is not None:
            try:
                await self.flush()
            except QueenError as error:
                if first is None:
                    first = error
                else:
                    first.details["unsent"] += error.details["unsent"]
        if first is not None:
            raise first


def _bytes(messages: list[FramedMessage]) -> int:
    return sum(message.size_bytes for message in messages)


def _frames(taken: dict[PartitionKey, list[FramedMessage]]) -> Iterator[NamedFrame]:
    """Yield the frames of a request. The first of a partition is the smallest: where a queue has
    room for some only, those that follow never fit when one before them did not."""
    for (queue, partition), messages in taken.items():
        at = len(messages) % _FRAME_MESSAGES or _FRAME_MESSAGES
        yield queue, partition, messages[:at]
        for start in range(at, len(messages), _FRAME_MESSAGES):
            yield queue, partition, messages[start : start + _FRAME_MESSAGES]


def _is_of_message(error: QueenError, taken: dict[PartitionKey, list[FramedMessage]]) -> bool:
    """Whether a refusal of what goes to one partition may be about some of its messages only."""
    from queen.core.names import reason_against_name

    if isinstance(error, PayloadTooLarge):
        return True
    ((queue, partition),) = taken
    names = reason_against_name("queue", queue) or reason_against_name("partition", partition)
    return isinstance(error, InvalidFrame | InvalidItem) and not names
