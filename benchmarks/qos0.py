"""`python -m benchmarks.qos0`: what the spool of a server saves, and how fast it is drained.

    latency        one connection, one message a push: durable and QoS 0 in turn, round by round
    transactions   1,000 events a second for a while: what PostgreSQL commits, durable and QoS 0
    recovery       a spool with many records is found at the start: how fast it is drained, and how
                   many live pushes get through meanwhile, beside their rate before and after

.venv/bin/python -m benchmarks.qos0
.venv/bin/python -m benchmarks.qos0 --only recovery --records 1000000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.broker import Broker
from queen.service.log.append import Append
from queen.service.spooling.records import KIND_ITEMS, encode_append
from queen.spool import Spool, SpoolRoot

_FOLDER = Path(__file__).resolve().parent.parent / ".bench"
_PAYLOAD = {"user": 7, "kind": "click", "page": "/products/1042", "at": 1700000000, "ok": True}


_ANSWER_BYTES = 64 * 1024


class Pusher:
    """One keep-alive connection, on a plain socket: an HTTP library would take as long as the
    server."""

    def __init__(self, port: int, queue: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._queue = queue

    def request(self, partition: str = "p", **how: Any) -> bytes:
        """Return the bytes of a push of one message."""
        item = {
            "queue": self._queue,
            "partition": partition,
            "transactionId": str(uuid.uuid4()),
            "payload": _PAYLOAD,
        }
        body = json.dumps({"items": [item], **how}).encode()
        head = "POST /api/v1/push HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def push(self, partition: str = "p", **how: Any) -> None:
        status, _ = self.send(self.request(partition, **how))
        if status not in (201, 202):
            raise RuntimeError(f"a push was answered {status}")

    def send(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; return the status and the body of its answer."""
        self._socket.sendall(request)
        data = self._socket.recv(_ANSWER_BYTES)
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(body) < length:
            body += self._socket.recv(_ANSWER_BYTES)
        return int(data[9:12]), body

    def get(self, path: str) -> Any:
        return json.loads(self.send(f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())[1])


def measure_latency(port: int, rounds: int) -> None:
    """In turn, each with a partition of its own; and a request that does nothing, beside them."""
    pusher = Pusher(port, "latency")
    nothing = b"GET /health/live HTTP/1.1\r\nHost: bench\r\n\r\n"
    requests: dict[str, Callable[[], bytes]] = {
        "durable": lambda: pusher.request("durable"),
        "QoS 0": lambda: pusher.request("QoS 0", qos0=True),
        "nothing": lambda: nothing,
    }
    took: dict[str, list[float]] = {name: [] for name in requests}
    for _ in range(rounds):
        for name, made in requests.items():
            for request in [made() for _ in range(200)]:
                started = time.perf_counter()
                pusher.send(request)
                took[name].append(time.perf_counter() - started)
    print(f"{'one connection':<20}{'p50 µs':>10}{'p99 µs':>10}{'per second':>12}")
    for name, times in took.items():
        p50, p99 = statistics.median(times), statistics.quantiles(times, n=100)[98]
        print(f"{name:<20}{p50 * 1e6:>10.0f}{p99 * 1e6:>10.0f}{len(times) / sum(times):>12,.0f}")
    ratio = statistics.median(took["QoS 0"]) / statistics.median(took["durable"])
    print(f"p50 of QoS 0 is 1/{1 / ratio:.1f} of a durable push (aim: 1/10)\n")


async def measure_transactions(broker: Broker, seconds: float) -> None:
    """The same events, durable and buffered; what PostgreSQL does by itself is taken off."""
    idle = await _committed_during(broker, lambda: time.sleep(seconds / 3))
    print(f"{'1,000 events/s':<20}{'events':>10}{'commits':>10}")
    spent: dict[str, float] = {}
    # Sessions that are idle tell late what they did: what commits more comes last.
    for name, how in (("QoS 0", {"qos0": True}), ("durable", {})):
        pusher = Pusher(broker.port, "transactions")
        events = [0]

        def run(pusher: Pusher = pusher, how: Any = how, events: list[int] = events) -> None:
            events[0] = _push_at(pusher, 1000, seconds, how)

        committed = max(await _committed_during(broker, run) - idle * 3, 1)
        # One connection may not push as many durably.
        spent[name] = committed / events[0]
        print(f"{name:<20}{events[0]:>10,}{committed:>10,.0f}")
    ratio = spent["durable"] / spent["QoS 0"]
    print(f"an event of QoS 0 costs 1/{ratio:.0f} of the commits (aim: 1/50)\n")


def _push_at(pusher: Pusher, per_second: float, seconds: float, how: dict[str, Any]) -> int:
    """Push one event after the other, as fast as told, or as fast as it goes."""
    began, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        if count < passed * per_second:
            pusher.push(f"p{count % 10}", **how)
            count += 1
        else:
            time.sleep(0.0005)
    return count


async def _committed_during(broker: Broker, work: Callable[[], None]) -> float:
    connection = await broker.postgres.connect("queen")
    try:
        # Sessions tell what they did with their next transaction, at most once a second.
        await asyncio.sleep(5)
        before = await _commits(connection)
        await asyncio.to_thread(work)
        await asyncio.sleep(5)
        return await _commits(connection) - before
    finally:
        await connection.close()


async def _commits(connection: asyncpg.Connection) -> float:
    await connection.execute("select pg_stat_clear_snapshot()")
    query = "select xact_commit from pg_stat_database where datname = current_database()"
    return float(await connection.fetchval(query))


def measure_recovery(records: int, partitions: int) -> None:
    """Fill a spool as a killed server leaves it, then start a server with it under load."""
    with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
        data, spool = Path(folder) / "data", Path(folder) / "spool"
        _fill(spool, records, partitions)
        port = _free_port()
        server = _serve(data, spool, port)
        try:
            began = time.perf_counter()
            live = _Live(port)
            drained_at = _wait_until_drained(port)
            during = live.rate()
            live.reset()
            time.sleep(5)
            after = live.rate()
            live.stop()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
    took = drained_at - began
    print(
        f"{records:,} records of {partitions:,} partitions: {took:.1f} s from the first answer on"
    )
    print(f"  drained {records / took:,.0f} a second (aim: 50,000)")
    print(f"  live pushes {during:,.0f} a second meanwhile, {after:,.0f} after it: "
          f"{during / after:.2f} (aim: 0.5)\n")  # fmt: skip


def _fill(folder: Path, records: int, partitions: int) -> None:
    spool = Spool(SpoolRoot(folder, "embedded").claim())
    payload = json.dumps(_PAYLOAD).encode()
    for start in range(0, records, 1000):
        bodies = [
            encode_append(
                Append("old", f"p{n % partitions}", [str(uuid.uuid4()).encode()], [payload], 100)
            )
            for n in range(start, min(start + 1000, records))
        ]
        spool.append(bodies, KIND_ITEMS, durable=False)
    spool.close()


class _Live:
    """Durable pushes, one after the other on four connections."""

    def __init__(self, port: int) -> None:
        self._stopping = threading.Event()
        self._counts = [0] * 4
        self.reset()
        self._threads = [
            threading.Thread(target=self._push, args=(port, number)) for number in range(4)
        ]
        for thread in self._threads:
            thread.start()

    def _push(self, port: int, number: int) -> None:
        pusher = Pusher(port, "live")
        with suppress(OSError):
            while not self._stopping.is_set():
                pusher.push(f"p{number}")
                self._counts[number] += 1

    def reset(self) -> None:
        self._counts = [0] * 4
        self._began = time.perf_counter()

    def rate(self) -> float:
        return sum(self._counts) / (time.perf_counter() - self._began)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


def _serve(data: Path, spool: Path, port: int) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).parent / "queen"), "serve", "--port", str(port)]
    command += ["--data-dir", str(data), "--spool-dir", str(spool)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        try:
            Pusher(port, "x").get("/health/live")
            return server
        except OSError:
            time.sleep(0.02)


def _wait_until_drained(port: int) -> float:
    watcher = Pusher(port, "x")
    while True:
        state = watcher.get("/api/v1/spool")
        if state["counted"] and state["records"] == 0:
            return time.perf_counter()
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.qos0", description=__doc__)
    parser.add_argument("--only", default="", help="latency, transactions or recovery")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=100)
    given = parser.parse_args()
    os.environ.pop("QUEEN_SPOOL_DIR", None)
    _FOLDER.mkdir(exist_ok=True)
    if given.only in ("", "latency", "transactions"):
        with Broker(_FOLDER) as broker:
            if given.only != "transactions":
                measure_latency(broker.port, given.rounds)
            if given.only != "latency":
                asyncio.run(measure_transactions(broker, given.seconds))
    if given.only in ("", "recovery"):
        measure_recovery(given.records, given.partitions)


if __name__ == "__main__":
    main()
