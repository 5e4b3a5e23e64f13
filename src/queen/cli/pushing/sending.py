"""Sends many messages as frames, a block in each request, and finds those that are refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from queen.cli.exits import say
from queen.cli.pushing.sources import Line, batched
from queen.client import Message, Queen
from queen.client.payloads import encode_payload
from queen.client.pushing.items import FramedMessage
from queen.client.queues.messages import BUFFERED
from queen.core.columns.headers import headers_text
from queen.core.names import DEFAULT_PARTITION
from queen.errors import BadRequest, ItemNotFound

_FRAME_MESSAGES = 1000


class Sender:
    """Counts what became of the messages it sends to one queue."""

    def __init__(
        self, queen: Queen, queue: str, noun: str = "line", qos0: Mapping[str, Any] | None = None
    ) -> None:
        self._queen = queen
        self._queue = queue
        self._noun = noun
        # How the server may buffer them; None when it may not.
        self._qos0 = qos0
        self.stored = 0
        # In the spool of this client, or in that of the server.
        self.buffered = 0
        self.duplicates = 0
        self.failed = 0

    def reject(self, number: int, reason: str) -> None:
        """Say what was not stored, and why."""
        self.failed += 1
        say(f"queen: {self._noun} {number}: {reason}")

    async def send(self, lines: Sequence[Line]) -> None:
        """Store messages; one that the server refuses does not keep the others back."""
        if not lines:
            return
        try:
            repeated, kept = await self._send([line.message for line in lines])
        except ItemNotFound:
            raise
        except BadRequest as error:
            if len(lines) == 1:
                self.reject(lines[0].number, error.message)
                return
            half = len(lines) // 2
            await self.send(lines[:half])
            await self.send(lines[half:])
        else:
            self.duplicates += repeated
            self.buffered += kept
            self.stored += len(lines) - repeated - kept

    async def _send(self, messages: list[Message]) -> tuple[int, int]:
        """Send a block in one request; return how many of it were there already, and how many are
        in a spool."""
        if self._qos0 or any(_has_more_to_it(message) for message in messages):
            pushed = await self._queen.push(self._queue, DEFAULT_PARTITION, messages, self._qos0)
            kept = sum(result.status == BUFFERED for result in pushed)
            return sum(result.is_duplicate for result in pushed), kept
        by_partition: dict[str, list[FramedMessage]] = defaultdict(list)
        for message in messages:
            partition = message.partition or DEFAULT_PARTITION
            by_partition[partition].append(
                FramedMessage(
                    message.transaction_id,
                    encode_payload(message.data),
                    headers_text(message.headers),
                )
            )
        frames = [
            (self._queue, partition, part)
            for partition, payloads in by_partition.items()
            for part in batched(payloads, _FRAME_MESSAGES)
        ]
        results = await self._queen.push_frames(frames)
        kept = sum(
            len(part)
            for (_, _, part), result in zip(frames, results, strict=True)
            if result.get("status") == BUFFERED
        )
        return sum(len(result.get("duplicates", ())) for result in results), kept

    @property
    def _may_be_buffered(self) -> bool:
        return self._queen.spool is not None or self._qos0 is not None or self.buffered > 0

    def counts(self) -> dict[str, int | str]:
        counts: dict[str, int | str] = {"queue": self._queue, "stored": self.stored}
        if self._may_be_buffered:
            counts["buffered"] = self.buffered
        return {**counts, "duplicates": self.duplicates, "failed": self.failed}

    def summary(self) -> str:
        kept = f"{self.buffered:,} buffered, " if self._may_be_buffered else ""
        return (
            f"{self._queue}: {self.stored:,} stored, {kept}{self.duplicates:,} duplicates, "
            f"{self.failed:,} failed"
        )


def _has_more_to_it(message: Message) -> bool:
    """Whether there is no place for all of a message in a frame."""
    return message.delay is not None or message.trace_id is not None
