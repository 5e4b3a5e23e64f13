"""Streams of a Queen server, over HTTP.

Requests that do no harm when they are sent again are repeated when the connection breaks or the
server is away, for `retry_s` seconds. A read or claim whose answer was lost may have delivered
entries: they are pending for the consumer, and come again by a claim or with `history_after`. An
ack that is repeated may count fewer than it acked.

An add or a redrive is not repeated once it was sent: it raises `OutcomeUnknown` when its answer is
lost. An add with an idempotency key is repeated.

A read that waits has a connection of its own. It asks for a minute at a time, so that nothing
between client and server takes it for dead.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from queen.client.transport.cluster import Cluster, Patience
from queen.client.transport.errors_from_answer import decode_answer
from queen.client.transport.http import Poll
from queen.errors import BadRequest, NotFound, QueenError, Unavailable, Unreachable
from queen.streambroker import checks
from queen.streambroker.entry_data import fields_of
from queen.streambroker.interface import DEFAULT_PRODUCER, Capability, StreamBroker
from queen.streambroker.records import ConsumerGroupInfo, StreamMessage

RETRY_S = 30.0
# How long an answer may take, beside the time that a read waits.
TIMEOUT_S = 30.0

_PART_MS = 60_000
# A server that answers so much sooner than it was asked to wait had nothing to wait for.
_EARLY_MS = 100

T = TypeVar("T")


class _Added(msgspec.Struct):
    messageId: str  # noqa: N815 (as on the wire)


class _Count(msgspec.Struct):
    count: int


class _Messages(msgspec.Struct):
    messages: list[StreamMessage]


class _Info(msgspec.Struct):
    groups: list[ConsumerGroupInfo]


class _Length(msgspec.Struct):
    length: int


class _Streams(msgspec.Struct):
    streams: list[str]


class _Deleted(msgspec.Struct):
    pending: int


class _Capabilities(msgspec.Struct):
    capabilities: list[str]


_added = msgspec.json.Decoder(_Added)
_count = msgspec.json.Decoder(_Count)
_messages = msgspec.json.Decoder(_Messages)
_info = msgspec.json.Decoder(_Info)
_group = msgspec.json.Decoder(ConsumerGroupInfo)
_length = msgspec.json.Decoder(_Length)
_streams = msgspec.json.Decoder(_Streams)
_deleted = msgspec.json.Decoder(_Deleted)
_capabilities = msgspec.json.Decoder(_Capabilities)
_anything = msgspec.json.Decoder()


class HttpStreamBroker(StreamBroker):
    """A stream broker that a Queen server has."""

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        token: str | None = None,
        retry_s: float = RETRY_S,
        timeout_s: float = TIMEOUT_S,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Take the URL of a server, `http://` or `https://`, or those of several."""
        patience = Patience(min(5.0, timeout_s), timeout_s, retry_s)
        urls = [url] if isinstance(url, str) else list(url)
        try:
            self._cluster = Cluster(urls, token, patience, ssl_context)
        except ValueError as error:
            raise BadRequest(str(error)) from error
        self._known: frozenset[Capability] | None = None
        self._polls: set[Poll] = set()
        self._is_closed = False

    @property
    def urls(self) -> list[str]:
        """The servers that are asked."""
        return self._cluster.urls

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._known or frozenset()

    async def open(self) -> None:
        if self._known is None:
            answer = await self._ask(_capabilities, "GET", "/stream/capabilities")
            known = {capability.value: capability for capability in Capability}
            named = (known.get(word) for word in answer.capabilities)
            self._known = frozenset(capability for capability in named if capability is not None)

    async def close(self) -> None:
        self._is_closed = True
        for poll in list(self._polls):
            poll.give_up()
        self._cluster.close()

    async def _ask(
        self,
        decoder: msgspec.json.Decoder[T],
        method: str,
        path: str,
        body: bytes = b"",
        *,
        stream: str = "",
        wait_ms: int = 0,
        is_repeatable: bool = True,
    ) -> T:
        """Return what a server answers. What is asked of a stream goes to one server."""
        if self._is_closed:
            raise Unreachable(_CLOSED)
        poll = Poll()
        self._polls.add(poll)
        try:
            answer = await self._cluster.call(
                method,
                path,
                body,
                key=stream,
                wait_s=wait_ms / 1000,
                poll=poll,
                is_repeatable=is_repeatable,
            )
        except QueenError as error:
            if poll.is_given_up:
                raise Unreachable(_CLOSED) from error
            raise
        finally:
            self._polls.discard(poll)
        if poll.is_given_up:
            raise Unreachable(_CLOSED)
        return decode_answer(decoder, answer)

    async def _ask_for_messages(
        self, method: str, path: str, body: bytes = b"", *, stream: str, wait_ms: int = 0
    ) -> list[StreamMessage]:
        answer = await self._ask(_messages, method, path, body, stream=stream, wait_ms=wait_ms)
        return answer.messages

    # Entries

    async def xadd(
        self,
        stream: str,
        data: Any,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        producer: str = DEFAULT_PRODUCER,
        max_length: int | None = None,
    ) -> str:
        options: dict[str, str] = {}
        if key is not None:
            options["key"] = _name("key", key)
        if idempotency_key is not None:
            options["idempotencyKey"] = _name("idempotency_key", idempotency_key)
            options["producer"] = _name("producer", producer)
        if max_length is not None:
            options["maxLength"] = str(checks.whole_number("max_length", max_length, 1))
        body = fields_of(data)[1]
        if body == b"null":
            options["allowNull"] = "true"
        path = _path(stream, "add", **options)
        answer = await self._ask(
            _added, "POST", path, body, stream=stream, is_repeatable=idempotency_key is not None
        )
        return answer.messageId

    async def xlen(self, stream: str) -> int:
        return (await self._ask(_length, "GET", _path(stream, "length"), stream=stream)).length

    async def xrange(
        self, stream: str, min_id: str = "-", max_id: str = "+", count: int = 0
    ) -> list[StreamMessage]:
        options = {
            "from": checks.bound_bytes("min_id", min_id).decode(),
            "to": checks.bound_bytes("max_id", max_id).decode(),
            "count": str(checks.whole_number("count", count)),
        }
        path = _path(stream, "messages", **options)
        return await self._ask_for_messages("GET", path, stream=stream)

    async def xdel(self, stream: str, ids: Sequence[str]) -> int:
        return await self._change(stream, _path(stream, "delete"), ids)

    async def xtrim(self, stream: str, max_length: int) -> int:
        body = {"maxLength": checks.whole_number("max_length", max_length)}
        path = _path(stream, "trim")
        return (await self._ask(_count, "POST", path, _encode(body), stream=stream)).count

    async def scan_streams(self, pattern: str = "*") -> list[str]:
        path = "/stream?" + urlencode({"pattern": _name("pattern", pattern)})
        return (await self._ask(_streams, "GET", path)).streams

    # Groups

    async def create_group(
        self, stream: str, group: str, start_id: str = "$", *, strict: bool = False
    ) -> None:
        body = {"startId": checks.start_bytes(start_id).decode(), "strict": strict}
        path = _group_path(stream, group)
        # One that is created strictly is there when it is created again.
        await self._ask(
            _anything, "POST", path, _encode(body), stream=stream, is_repeatable=not strict
        )

    async def set_group_id(self, stream: str, group: str, start_id: str) -> None:
        body = {"startId": checks.start_bytes(start_id).decode()}
        await self._ask(_anything, "PUT", _group_path(stream, group), _encode(body), stream=stream)

    async def delete_group(self, stream: str, group: str) -> None:
        await self._ask(_anything, "DELETE", _group_path(stream, group), stream=stream)

    async def get_group_info(self, stream: str) -> list[ConsumerGroupInfo]:
        return (await self._ask(_info, "GET", _path(stream, "info"), stream=stream)).groups

    async def get_stream_group_info(self, stream: str, group: str) -> ConsumerGroupInfo | None:
        try:
            return await self._ask(_group, "GET", _group_path(stream, group), stream=stream)
        except NotFound:
            return None

    async def delete_consumer(
        self, stream: str, group: str, consumer: str, *, keep_pending: bool = True
    ) -> int:
        options = {"keepPending": "true" if keep_pending else "false"}
        path = _consumer_path(stream, group, consumer, **options)
        return (await self._ask(_deleted, "DELETE", path, stream=stream)).pending

    # Reading

    async def xreadgroup(
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
        options = {"count": str(checks.whole_number("count", count))}
        if claim_idle_ms is not None:
            options["claimIdle"] = str(checks.duration_ms("claim_idle_ms", claim_idle_ms))
        if no_ack:
            options["noAck"] = "true"
        if history_after is not None:
            after = checks.id_bytes("history_after", history_after)
            options["historyAfter"] = after.decode()
        ends_at = None
        if block_ms is not None:
            ends_at = time.monotonic() + checks.duration_ms("block_ms", block_ms) / 1000
        while True:
            began = time.monotonic()
            part_ms = _PART_MS
            if ends_at is not None:
                part_ms = min(part_ms, max(0, int((ends_at - began) * 1000)))
            path = _consumer_path(stream, group, consumer, **options, block=str(part_ms))
            try:
                messages = await self._ask_for_messages("GET", path, stream=stream, wait_ms=part_ms)
            except Unavailable:
                # Time to try again runs from when the connection is lost, not from when a wait
                # began.
                if self._is_closed or time.monotonic() - began < self._cluster.retry_s:
                    raise
                continue
            waited_ms = (time.monotonic() - began) * 1000
            # There is no such group, or no longer: nothing will come.
            is_early = waited_ms < part_ms - _EARLY_MS
            if messages or part_ms < _PART_MS or is_early or history_after is not None:
                return messages

    async def xack(self, stream: str, group: str, ids: Sequence[str]) -> int:
        return await self._change(stream, _group_path(stream, group, "ack"), ids)

    async def nack(self, stream: str, group: str, ids: Sequence[str], delay_ms: int = 0) -> int:
        delay = {"delayMs": checks.duration_ms("delay_ms", delay_ms)}
        return await self._change(stream, _group_path(stream, group, "nack"), ids, delay)

    async def _change(
        self, stream: str, path: str, ids: Sequence[str], more: dict[str, Any] | None = None
    ) -> int:
        """Do something to the entries named; return to how many of them."""
        named = [each.decode() for each in checks.ids_bytes(ids)]
        if not named:
            return 0
        body = _encode({"messageIds": named, **(more or {})})
        return (await self._ask(_count, "POST", path, body, stream=stream)).count

    async def xpending(
        self, stream: str, group: str, consumer: str | None = None, count: int = 0
    ) -> list[StreamMessage]:
        checks.whole_number("count", count)
        parts = [] if consumer is None else ["consumer", checks.consumer_bytes(consumer).decode()]
        path = _group_path(stream, group, *parts, "pending")
        path += f"?count={count}" if count else ""
        return await self._ask_for_messages("GET", path, stream=stream)

    async def xclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, ids: Sequence[str]
    ) -> list[StreamMessage]:
        named = [each.decode() for each in checks.ids_bytes(ids)]
        claim = _claim_of(consumer, min_idle_ms) | {"messageIds": named}
        path = _group_path(stream, group, "claim")
        if not named:
            return []
        return await self._ask_for_messages("POST", path, _encode(claim), stream=stream)

    async def xautoclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, count: int = 1
    ) -> list[StreamMessage]:
        limit = checks.whole_number("count", count)
        claim = _claim_of(consumer, min_idle_ms) | {"count": limit}
        path = _group_path(stream, group, "claim")
        return await self._ask_for_messages("POST", path, _encode(claim), stream=stream)

    # Dead letters

    async def set_delivery_limit(self, stream: str, group: str, limit: int | None) -> None:
        number = None if limit is None else checks.whole_number("limit", limit, 1)
        path = _group_path(stream, group, "delivery-limit")
        await self._ask(_anything, "PUT", path, _encode({"limit": number}), stream=stream)

    async def redrive(self, stream: str, count: int = 0) -> int:
        body = _encode({"count": checks.whole_number("count", count)})
        path = _path(stream, "redrive")
        answer = await self._ask(_count, "POST", path, body, stream=stream, is_repeatable=False)
        return answer.count


_CLOSED = "the stream broker is closed"
_encode = msgspec.json.encode


def _name(what: str, name: object) -> str:
    return checks.name_bytes(what, name).decode()


def _claim_of(consumer: str, min_idle_ms: int) -> dict[str, Any]:
    idle_ms = checks.duration_ms("min_idle_ms", min_idle_ms)
    return {"consumer": checks.consumer_bytes(consumer).decode(), "minIdleMs": idle_ms}


def _path(stream: str, *parts: str, **options: str) -> str:
    """Return the path of something about a stream."""
    quoted = (quote(part, safe="") for part in (_name("stream", stream), *parts))
    path = "/".join(("/stream", *quoted))
    return f"{path}?{urlencode(options)}" if options else path


def _group_path(stream: str, group: str, *parts: str, **options: str) -> str:
    return _path(stream, "group", _name("group", group), *parts, **options)


def _consumer_path(stream: str, group: str, consumer: str, **options: str) -> str:
    name = checks.consumer_bytes(consumer).decode()
    return _group_path(stream, group, "consumer", name, **options)
