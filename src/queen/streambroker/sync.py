"""The verbs for programs without asyncio.

A thread runs an event loop with the broker in it; every verb here hands its work over and waits. It
may be used from several threads: a read that waits holds up nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from queen.client.camel_case import EitherSpelling
from queen.streambroker.interface import DEFAULT_PRODUCER, Capability, StreamBroker
from queen.streambroker.loop_thread import LoopThread
from queen.streambroker.records import ConsumerGroupInfo, StreamMessage


class SyncStreamBroker(EitherSpelling):
    """Any stream broker, without asyncio. It belongs to this object: nobody else may use it."""

    def __init__(self, broker: StreamBroker) -> None:
        self.asynchronous = broker
        self._thread = LoopThread("queen-streams")
        self._is_closed = False

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do."""
        self._thread.wait_for(self.asynchronous.open())
        return self.asynchronous.capabilities

    def __enter__(self) -> Self:
        try:
            self._thread.wait_for(self.asynchronous.open())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; what waits for entries in other threads ends with an error."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._thread.wait_for(self.asynchronous.close())
        finally:
            self._thread.stop()

    def xadd(
        self,
        stream: str,
        data: Any,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        producer: str = DEFAULT_PRODUCER,
        max_length: int | None = None,
    ) -> str:
        """Add an entry, any JSON value, and return its id."""
        return self._thread.wait_for(
            self.asynchronous.xadd(
                stream,
                data,
                key=key,
                idempotency_key=idempotency_key,
                producer=producer,
                max_length=max_length,
            )
        )

    def xlen(self, stream: str) -> int:
        """Return how many entries a stream has."""
        return self._thread.wait_for(self.asynchronous.xlen(stream))

    def xrange(
        self, stream: str, min_id: str = "-", max_id: str = "+", count: int = 0
    ) -> list[StreamMessage]:
        """Return entries by id, both ends included."""
        return self._thread.wait_for(self.asynchronous.xrange(stream, min_id, max_id, count))

    def xdel(self, stream: str, ids: Sequence[str]) -> int:
        """Delete entries; return how many there were."""
        return self._thread.wait_for(self.asynchronous.xdel(stream, ids))

    def xtrim(self, stream: str, max_length: int) -> int:
        """Keep the newest entries; return how many were removed."""
        return self._thread.wait_for(self.asynchronous.xtrim(stream, max_length))

    def scan_streams(self, pattern: str = "*") -> list[str]:
        """Return the sorted names of the streams that match."""
        return self._thread.wait_for(self.asynchronous.scan_streams(pattern))

    def create_group(
        self, stream: str, group: str, start_id: str = "$", *, strict: bool = False
    ) -> None:
        """Create a group that reads what comes after an id."""
        self._thread.wait_for(
            self.asynchronous.create_group(stream, group, start_id, strict=strict)
        )

    def set_group_id(self, stream: str, group: str, start_id: str) -> None:
        """Let a group read on after another id."""
        self._thread.wait_for(self.asynchronous.set_group_id(stream, group, start_id))

    def delete_group(self, stream: str, group: str) -> None:
        """Delete a group with everything it has pending."""
        self._thread.wait_for(self.asynchronous.delete_group(stream, group))

    def get_group_info(self, stream: str) -> list[ConsumerGroupInfo]:
        """Return the groups of a stream, by name."""
        return self._thread.wait_for(self.asynchronous.get_group_info(stream))

    def get_stream_group_info(self, stream: str, group: str) -> ConsumerGroupInfo | None:
        """Return one group; None when there is no such group."""
        return self._thread.wait_for(self.asynchronous.get_stream_group_info(stream, group))

    def delete_consumer(
        self, stream: str, group: str, consumer: str, *, keep_pending: bool = True
    ) -> int:
        """Delete a consumer and give back what it has; return how much that was."""
        return self._thread.wait_for(
            self.asynchronous.delete_consumer(stream, group, consumer, keep_pending=keep_pending)
        )

    def xreadgroup(
        self,
        group: str,
        consumer: str,
        stream: str,
        count: int = 1,
        block_ms: int | None = 0,
        *,
        claim_idle_ms: int | None = None,
        no_ack: bool = False,
        history_after: str | None = None,
    ) -> list[StreamMessage]:
        """Take entries that nobody of the group has had yet; wait for them if told to."""
        return self._thread.wait_for(
            self.asynchronous.xreadgroup(
                group,
                consumer,
                stream,
                count,
                block_ms,
                claim_idle_ms=claim_idle_ms,
                no_ack=no_ack,
                history_after=history_after,
            )
        )

    def xack(self, stream: str, group: str, ids: Sequence[str]) -> int:
        """Say that entries are done; return how many of them were pending."""
        return self._thread.wait_for(self.asynchronous.xack(stream, group, ids))

    def nack(self, stream: str, group: str, ids: Sequence[str], delay_ms: int = 0) -> int:
        """Give pending entries back, to be claimed at once or after a delay."""
        return self._thread.wait_for(self.asynchronous.nack(stream, group, ids, delay_ms))

    def xpending(
        self, stream: str, group: str, consumer: str | None = None, count: int = 0
    ) -> list[StreamMessage]:
        """Return what is pending, of the group or of one consumer, by id; 0 is no limit."""
        return self._thread.wait_for(self.asynchronous.xpending(stream, group, consumer, count))

    def xclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, ids: Sequence[str]
    ) -> list[StreamMessage]:
        """Take over the entries named, as far as they are pending for so long already."""
        return self._thread.wait_for(
            self.asynchronous.xclaim(stream, group, consumer, min_idle_ms, ids)
        )

    def xautoclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, count: int = 1
    ) -> list[StreamMessage]:
        """Take over what is pending for too long."""
        return self._thread.wait_for(
            self.asynchronous.xautoclaim(stream, group, consumer, min_idle_ms, count)
        )

    def set_delivery_limit(self, stream: str, group: str, limit: int | None) -> None:
        """Let entries that were delivered so often become dead letters."""
        self._thread.wait_for(self.asynchronous.set_delivery_limit(stream, group, limit))

    def redrive(self, stream: str, count: int = 0) -> int:
        """Add the oldest dead letters of a stream to it again; return how many."""
        return self._thread.wait_for(self.asynchronous.redrive(stream, count))
