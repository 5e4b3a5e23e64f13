"""The load generator: raw sockets, one request in flight on each, nothing but bytes.

A closed loop: a connection sends its next request when it has the whole answer to the last one.
Of an answer only the status and the content-length are read; what more is needed (the ids to
acknowledge, the number of messages popped) the exchange finds by scanning bytes.

Plain sockets on epoll. `asyncio.Protocol` on uvloop was measured beside it against a server that
answers a constant: equal within the noise with requests of 26 kB, 3 to 12 % slower with 300 bytes.
Of the bare loop's 9 µs per small request, two thirds are the kernel's.
"""

import gc
import re
import select
import socket
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

_RECEIVE_BYTES = 1 << 20
_CONTENT_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_LAST_CHUNK = b"\r\n0\r\n\r\n"
# An exchange that found nothing to do asks again after this time.
_RETRY_NS = 2_000_000
_SILENCE_LIMIT_S = 60.0


class LoadError(Exception):
    """The server closed a connection, or did not answer for a minute."""


@dataclass
class Tally:
    """What one role has done so far. Roles are compared before and after the measured interval."""

    messages: int = 0
    received_bytes: int = 0
    empty: int = 0
    errors: int = 0
    first_error: str = ""
    exhausted: bool = False
    latencies_ns: "array[int]" = field(default_factory=lambda: array("q"))

    def fail(self, status: int, body: bytes) -> None:
        self.errors += 1
        if not self.first_error:
            self.first_error = f"{status}: {body[:300].decode(errors='replace')}"


class Exchange(Protocol):
    """The conversation of one connection. It owns the bytes that it hands out."""

    tally: Tally
    holding: bool
    """True while the connection owes the server something, such as the ack of a lease."""

    def request(self) -> bytes | bytearray | None:
        """The next request, or None when there is nothing more to send."""

    def answered(self, status: int, body: bytearray, start: int, end: int) -> bool:
        """Take the answer in `body[start:end]`. False: nothing was there, ask again later."""


class Connection:
    """A socket and the answer that is arriving on it."""

    def __init__(self, address: tuple[str, int], exchange: Exchange) -> None:
        self.exchange = exchange
        self.sent_ns = 0
        self.answers = 0
        self.status = 0
        self.body_start = 0
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self.fileno = self._socket.fileno()
        self.buffer = bytearray(_RECEIVE_BYTES)
        self._view = memoryview(self.buffer)
        self.filled = 0
        self._needed = 0
        self._chunked = False
        self._unsent: memoryview | None = None

    def send(self, request: bytes | bytearray) -> bool:
        """Send, or begin to. False when the socket's buffer is full and a rest remains."""
        self.filled = self._needed = 0
        self._chunked = False
        self.sent_ns = time.perf_counter_ns()
        sent = self._socket.send(request)
        if sent == len(request):
            return True
        self._unsent = memoryview(request)[sent:]
        return False

    def send_rest(self) -> bool:
        if self._unsent is not None:
            sent = self._socket.send(self._unsent)
            self._unsent = self._unsent[sent:] if sent < len(self._unsent) else None
        return self._unsent is None

    def receive(self) -> bool:
        """Take what has arrived. True when the answer is whole."""
        got = self._socket.recv_into(self._view[self.filled :])
        if got == 0:
            raise LoadError("the server closed the connection")
        self.filled += got
        self.exchange.tally.received_bytes += got
        if not self._needed and not self._chunked and not self._read_head():
            return False
        if self._chunked:
            return self._skip_chunks()
        return self.filled >= self._needed

    def _read_head(self) -> bool:
        buffer = self.buffer
        end = buffer.find(b"\r\n\r\n", 0, self.filled)
        if end < 0:
            return False
        self.status = int(buffer[9:12])
        self.body_start = end + 4
        length = _CONTENT_LENGTH.search(buffer, 0, end)
        if length is not None:
            self._needed = self.body_start + int(length[1])
            self._reserve(self._needed)
        elif self.status == 204:
            self._needed = self.body_start
        else:
            self._chunked = True
        return True

    def _reserve(self, size: int) -> None:
        if size > len(self.buffer):
            grown = bytearray(size * 2)
            grown[: self.filled] = self._view[: self.filled]
            self.buffer = grown
            self._view = memoryview(grown)

    def _skip_chunks(self) -> bool:
        """Throw away a stream as it comes. With one request in flight its end is the last thing to
        arrive, so the chunks in between need no parsing."""
        if self.buffer.endswith(_LAST_CHUNK, max(0, self.filled - 64), self.filled):
            return True
        if self.filled > _RECEIVE_BYTES // 2:
            kept = self.buffer[self.filled - 64 : self.filled]
            self.buffer[:64] = kept
            self.filled = 64
            self.body_start = 0
        return False

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True)
class Mark:
    """The state of a role at one end of the measured interval."""

    messages: int
    requests: int
    received_bytes: int
    empty: int


def _mark(tally: Tally) -> Mark:
    return Mark(tally.messages, len(tally.latencies_ns), tally.received_bytes, tally.empty)


@dataclass(frozen=True)
class Interval:
    """The measured part of a run: one pair of marks for each tally that was given."""

    seconds: float
    cpu_seconds: float
    marks: list[tuple[Mark, Mark]]


class Run:
    """Drives the connections through warm-up, measurement and the last answers.

    The warm-up lasts until every connection has had an answer, however long that takes: the first
    request to a queue may have to create a great deal. Answers to what is in flight when the
    measurement ends are awaited and counted in the totals, not in the interval.
    """

    def __init__(
        self,
        connections: list[Connection],
        *,
        warmup_s: float,
        measure_s: float,
        on_phase: Callable[[str], None],
    ) -> None:
        self._connections = {connection.fileno: connection for connection in connections}
        self._tallies = list({id(c.exchange.tally): c.exchange.tally for c in connections}.values())
        self._warmup_ns = round(warmup_s * 1e9)
        self._measure_ns = round(measure_s * 1e9)
        self._on_phase = on_phase
        self._epoll = select.epoll()
        self._idle: deque[tuple[int, Connection]] = deque()
        self._unanswered = len(connections)
        self._open = 0
        self._began_ns = 0
        self._began_cpu = 0.0
        self._stopping = False
        self._before: list[Mark] = []
        self._interval: Interval | None = None

    def drive(self) -> Interval:
        gc.disable()
        for connection in self._connections.values():
            self._epoll.register(connection.fileno, select.EPOLLIN)
            self._open += 1
            self._next(connection)
        started_ns = time.perf_counter_ns()
        while self._open:
            self._turn()
            self._advance(started_ns)
        self._stop(time.perf_counter_ns())
        self._epoll.close()
        assert self._interval is not None
        return self._interval

    def _turn(self) -> None:
        timeout = _RETRY_NS / 1e9 if self._idle else _SILENCE_LIMIT_S
        events = self._epoll.poll(timeout)
        if not events and not self._idle:
            raise LoadError(f"no answer for {_SILENCE_LIMIT_S:.0f} s")
        connections = self._connections
        for fileno, event in events:
            connection = connections[fileno]
            if event & select.EPOLLOUT:
                if connection.send_rest():
                    self._epoll.modify(fileno, select.EPOLLIN)
            elif connection.receive():
                self._take(connection)
        self._wake_idle()

    def _take(self, connection: Connection) -> None:
        exchange = connection.exchange
        now = time.perf_counter_ns()
        exchange.tally.latencies_ns.append(now - connection.sent_ns)
        if connection.answers == 0:
            self._unanswered -= 1
        connection.answers += 1
        found = exchange.answered(
            connection.status, connection.buffer, connection.body_start, connection.filled
        )
        if found or self._stopping:
            self._next(connection)
        else:
            self._idle.append((now + _RETRY_NS, connection))

    def _next(self, connection: Connection) -> None:
        exchange = connection.exchange
        request = None if self._stopping and not exchange.holding else exchange.request()
        if request is None:
            self._close(connection)
        elif not connection.send(request):
            self._epoll.modify(connection.fileno, select.EPOLLIN | select.EPOLLOUT)

    def _close(self, connection: Connection) -> None:
        self._epoll.unregister(connection.fileno)
        connection.close()
        self._open -= 1

    def _wake_idle(self) -> None:
        now = time.perf_counter_ns()
        while self._idle and (self._stopping or self._idle[0][0] <= now):
            self._next(self._idle.popleft()[1])

    def _advance(self, started_ns: int) -> None:
        now = time.perf_counter_ns()
        if not self._began_ns:
            if not self._unanswered and now - started_ns >= self._warmup_ns:
                self._begin(now)
        elif not self._stopping and (
            now - self._began_ns >= self._measure_ns or any(t.exhausted for t in self._tallies)
        ):
            self._stop(now)

    def _begin(self, now: int) -> None:
        self._before = [_mark(tally) for tally in self._tallies]
        self._began_cpu = time.process_time()
        self._began_ns = now
        self._on_phase("measuring")

    def _stop(self, now: int) -> None:
        """End the measurement. A run that ended before it began has measured nothing."""
        if self._interval is not None:
            return
        if not self._began_ns:
            self._begin(now)
        self._stopping = True
        self._interval = Interval(
            seconds=max(now - self._began_ns, 1) / 1e9,
            cpu_seconds=time.process_time() - self._began_cpu,
            marks=[
                (before, _mark(tally))
                for before, tally in zip(self._before, self._tallies, strict=True)
            ],
        )
        self._on_phase("measured")
