"""`python -m benchmarks.spark_joins`: joins of few keys, when a lot of history is one micro-batch.

Two queues hold what a few users clicked and bought, spread over hours. A pipeline joins them
within seconds, all of it in one micro-batch: in the plan with buckets of time, and in the one that
checkpoints from before still have. Both must give as many pairs as plain Python. A few messages
go first, so that no plan pays for the start of the session.
"""

from __future__ import annotations

import argparse
import bisect
import http.client
import random
import sys
import time
import uuid
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from rich.table import Table

from benchmarks.frames import MEDIA_TYPE, frame
from benchmarks.report import machine
from benchmarks.spark_session import broker_and_spark, cpu, seconds, url_of, wide_console
from queen.spark.launch.settings import pipeline_settings
from queen.spark.pipelines import reading
from queen.spark.pipelines.compiler import compile_definition
from queen.spark.pipelines.run import checked_definition, results_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.broker import Broker
    from queen.wire.pipelines import Definition

_SPAN = timedelta(hours=10)
# Everything is pushed at once, and none of it is late.
_GRACE = timedelta(hours=12)
_SCHEMA = "id bigint, user bigint, at timestamp"
_SIDES = ("clicks", "purchases")
_MOST_IN_FRAME = 5000
_WARM_UP = 2000
_PLANS = {"without buckets": False, "with buckets": True}


class Event(NamedTuple):
    """A click or a purchase."""

    id: int
    user: int
    at: datetime


Sides = dict[str, list[Event]]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_joins", description=__doc__)
    parser.add_argument("--events", type=int, default=100_000, metavar="N", help="of both sides")
    parser.add_argument("--keys", type=int, default=3, metavar="N", help="different users")
    parser.add_argument("--within", type=int, default=10, metavar="S")
    return parser.parse_args()


def _events(count: int, keys: int) -> Sides:
    chance = random.Random(count)
    begin = datetime.now(UTC) - _SPAN
    return {
        side: [
            Event(number, chance.randrange(keys), begin + _SPAN * chance.random())
            for number in range(count // len(_SIDES))
        ]
        for side in _SIDES
    }


def _push(broker: Broker, queue: str, events: list[Event]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=60)
    for first in range(0, len(events), _MOST_IN_FRAME):
        texts = [
            msgspec.json.encode(one._asdict()) for one in events[first : first + _MOST_IN_FRAME]
        ]
        body = frame(queue, "p", [uuid.uuid4().hex for _ in texts], texts)
        connection.request("POST", "/api/v1/push", body, {"content-type": MEDIA_TYPE})
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status == 201, said[:500]
    connection.close()


def _definition(within: int, queues: dict[str, str]) -> Definition:
    reads = [
        {"name": side, "queues": [queues[side]], "schema": _SCHEMA, "eventTime": "data.at"}
        for side in _SIDES
    ]
    given = {
        "name": "joined",
        "reads": reads,
        "joins": [{"on": [("data.user", "data.user")], "withinMs": within * 1000}],
        "graceMs": _GRACE // timedelta(milliseconds=1),
        "select": {"click": "clicks.data.id"},
        "output": {"queue": "out"},
    }
    return checked_definition(given)


def _run(
    definition: Definition, has_buckets: bool, spark: SparkSession, broker: Broker, folder: Path
) -> int:
    """Run a definition over all that is there; return how many rows it gave."""
    options = {"url": url_of(broker), "startingTime": "earliest"}
    counts: list[int] = []
    with pipeline_settings(spark, definition.time_zone):
        frames = reading.live(spark, definition, options)
        compiled = compile_definition(definition, frames, has_buckets=has_buckets)
        writer = results_of(compiled).writeStream.foreachBatch(
            lambda batch, _: counts.append(batch.count())
        )
        writer = writer.option("checkpointLocation", str(folder / uuid.uuid4().hex))
        query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(counts)


def _wanted(sides: Sides, within: int) -> int:
    """Return how many pairs there are, by plain Python."""
    times = defaultdict(list)
    for purchase in sides["purchases"]:
        times[purchase.user].append(purchase.at)
    for some in times.values():
        some.sort()
    apart, pairs = timedelta(seconds=within), 0
    for click in sides["clicks"]:
        near = times[click.user]
        pairs += bisect.bisect_right(near, click.at + apart)
        pairs -= bisect.bisect_left(near, click.at - apart)
    return pairs


class Measured(NamedTuple):
    """What one plan has given, and what that took."""

    rows: int
    took_s: float
    cpu_s: float


def _measure(
    definition: Definition, has_buckets: bool, spark: SparkSession, broker: Broker, folder: Path
) -> Measured:
    rows: list[int] = []
    before = cpu(broker)
    took_s = seconds(lambda: rows.append(_run(definition, has_buckets, spark, broker, folder)))
    return Measured(rows[0], took_s, cpu(broker).since(before).spark)


def main() -> int:
    arguments = _arguments()
    console = wide_console()
    title = (
        f"{arguments.events:,} events of {arguments.keys} keys, within {arguments.within} s, "
        "in one micro-batch"
    )
    table = Table("plan", "pairs", "s", "CPU s", "events/s", title=title)
    is_right = True
    with broker_and_spark("spark-joins") as (broker, spark, folder):
        for size in (_WARM_UP, arguments.events):
            sides = _events(size, arguments.keys)
            queues = {side: f"{side}-{size}" for side in _SIDES}
            for side, events in sides.items():
                _push(broker, queues[side], events)
            # What was just pushed is sealed a moment later.
            time.sleep(1)
            definition = _definition(arguments.within, queues)
            wanted = _wanted(sides, arguments.within)
            for plan, has_buckets in _PLANS.items():
                pairs, took_s, cpu_s = _measure(definition, has_buckets, spark, broker, folder)
                is_right &= pairs == wanted
                if size == arguments.events:
                    found = f"{pairs:,}" if pairs == wanted else f"[red]{pairs:,}, not {wanted:,}"
                    figures = (f"{took_s:.1f}", f"{cpu_s:.1f}", f"{size / took_s:,.0f}")
                    table.add_row(plan, found, *figures)
    console.print(table)
    console.print(machine())
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
