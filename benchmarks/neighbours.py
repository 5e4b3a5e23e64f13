"""`python -m benchmarks.neighbours`: what a neighbour's trouble costs the pushes of other queues.

Pushes to one queue are measured in turns, undisturbed and while something happens beside them on
the same server:

    locked      a partition of another queue is locked, and clients push to it
    forever     another queue, of two million messages, turns to `dedup: forever`
    unreadable  a client repeats an id whose stored message cannot be read
    readable    a client repeats an id whose stored message can be read: what it costs that there
                is such a client at all, on a machine that it shares with the server

Each row is the median of the disturbed turns against that of the undisturbed ones around them.
"""

import argparse
import asyncio
import http.client
import json
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.broker import Broker
from benchmarks.jobs import BenchError, HttpJob, run_job
from benchmarks.report import machine
from benchmarks.roles import Push, PushFrames

_FOLDER = Path(__file__).resolve().parent.parent / ".bench"
_NEAR, _FAR, _BIG, _BAD, _GOOD = "near", "far", "big", "bad", "good"
_FRAME_MESSAGES = 1000
_WARMUP_S = 0.5
_DISTURBERS = 4


def _rate(broker: Broker, seconds: float, seed: int) -> float:
    roles = (Push(_NEAR, 20, 10, 16),)
    result = run_job(HttpJob(broker.port, roles, _WARMUP_S, seconds, seed), broker.usage())
    if result.roles[0].errors:
        raise BenchError(result.roles[0].first_error)
    return result.roles[0].messages / result.seconds


def _post(port: int, path: str, body: object) -> None:
    """Send a request; what is answered is not the matter here."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with suppress(OSError, http.client.HTTPException):
        connection.request("POST", path, json.dumps(body))
        connection.getresponse().read()
    connection.close()


def _push(port: int, queue: str, transaction_id: str) -> None:
    item = {"queue": queue, "payload": 1, "transactionId": transaction_id}
    _post(port, "/api/v1/push", {"items": [item]})


@contextmanager
def _beside(work: Callable[[int], None], threads: int) -> Iterator[None]:
    """Repeat some work in threads for as long as something else goes on."""
    stop = threading.Event()

    def repeat(number: int) -> None:
        while not stop.is_set():
            work(number)

    running = [threading.Thread(target=repeat, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in running:
            thread.join()


class Trouble:
    """What can happen beside the pushes."""

    def __init__(self, broker: Broker, runner: asyncio.Runner) -> None:
        self._broker = broker
        self._run = runner.run
        self._database = self._run(broker.postgres.connect("queen"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        _push(self._broker.port, _FAR, "first")
        self._run(self._database.execute("begin"))
        self._run(
            self._database.execute(
                "select 1 from queen.partitions p join queen.queues q on q.id = p.queue_id"
                f" where q.name = '{_FAR}' for update of p"
            )
        )
        port = self._broker.port
        with _beside(lambda number: _push(port, _FAR, f"{number}"), _DISTURBERS):
            try:
                yield
            finally:
                self._run(self._database.execute("rollback"))

    @contextmanager
    def forever(self) -> Iterator[None]:
        port = self._broker.port
        self._broker.configure(_BIG, "window")
        self._run(self._database.execute("truncate queen.dedup_index"))
        turn = {"queue": _BIG, "options": {"dedup": "forever"}}
        turning = threading.Thread(target=_post, args=(port, "/api/v1/configure", turn))
        turning.start()
        yield
        turning.join()

    @contextmanager
    def readable(self) -> Iterator[None]:
        port = self._broker.port
        with _beside(lambda _: _push(port, _GOOD, "same"), 1):
            yield

    @contextmanager
    def unreadable(self) -> Iterator[None]:
        _push(self._broker.port, _BAD, "same")
        self._run(
            self._database.execute(
                "update queen.segments s set codec = 1, body = 'damaged' from queen.queues q"
                f" where q.id = s.queue_id and q.name = '{_BAD}'"
            )
        )
        port = self._broker.port
        with _beside(lambda _: _push(port, _BAD, "same"), 1):
            yield


def _fill(broker: Broker, messages: int) -> None:
    """Give the big queue something to index."""
    broker.configure(_BIG, "window")
    frames = PushFrames(_BIG, 50, _FRAME_MESSAGES, 4, messages // _FRAME_MESSAGES)
    run_job(HttpJob(broker.port, (frames,), 0.0, 600.0, 7), broker.usage())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbours", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=2_000_000, help="that are indexed")
    return parser.parse_args()


def main() -> None:
    arguments, console = _arguments(), Console()
    table = Table("trouble", "undisturbed/s", "beside it/s", "ratio")
    with Broker(_FOLDER) as broker, asyncio.Runner() as runner:
        broker.configure(_NEAR, "window")
        _fill(broker, arguments.messages)
        trouble = Trouble(broker, runner)
        for seed, name in enumerate(("locked", "forever", "unreadable", "readable")):
            free, beside = [], []
            for number in range(arguments.rounds):
                free.append(_rate(broker, arguments.seconds, 100 * seed + 2 * number))
                with getattr(trouble, name)():
                    beside.append(_rate(broker, arguments.seconds, 100 * seed + 2 * number + 1))
            medians = statistics.median(free), statistics.median(beside)
            ratio = f"{medians[1] / medians[0]:.2f}"
            table.add_row(name, f"{medians[0]:,.0f}", f"{medians[1]:,.0f}", ratio)
    console.print(table)
    console.print(machine())


if __name__ == "__main__":
    main()
