"""Client-side buffering: many small pushes, few requests.

Messages are gathered by queue and partition and sent as segment frames, compressed and column
by column, all that is there in one request. A partition's messages are sent in order, one
request at a time. What could not be sent stays where it is and is sent again; only an error
that will not pass takes messages out, and it hands them over with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING

from queen.client.messages import Message, Pushed
from queen.client.payloads import encoded
from queen.client.pushing import MOST_BYTES, is_plain
from queen.client.refusals import is_worth_repeating
from queen.errors import BadRequest, NotFound, PayloadTooLarge, QueenError

if TYPE_CHECKING:
    from queen.client.queen import Queen

_log = logging.getLogger("queen.client")

_FRAME_MESSAGES = 1000
_REQUEST_MESSAGES = 10_000
_MAX_WAITING = 100_000
_PAUSE_S = 0.5

Lane = tuple[str, str]


class Buffers:
    """All that this client has not sent yet."""

    def __init__(self, queen: Queen) -> None:
        self._queen = queen
        # Id and payload; whatever has more to it is not buffered.
        self._lanes: dict[Lane, deque[tuple[str, bytes]]] = {}
        self._waiting = 0
        # Messages in the next request.
        self._most = _REQUEST_MESSAGES
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        self._room.set()
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
            await self.flush()
            return await self._queen.push(queue, partition, messages)
        payloads = [encoded(one.data) for one in messages]
        while self._waiting >= _MAX_WAITING:
            self._room.clear()
            await self._room.wait()
            self._raise_error()
        for one, payload in zip(messages, payloads, strict=True):
            lane = self._lanes.setdefault((queue, one.partition or partition), deque())
            lane.append((one.transaction_id, payload))
        self._waiting += len(messages)
        if self._waiting >= most:
            self._start()
        elif self._timer is None and self._task is None:
            self._timer = asyncio.get_running_loop().call_later(longest_s, self._start)
        return [Pushed(status="buffered", transaction_id=one.transaction_id) for one in messages]

    async def flush(self) -> None:
        """Return when everything is stored; raise why it cannot be."""
        while self._waiting:
            self._start()
            task = self._task
            if task is not None:
                await asyncio.shield(task)
            self._raise_error()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None and self._waiting:
            self._task = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                taken = self._take()
                try:
                    await self._send(taken)
                except QueenError as error:
                    if not is_worth_repeating(error):
                        self._refused(error, taken)
                        continue
                    self._put_back(taken)
                    _log.warning("sending a buffer: %s", error)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                except BaseException:
                    self._put_back(taken)
                    raise
                self._waiting -= sum(map(len, taken.values()))
                self._most = min(self._most * 2, _REQUEST_MESSAGES)
                self._room.set()
        finally:
            self._task = None

    def _take(self) -> dict[Lane, list[tuple[str, bytes]]]:
        """Take what goes into one request, the oldest of each partition first."""
        taken: dict[Lane, list[tuple[str, bytes]]] = {}
        left, left_bytes = self._most, MOST_BYTES
        for name, lane in list(self._lanes.items()):
            while lane and left and (not taken or len(lane[0][1]) <= left_bytes):
                left, left_bytes = left - 1, left_bytes - len(lane[0][1])
                taken.setdefault(name, []).append(lane.popleft())
            if lane:
                break
            del self._lanes[name]
        return taken

    def _put_back(self, taken: dict[Lane, list[tuple[str, bytes]]]) -> None:
        for name, messages in taken.items():
            self._lanes.setdefault(name, deque()).extendleft(reversed(messages))

    def _refused(self, error: QueenError, taken: dict[Lane, list[tuple[str, bytes]]]) -> None:
        """Hand over what will never be taken, and only that: halve it until the fault is alone."""
        count = sum(map(len, taken.values()))
        is_whole = len(taken) == 1 and not isinstance(error, PayloadTooLarge)
        if count == 1 or is_whole or not isinstance(error, BadRequest | NotFound):
            self._hand_over(error, taken)
        else:
            self._most = count // 2
            self._put_back(taken)

    def _hand_over(self, error: QueenError, taken: dict[Lane, list[tuple[str, bytes]]]) -> None:
        """Give messages that will never be taken to whoever pushes or flushes next."""
        self._error = self._error or error
        self._error.details.setdefault("unsent", []).extend(
            {"queue": queue, "partition": partition, "transactionId": name, "payload": payload}
            for (queue, partition), messages in taken.items()
            for name, payload in messages
        )
        self._waiting -= sum(map(len, taken.values()))
        self._room.set()

    async def _send(self, taken: dict[Lane, list[tuple[str, bytes]]]) -> None:
        await self._queen.push_frames(
            [
                (queue, partition, messages[at : at + _FRAME_MESSAGES])
                for (queue, partition), messages in taken.items()
                for at in range(0, len(messages), _FRAME_MESSAGES)
            ]
        )

    async def close(self) -> None:
        """Send what is left; raise when it cannot be."""
        try:
            await self.flush()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._task is not None:
                self._task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._task
