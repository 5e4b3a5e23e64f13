"""`Queen`: the client of a broker, of one server or several.

async with Queen("http://localhost:6632") as queen:
    await queen.queue("orders").push({"total": 12})
    async for message in queen.queue("orders").group("billing").consume():
        ...
"""

from __future__ import annotations

import asyncio
import os
import ssl
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec

from queen.client import tracing
from queen.client.admin import Admin
from queen.client.camel_case import in_either_spelling
from queen.client.durations import Seconds
from queen.client.leases.acks import Acks, LostAcks, acks_of
from queen.client.names import default_name
from queen.client.pushing.batches import PushBatch
from queen.client.pushing.items import FramedMessage
from queen.client.pushing.pushes import Pushes
from queen.client.queues.buffers import Buffers
from queen.client.queues.consumer import Consumer
from queen.client.queues.messages import (
    Delivered,
    Message,
    Pushed,
    Received,
    by_server,
)
from queen.client.queues.partial_requests import (
    Outcome,
    outcomes_of,
    refusal,
)
from queen.client.queues.queue import Queue
from queen.client.queues.running import run_all
from queen.client.queues.transaction import Transaction
from queen.client.spooling.routing import try_or_spool
from queen.client.spooling.settings import SpoolSettings, complete_settings
from queen.client.streams.builder import Stream
from queen.client.streams.consumer import StreamConsumer
from queen.client.streams.processing import Processing
from queen.client.streams.window import Window
from queen.client.transport.cluster import Cluster, Patience
from queen.client.transport.errors_from_answer import decode_answer, is_worth_repeating
from queen.client.transport.signals import stop_on_signals
from queen.core.columns.headers import HEADERS
from queen.errors import (
    InvalidFrame,
    LeaseLost,
    NotFound,
    QueenError,
    SpoolFailed,
    SpoolFull,
    UnsupportedMedia,
)

if TYPE_CHECKING:
    # Loaded by those who have a spool, or tasks.
    from queen.client.spooling.spool import ClientSpool
    from queen.client.tasks.eager import EagerJobs
    from queen.client.tasks.task import BaseTask

AnyTask = TypeVar("AnyTask", bound="BaseTask[Any, Any]")

DEFAULT_URL = "http://localhost:6632"

_results = msgspec.json.Decoder(list[dict[str, Any]])
_any = msgspec.json.Decoder()

# Queue, partition, and messages.
NamedFrame = tuple[str, str, list[FramedMessage]]


class Queen:
    """A client. It is cheap, keeps its connections, and belongs to one event loop.

    `url` is one server or several of the same broker; without it `QUEEN_URL` is asked (several
    are separated by commas), then `http://localhost:6632`. `token`, or `QUEEN_TOKEN`, is sent as
    a bearer token. An answer may take `timeout_s`, beside what a pop was told to wait; what
    failed in a way that may pass is sent again for up to `retry_s`. `admin` has the calls of
    operators.

    With `spool`, the path of a folder, pushes that no server can take now are kept in files there
    and sent later; they are answered `buffered`. `spool_options` is a dict: `max_bytes` and
    `min_free_bytes` limit the folder, `broker` names whom its records are for, `try_s` is how long
    a push is tried, `close_s` how long `close` sends what waits. `queen.spool` tells of it.

    What is consumed comes as it is stored, in frames, from a server that knows them; without
    `frames` it comes in JSON.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        retry_s: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
        spool: str | os.PathLike[str] | None = None,
        spool_options: SpoolSettings | None = None,
        frames: bool = True,
    ) -> None:
        url = url or os.environ.get("QUEEN_URL", DEFAULT_URL).split(",")
        urls = [url] if isinstance(url, str) else list(url)
        token = token or os.environ.get("QUEEN_TOKEN") or None
        self.cluster = Cluster(
            urls, token, Patience(answer_s=timeout_s, retry_s=retry_s), ssl_context
        )
        # By which its leases are known, unless a consumer has a name of its own.
        self.consumer_name = default_name()
        self.buffers = Buffers(self)
        self.admin = Admin(self)
        self.consumers: list[Consumer[Received] | Processing[Window]] = []
        # What functions are tasks, by queue and name.
        self.tasks: dict[str, dict[str, BaseTask[Any, Any]]] = {}
        # Runs jobs at once, in tests that ask for it.
        self.eager_jobs: EagerJobs | None = None
        # What loops that were left still have to say.
        self.endings: set[asyncio.Task[None]] = set()
        self._speaks_frames: bool | None = None
        self.consumes_frames = frames
        # What no server could take; None without the option.
        self.spool = None if spool is None else _open_spool(self.cluster, spool, spool_options)
        self.pushes = Pushes(self.cluster, self.spool)

    async def __aenter__(self) -> Queen:
        if self.spool is not None:
            self.spool.start()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what is buffered, then hang up. What still waits in the spool stays there."""
        try:
            if self.endings:
                await asyncio.wait(self.endings)
            await self.buffers.close()
        finally:
            try:
                if self.spool is not None:
                    await self.spool.close()
            finally:
                self.cluster.close()

    # ---- builders ----

    def queue(self, name: str | None = None) -> Queue:
        """A queue; without a name, all queues of a namespace and task."""
        return Queue(self, name)

    def stream(self, name: str, namespace: str = "") -> Stream:
        """A stream: windows over queues, to define and to look at."""
        return Stream(self, name, namespace)

    def consumer(self, stream: str, group: str) -> StreamConsumer:
        """A consumer of the windows of a stream; each group gets every window."""
        return StreamConsumer(self, stream, group)

    def transaction(self) -> Transaction:
        """Acks and pushes that happen together: `async with queen.transaction() as transaction`."""
        return Transaction(self)

    def add_task(self, task: AnyTask) -> AnyTask:
        """Make a task known to workers; one of the same name takes its place."""
        self.tasks.setdefault(task.queue._require_name(), {})[task.name] = task
        return task

    async def run(self) -> None:
        """Run every consumer that was registered, until SIGTERM or SIGINT."""

        def stop() -> None:
            for consumer in self.consumers:
                consumer.stop()

        with stop_on_signals(stop):
            await run_all([consumer.run() for consumer in self.consumers], stop)

    # ---- producing ----

    async def push(
        self,
        queue: str,
        partition: str,
        messages: list[Message],
        qos0: Mapping[str, Any] | None = None,
    ) -> list[Pushed]:
        """Store messages. `qos0` says how the server may buffer them."""
        return await self.pushes.push(PushBatch.of_messages(queue, partition, messages), qos0)

    async def push_frames(
        self, named: Sequence[tuple[str, str, Sequence[tuple[Any, ...]]]]
    ) -> list[dict[str, Any]]:
        """Store whole segments: queue, partition, and of each message its id, its payload and
        perhaps its headers as JSON. They go as JSON to a broker that does not know frames. Those
        that a server does not take for now are sent again, and only those."""
        frames: list[NamedFrame] = [
            (queue, partition, [FramedMessage(*message) for message in messages])
            for queue, partition, messages in named
        ]
        results: dict[int, dict[str, Any]] = {}
        left = list(range(len(frames)))
        deadline = time.monotonic() + self.cluster.retry_s
        while left:
            unstored = [frames[at] for at in left]
            outcomes = await self.try_frames(unstored, deadline - time.monotonic())
            latest = dict(zip(left, outcomes, strict=True))
            results |= {at: outcome.result for at, outcome in latest.items()}
            left = [at for at, outcome in latest.items() if not outcome.is_stored]
            failed = next(
                (outcome.error for outcome in latest.values() if self._is_final(outcome)), None
            )
            if failed is None and left and time.monotonic() > deadline:
                failed = next((outcome.error for outcome in latest.values() if outcome.error), None)
            if failed is not None:
                failed.details["results"] = [results[at] for at in range(len(frames))]
                raise failed
        return [results[at] for at in range(len(frames))]

    def _is_final(self, outcome: Outcome) -> bool:
        """Whether a frame is not sent again: it is refused, or not even the spool has room."""
        is_unkept = self.spool is not None and isinstance(outcome.error, SpoolFull | SpoolFailed)
        return outcome.is_refused_for_good or is_unkept

    async def try_frames(self, frames: list[NamedFrame], retry_s: float) -> list[Outcome]:
        """Send whole segments once, or put them into the spool if no server can take them; return
        what became of each. Raises what is wrong with all."""
        if self.spool is None:
            return await self._send_frames(frames, retry_s)
        return await try_or_spool(self.spool, frames, lambda some: self._send_frames(some, retry_s))

    async def _send_frames(self, frames: list[NamedFrame], retry_s: float) -> list[Outcome]:
        if self._speaks_frames is None:
            self._speaks_frames = await self._ask_for_frames()
        if not self._speaks_frames:
            return await self._try_as_json(frames)
        from queen.core.frame import CONTENT_TYPE

        body = _encode_frames(frames)
        key, kind = ":".join(frames[0][:2]), CONTENT_TYPE.encode()
        try:
            answer = await self.pushes.send(body, key, retry_s, kind)
        except QueenError as error:
            outcomes = outcomes_of(error, [queue for queue, _, _ in frames])
            if outcomes is None:
                raise
            return outcomes
        return [Outcome(result) for result in decode_answer(_results, answer)]

    async def _ask_for_frames(self) -> bool:
        """Ask whether the broker is one of ours, which takes frames."""
        retry_s, answer_s = (None, None) if self.spool is None else (0.0, self.spool.try_s)
        try:
            answer = await self.cluster.call(
                "GET", "/health/ready", retry_s=retry_s, answer_s=answer_s
            )
        except (NotFound, UnsupportedMedia):
            return False
        health = decode_answer(_any, answer) if answer.body else None
        return isinstance(health, dict) and health.get("server") == "Queen"

    async def _try_as_json(self, frames: list[NamedFrame]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        failed: QueenError | None = None
        for frame in frames:
            if failed is None or not is_worth_repeating(failed):
                try:
                    outcomes.append(Outcome(await self._push_as_json(*frame)))
                    continue
                except QueenError as error:
                    failed = error
            outcomes.append(Outcome(refusal(failed), failed))
        return outcomes

    async def _push_as_json(
        self, queue: str, partition: str, many: list[FramedMessage]
    ) -> dict[str, Any]:
        items = [message.item(queue, partition) for message in many]
        body = msgspec.json.encode({"items": items})
        answer = await self.pushes.send(body, f"{queue}:{partition}", self.cluster.retry_s)
        results = decode_answer(_results, answer)
        repeated = [at for at, result in enumerate(results) if result.get("status") == "duplicate"]
        return {"status": "queued", "duplicates": repeated}

    async def flush(self) -> None:
        """Return when everything that was buffered is stored, and all that waits in the spool."""
        await self.buffers.flush()
        if self.spool is not None:
            await self.spool.drained()

    # ---- settling ----

    async def ack(
        self,
        messages: Delivered | Sequence[Delivered],
        status: str = "completed",
        *,
        error: str | BaseException | None = None,
        delay: Seconds | None = None,
    ) -> None:
        """Say what became of messages; raises `LeaseLost` when some were no longer ours. What comes
        again does so after `delay`, if it is given, instead of what the queue says."""
        many = [messages] if isinstance(messages, Delivered) else list(messages)
        if not many:
            return
        lost = LostAcks()
        for server, of_server in by_server(many).items():
            acks = acks_of(of_server, status, error, delay)
            headers = (message.headers for message in of_server)
            with tracing.settling(of_server[0].queue, len(of_server), (), headers):
                lost = lost.plus(await self.settle(acks, of_server[0].consumer_group, server))
            for message in of_server:
                message._note_outcome(status)
        if lost.messages:
            raise LeaseLost(
                f"{lost.messages} of {len(many)} messages were no longer leased to us: {lost.error}"
            )

    async def nack(
        self,
        messages: Delivered | Sequence[Delivered],
        error: str | BaseException | None = None,
        *,
        delay: Seconds | None = None,
    ) -> None:
        """Give messages back as failed; `delay` is how long they wait, instead of what the queue
        says."""
        await self.ack(messages, "failed", error=error, delay=delay)

    async def settle(self, acks: Acks, group: str | None, server: str = "") -> LostAcks:
        """Send acknowledgments together, to the server that granted their lease if it is known;
        return how many came too late."""
        return await acks.send(self.cluster, group, server)

    async def renew(self, lease: Delivered | str, seconds: int | None = None) -> datetime:
        """Prolong a lease; raises `LeaseLost` when it is over."""
        lease_id, server = (
            (lease, "") if isinstance(lease, str) else (lease.lease_id, lease._server)
        )
        return await self.renew_within(lease_id, server, seconds, None)

    async def renew_within(
        self, lease_id: str, server: str, seconds: int | None, within_s: float | None
    ) -> datetime:
        """Prolong a lease, and do not try for longer than is worth it."""
        path = f"/api/v1/lease/{quote(lease_id, safe='')}/extend"
        body = {"seconds": seconds} if seconds else {}
        try:
            answer = await self.post(path, body, server=server, within_s=within_s)
        except NotFound as error:
            raise LeaseLost(error.message) from None
        if "newExpiresAt" not in answer:
            # The original broker only says for how long.
            return datetime.now(UTC) + timedelta(seconds=answer.get("seconds", 0))
        return datetime.fromisoformat(answer["newExpiresAt"])

    async def trace(
        self,
        message: Delivered,
        data: Any,
        *,
        names: str | Iterable[str] = (),
        event: str = "info",
    ) -> None:
        """Record what happened to a message."""
        body = {
            "transactionId": message.transaction_id,
            "partitionId": message.partition_id,
            "consumerGroup": message.consumer_group,
            "data": data,
            "traceNames": [names] if isinstance(names, str) else list(names),
            "eventType": event,
        }
        await self.post("/api/v1/traces", body)

    # ---- plain requests ----

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send any request; return its answer decoded, None when it is empty. Its keys are those of
        the HTTP reference, and are found in Python's spelling too: `answer["lease_time"]`."""
        text = b"" if body is None else msgspec.json.encode(body)
        answer = await self.cluster.call(method, path, text)
        return in_either_spelling(decode_answer(_any, answer)) if answer.body else None

    async def post(
        self, path: str, body: Any, *, server: str = "", within_s: float | None = None
    ) -> Any:
        """Send a POST request with a JSON body; return its answer decoded. `server` is asked
        first; it is tried for `within_s` seconds, or as long as anything else."""
        text = msgspec.json.encode(body)
        # A server that hangs leaves time to ask another one.
        answer_s = within_s and within_s / 2
        answer = await self.cluster.call(
            "POST", path, text, first=server, retry_s=within_s, answer_s=answer_s
        )
        return decode_answer(_any, answer) if answer.body else None


def _open_spool(
    cluster: Cluster, path: str | os.PathLike[str], options: SpoolSettings | None
) -> ClientSpool:
    try:
        from queen.client.spooling.spool import ClientSpool
    except ModuleNotFoundError as error:
        if error.name != "fcntl":
            raise
        raise ValueError(
            "a client has a spool on Unix only: on this system, leave it out"
        ) from None
    return ClientSpool(cluster, Path(path), complete_settings(options))


def _encode_frame(queue: str, partition: str, messages: list[FramedMessage]) -> bytes:
    from queen.core.frame import encode_frame

    ids, payloads, headers = zip(*messages, strict=True)
    return encode_frame(
        queue, partition, ids, payloads, {HEADERS: headers} if any(headers) else None
    )


def _encode_frames(frames: list[NamedFrame]) -> bytes:
    try:
        return b"".join(_encode_frame(*frame) for frame in frames)
    except (ValueError, TypeError, AttributeError, struct.error) as error:
        # A lone surrogate, a name of megabytes, an id that is no text: as a server would say it,
        # so that whoever has sent others along finds out which it is.
        raise InvalidFrame(f"a name or an id cannot be written: {error}") from None
