"""Roles: what a group of connections does to the broker.

A role is a plain description that travels to the load process; there it becomes one exchange per
connection. Exchanges of one role share a tally, and pushers share the counter of requests, so that
no two connections ever send the same message.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.load import Tally
from benchmarks.messages import (
    MessagePool,
    PushBuffer,
    PushTable,
    get_request,
    partition_for,
    partition_name,
    post_head,
)

_TRANSACTION_ID = b'"transactionId":"'
_PARTITION_ID = b'"partitionId":"'
_LEASE_ID = b'"leaseId":"'
_ID_BYTES = 36
_FRAMES = "application/vnd.queen.segment"


class _PushAnswers:
    """The answers to pushes of one size, counted."""

    holding = False

    def __init__(self, per_request: int, tally: Tally) -> None:
        self.tally = tally
        self._per_request = per_request
        self._answers = 0

    def answered(self, status: int, body: bytearray, start: int, end: int) -> bool:
        self._answers += 1
        # A duplicate costs the broker less than a message, so it must not pass for one. Scanning
        # an answer costs a third of the whole request: one in sixteen is enough to notice.
        looked_at = self._answers % 16 == 1
        if status not in (200, 201) or (looked_at and body.find(b'"duplicate"', start, end) >= 0):
            self.tally.fail(status, bytes(body[start:end]))
        else:
            self.tally.messages += self._per_request
        return True


@dataclass(frozen=True)
class Push:
    """Push JSON, one partition per request, the partitions in turn."""

    queue: str
    partitions: int
    per_request: int
    connections: int
    max_requests: int | None = None

    def exchanges(self, host: str, seed: int) -> list["PushExchange"]:
        table = PushTable(MessagePool(seed), self.queue, self.partitions, self.per_request)
        tally = Tally()
        serials = iter(range(self.max_requests)) if self.max_requests else itertools.count()
        return [
            PushExchange(PushBuffer(table, host), self.per_request, serials, tally)
            for _ in range(self.connections)
        ]


class PushExchange(_PushAnswers):
    def __init__(
        self, buffer: PushBuffer, per_request: int, serials: Iterator[int], tally: Tally
    ) -> None:
        super().__init__(per_request, tally)
        self._buffer = buffer
        self._serials = serials

    def request(self) -> bytearray | None:
        serial = next(self._serials, None)
        return None if serial is None else self._buffer.fill(serial)


@dataclass(frozen=True)
class PushFrames:
    """Push segment frames, one per request. They are compressed, so they cannot be patched in place
    and all are encoded before the clock starts; the run ends early when they have been sent."""

    queue: str
    partitions: int
    per_request: int
    connections: int
    frames: int

    def exchanges(self, host: str, seed: int) -> list["FrameExchange"]:
        requests = iter(self._encode(host, MessagePool(seed)))
        tally = Tally()
        return [FrameExchange(self.per_request, requests, tally) for _ in range(self.connections)]

    def _encode(self, host: str, pool: MessagePool) -> list[bytes]:
        from benchmarks.frames import MEDIA_TYPE, frame

        requests = []
        for serial in range(self.frames):
            body = frame(
                self.queue,
                partition_name(partition_for(serial, self.partitions)),
                pool.transaction_ids(serial, self.per_request),
                pool.payload_run(serial, self.per_request),
            )
            requests.append(post_head("/api/v1/push", host, len(body), MEDIA_TYPE) + body)
        return requests


class FrameExchange(_PushAnswers):
    def __init__(self, per_request: int, requests: Iterator[bytes], tally: Tally) -> None:
        super().__init__(per_request, tally)
        self._requests = requests

    def request(self) -> bytes | None:
        request = next(self._requests, None)
        self.tally.exhausted = request is None
        return request


@dataclass(frozen=True)
class Pop:
    """Pop batches from any partition; with `ack`, acknowledge each in a request of its own."""

    queue: str
    group: str
    connections: int
    ack: bool
    batch: int = 100
    wait_ms: int = 0
    """0: ask without waiting. More: a long poll, for a queue that is being filled."""
    available: int | None = None
    """How many messages there are to read. The run ends when they have been popped."""

    def exchanges(self, host: str, seed: int) -> list["PopExchange"]:
        tally = Tally()
        wait = f"wait=true&timeout={self.wait_ms}" if self.wait_ms else "wait=false"
        pop = get_request(
            f"/api/v1/pop/queue/{self.queue}?batch={self.batch}&{wait}&partitions=1"
            f"&consumerGroup={self.group}&autoAck={'false' if self.ack else 'true'}",
            host,
        )
        return [PopExchange(self, pop, host, tally) for _ in range(self.connections)]


@dataclass
class Batch:
    """What the ack of one popped batch needs to know."""

    transaction_ids: list[bytes] = field(default_factory=list)
    partition_id: bytes = b""
    lease_id: bytes = b""


def read_batch(body: bytearray, start: int, end: int) -> Batch:
    """Cut the ids out of a pop's answer without parsing it.

    All messages of a pop with `partitions=1` are of one partition and under one lease, so the first
    of each will do. What this costs is in README.md.
    """
    runs = bytes(memoryview(body)[start:end]).split(_TRANSACTION_ID)
    return Batch(
        [run[:_ID_BYTES] for run in itertools.islice(runs, 1, None)],
        _text_after(_PARTITION_ID, body, start, end),
        _text_after(_LEASE_ID, body, start, end),
    )


def _text_after(key: bytes, body: bytearray, start: int, end: int) -> bytes:
    begin = body.index(key, start, end) + len(key)
    return bytes(body[begin : body.index(b'"', begin, end)])


def check_batch(batch: Batch, body: bytes) -> None:
    """Compare the cheap reading with a real one; the first answer of each connection is checked."""
    messages = json.loads(body)["messages"]
    real = [
        (m["transactionId"].encode(), m["partitionId"].encode(), m["leaseId"].encode())
        for m in messages
    ]
    cheap = [(t, batch.partition_id, batch.lease_id) for t in batch.transaction_ids]
    assert real == cheap, f"the pop's answer is not what the load generator expects: {body[:500]!r}"


class AckFormat:
    """Builds the body of `ack/batch` with one join."""

    def __init__(self, group: str, host: str) -> None:
        self._group = group.encode()
        self._host = host

    def request(self, batch: Batch) -> bytes:
        rest = b'","partitionId":"%b","leaseId":"%b","status":"completed"}' % (
            batch.partition_id,
            batch.lease_id,
        )
        items = (rest + b',{"transactionId":"').join(batch.transaction_ids)
        body = b'{"consumerGroup":"%b","acknowledgments":[{"transactionId":"%b%b]}' % (
            self._group,
            items,
            rest,
        )
        return post_head("/api/v1/ack/batch", self._host, len(body)) + body


class PopExchange:
    def __init__(self, role: Pop, pop: bytes, host: str, tally: Tally) -> None:
        self.tally = tally
        self.holding = False
        self._role = role
        self._pop = pop
        self._ack = AckFormat(role.group, host)
        self._batch = Batch()
        self._checked = False

    def request(self) -> bytes:
        return self._ack.request(self._batch) if self.holding else self._pop

    def answered(self, status: int, body: bytearray, start: int, end: int) -> bool:
        if self.holding:
            self._acked(status, body, start, end)
            return True
        if status == 200:
            self._popped(body, start, end)
            return True
        if status == 204:
            self.tally.empty += 1
        else:
            self.tally.fail(status, bytes(body[start:end]))
        return self._role.wait_ms > 0

    def _popped(self, body: bytearray, start: int, end: int) -> None:
        if not self._role.ack:
            self._count(body.count(_TRANSACTION_ID, start, end))
            return
        self._batch = read_batch(body, start, end)
        if not self._checked:
            check_batch(self._batch, bytes(body[start:end]))
            self._checked = True
        self.holding = True

    def _acked(self, status: int, body: bytearray, start: int, end: int) -> None:
        self.holding = False
        expected = len(self._batch.transaction_ids)
        if status == 200 and body.count(b'"completed"', start, end) >= expected:
            self._count(expected)
        else:
            self.tally.fail(status, bytes(body[start:end]))

    def _count(self, messages: int) -> None:
        self.tally.messages += messages
        available = self._role.available
        self.tally.exhausted = available is not None and self.tally.messages >= available


@dataclass(frozen=True)
class Fetch:
    """Stream all frames of a queue, again and again; the answers are counted and thrown away."""

    queue: str
    connections: int

    def exchanges(self, host: str, seed: int) -> list["FetchExchange"]:
        tally = Tally()
        fetch = get_request(f"/api/v1/fetch/queue/{self.queue}", host)
        return [FetchExchange(fetch, tally) for _ in range(self.connections)]


class FetchExchange:
    holding = False

    def __init__(self, fetch: bytes, tally: Tally) -> None:
        self.tally = tally
        self._fetch = fetch

    def request(self) -> bytes:
        return self._fetch

    def answered(self, status: int, body: bytearray, start: int, end: int) -> bool:
        if status == 200:
            # One whole queue; the scenario knows how many messages that is.
            self.tally.messages += 1
        else:
            self.tally.fail(status, bytes(body[start:end]))
        return True


@dataclass(frozen=True)
class PopFrames:
    """Pop batches as leased frames; with `ack`, acknowledge each as a span of offsets."""

    queue: str
    group: str
    connections: int
    ack: bool
    batch: int = 100
    available: int | None = None

    def exchanges(self, host: str, seed: int) -> list["PopFramesExchange"]:
        tally = Tally()
        pop = get_request(
            f"/api/v1/pop/queue/{self.queue}?batch={self.batch}&wait=false&partitions=1"
            f"&consumerGroup={self.group}&autoAck={'false' if self.ack else 'true'}",
            host,
            accept=_FRAMES,
        )
        return [PopFramesExchange(self, pop, host, tally) for _ in range(self.connections)]


class PopFramesExchange:
    def __init__(self, role: PopFrames, pop: bytes, host: str, tally: Tally) -> None:
        self.tally = tally
        self.holding = False
        self._role = role
        self._pop = pop
        self._host = host
        self._ack = b""
        self._leased = 0

    def request(self) -> bytes:
        return self._ack if self.holding else self._pop

    def answered(self, status: int, body: bytearray, start: int, end: int) -> bool:
        if self.holding:
            self.holding = False
            if status == 200 and body.find(b'"success":true', start, end) >= 0:
                self._count(self._leased)
            else:
                self.tally.fail(status, bytes(body[start:end]))
            return True
        if status == 200:
            self._popped(body, start)
            return True
        if status == 204:
            self.tally.empty += 1
        else:
            self.tally.fail(status, bytes(body[start:end]))
        return False

    def _popped(self, body: bytearray, start: int) -> None:
        # A mark, a version and three zeros, the size of the head, the head; then the frames.
        size = int.from_bytes(body[start + 8 : start + 12], "little")
        head = json.loads(body[start + 12 : start + 12 + size])
        (claim,) = head["claims"]
        run = [claim["firstOffset"], claim["endOffset"]]
        self._leased = run[1] - run[0]
        if not self._role.ack:
            self._count(self._leased)
            return
        span = {"partitionId": claim["partitionId"], "leaseId": head["leaseId"], "done": [run]}
        acks = json.dumps({"consumerGroup": self._role.group, "spans": [span]}).encode()
        self._ack = post_head("/api/v1/ack/spans", self._host, len(acks)) + acks
        self.holding = True

    def _count(self, messages: int) -> None:
        self.tally.messages += messages
        available = self._role.available
        self.tally.exhausted = available is not None and self.tally.messages >= available


Role = Push | PushFrames | Pop | PopFrames | Fetch
