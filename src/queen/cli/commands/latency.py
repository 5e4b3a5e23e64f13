"""`queen bench --latency`: where the time of a lone message goes.

One message after the other is pushed to a consumer that waits for it, and acked. The server notes
when each of them was where (`GET /api/v1/system/steps`), and this makes a table of it.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from queen.cli.exits import FAILED, fail, say
from queen.cli.output import Output, progress
from queen.cli.tables import Column
from queen.client import Queen
from queen.client.queues.queue import Queue

# The first ones open connections and make partitions.
_WARM_UP = 20
_WAIT_S = 10.0
# So long after it asked, a consumer waits; messages are not pushed before.
_PARK_S = 0.003

# What happens until a step is taken.
_DELIVERY = {
    "taken": "",
    "flushed": "push: waits for its turn",
    "sent": "push: ids compared, segment built",
    "written": "append: to PostgreSQL, seal, lock",
    "stored": "append: rows, lease, COMMIT, disk, and back",
    "handed": "pop: handed over",
    "told": "push: answered, and told to who waits",
}
_ACK = {
    "acked": "",
    "settling": "ack: waits for its turn",
    "settled": "ack: PostgreSQL, COMMIT, disk",
}
_COLUMNS = (
    Column("step", "step"),
    Column("p50 us", "p50Us", "number"),
    Column("p99 us", "p99Us", "number"),
    Column("server CPU us", "serverCpuUs", "number"),
)


class Seen(NamedTuple):
    """What the client saw of one message, in nanoseconds."""

    delivered: int
    pushed: int
    acked: int


class Taken(NamedTuple):
    """When a step was taken, and how long the server had been at work by then."""

    at_ns: int
    cpu_ns: int


Journey = dict[str, Taken]


def show_latency(output: Output, rows: list[dict[str, Any]]) -> None:
    output.rows(rows, _COLUMNS)


async def follow(queen: Queen, queue: Queue, messages: int, payload: str) -> list[dict[str, Any]]:
    """Push messages one by one, and return what each step of them took."""
    name = queue.name or ""
    await _one_by_one(queen, queue, _WARM_UP, payload)
    await queen.admin.steps(name)
    say(f"following {messages:,} messages through {name}")
    with progress("latency", messages) as advance:
        seen: list[Seen] = []
        journeys: list[Journey] = []
        while len(seen) < messages:
            seen += await _one_by_one(queen, queue, min(100, messages - len(seen)), payload)
            answer = await queen.admin.steps(name)
            journeys += _journeys(answer["steps"], answer["databaseAheadNs"])
            advance(len(seen), len(seen))
    if not journeys:
        fail(
            FAILED,
            "no message could be followed: the server has several processes, and others served it",
        )
    return _rows(seen, journeys)


async def _one_by_one(queen: Queen, queue: Queue, count: int, payload: str) -> list[Seen]:
    """Push to a consumer that waits, and ack; return what that took."""
    consumer = queue.group("bench")
    seen = []
    for _ in range(count):
        popping = asyncio.ensure_future(consumer.pop(wait_s=_WAIT_S))
        await asyncio.sleep(_PARK_S)
        began = time.perf_counter_ns()
        pushing = asyncio.ensure_future(_timed(queue.push(payload)))
        (message,) = await popping
        delivered = time.perf_counter_ns()
        pushed = await pushing
        acking = time.perf_counter_ns()
        await queen.ack(message)
        seen.append(Seen(delivered - began, pushed - began, time.perf_counter_ns() - acking))
    return seen


async def _timed(push: Any) -> int:
    await push
    return time.perf_counter_ns()


def _journeys(steps: list[dict[str, Any]], ahead_ns: int) -> Iterator[Journey]:
    """Yield the steps of each message that was followed all the way."""
    journey: Journey = {}
    for step in steps:
        if step["name"] == "taken":
            journey = {}
        at_ns = step["atNs"] - (ahead_ns if step["name"] == "written" else 0)
        journey[step["name"]] = Taken(at_ns, step["cpuNs"])
        # Where something was in the way, a claim of its own has leased it: there are more steps.
        if step["name"] == "settled" and journey.keys() == _DELIVERY.keys() | _ACK.keys():
            yield journey


def _rows(seen: list[Seen], journeys: list[Journey]) -> list[dict[str, Any]]:
    """Return the rows of the table. What the client saw and the server did not is between them."""
    delivery, ack = list(_DELIVERY), list(_ACK)
    outside = "client and HTTP, there and back"
    in_server = _medians(journeys, delivery[0], delivery[-1])
    in_ack = _medians(journeys, ack[0], ack[-1])
    delivered = [each.delivered for each in seen]
    acked = [each.acked for each in seen]
    return [
        *_parts(journeys, _DELIVERY),
        _row(outside, [took - in_server for took in delivered]),
        _row("END TO END", delivered),
        _row("answer to the push", [each.pushed for each in seen]),
        *_parts(journeys, _ACK),
        _row(outside, [took - in_ack for took in acked]),
        _row("ANSWER TO THE ACK", acked),
    ]


def _parts(journeys: list[Journey], steps: dict[str, str]) -> Iterator[dict[str, Any]]:
    for before, after in pairwise(steps):
        took = [journey[after].at_ns - journey[before].at_ns for journey in journeys]
        cpu = [journey[after].cpu_ns - journey[before].cpu_ns for journey in journeys]
        yield _row(steps[after], took, cpu)


def _medians(journeys: list[Journey], first: str, last: str) -> float:
    return statistics.median(journey[last].at_ns - journey[first].at_ns for journey in journeys)


def _row(step: str, took_ns: list[int] | list[float], cpu_ns: list[int] | None = None) -> Any:
    ordered = sorted(took_ns)
    return {
        "step": step,
        "p50Us": round(statistics.median(ordered) / 1000),
        "p99Us": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] / 1000),
        "serverCpuUs": None if cpu_ns is None else round(statistics.median(cpu_ns) / 1000),
    }
