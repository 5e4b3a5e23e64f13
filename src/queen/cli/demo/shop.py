"""The third act: a shop's clicks and purchases, on Spark.

Two pipelines run while visitors come. One counts the clicks on each page in windows of the
visitors' own time, the other joins each purchase to its click. Results go back into queues,
where an ordinary consumer reads them; what came too late is set aside in queues of its own.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queen.cli.demo.counts import Count
from queen.cli.demo.visits import CLICKS, PURCHASES, Visits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.table import Table

    from queen.client import SyncQueen
    from queen.client.streams.sync import SyncStream
    from queen.spark.pipelines.run import Running

_VIEWS, _SALES = "demo.views", "demo.sales"
_LATE_VIEWS, _LATE_SALES = "demo.late-views", "demo.late-sales"
_WINDOW_S = 2
# Longer than any push takes, so that what is late is what was meant to be.
_GRACE_S = 5
_GIVE_UP_S = 120


def show_shop(port: int, console: Console) -> list[Count]:
    """Run two pipelines and show what they computed; nothing if Spark is not there."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        console.print(
            "Spark is not installed, so its part is left out: pip install 'queen\\[spark]'"
        )
        return []
    console.print(
        f"Now Spark: clicks of each page in windows of {_WINDOW_S} s of the visitors' own time,"
        " and purchases joined to their clicks."
    )
    from queen.spark.launch.java import find_java

    url = f"http://127.0.0.1:{port}"
    visits = Visits()
    visitors = threading.Thread(target=lambda: asyncio.run(visits.run(url)))
    visitors.start()
    console.print(f"Starting Spark on Java {find_java().version} ...")
    with (
        tempfile.TemporaryDirectory(prefix="queen-demo-") as folder,
        _set_log_aside(Path(folder) / "log"),
    ):
        results = _run_pipelines(url, folder, visits, visitors)
    console.print(_table(results[_VIEWS]))
    return _counts(visits.sent, results)


@contextmanager
def _set_log_aside(log: Path) -> Iterator[None]:
    """Write what Java logs to a file, and show it only if something fails."""
    shown = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except BaseException:
        os.write(shown, log.read_bytes())
        raise
    finally:
        os.dup2(shown, 2)
        os.close(shown)


def _run_pipelines(
    url: str, folder: str, visits: Visits, visitors: threading.Thread
) -> dict[str, list[Any]]:
    """Run both pipelines until everything that went in has come out."""
    from queen.client import SyncQueen
    from queen.spark.launch.environment import session

    spark = session(
        "queen demo",
        spark_ui_enabled=False,
        spark_driver_memory="1g",
        # For half a minute it does not pay to compile more than a little.
        spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1",
    )
    running: list[Running] = []
    try:
        with SyncQueen(url) as queen:
            for pipeline in _pipelines(queen):
                checkpoint = f"{folder}/{pipeline.name}"
                running.append(pipeline.run(spark, checkpoint=checkpoint, starting="earliest"))
                _wait_for_first_batch(running[-1])
            return _gather_results(queen, running, visits, visitors)
    finally:
        for run in running:
            run.stop()
        spark.stop()


def _pipelines(queen: SyncQueen) -> list[SyncStream]:
    clicks = (
        queen.stream("demo-views", "demo")
        .sources(CLICKS)
        .schema("id string, page string, ms int, ts timestamp")
        .event_time("data.ts")
    )
    views = (
        clicks.dedup("data.id")
        .key("data.page")
        .tumbling_time(_WINDOW_S)
        .grace_period(_GRACE_S)
        .aggregate(views="count(*)", p95_ms="percentile_approx(data.ms, 0.95)")
        .late_to(_LATE_VIEWS)
        .to(_VIEWS)
    )
    sales = (
        queen.stream("demo-sales", "demo")
        .sources(PURCHASES)
        .named("purchases")
        .schema("id string, click string, amount int, ts timestamp")
        .event_time("data.ts")
        .join(clicks.named("clicks"), on={"data.click": "data.id"}, within=1)
        .dedup("purchases.data.id")
        .grace_period(_GRACE_S)
        .select("purchases.data.amount", "clicks.data.page", user="purchases.partition")
        .late_to(_LATE_SALES)
        .to(_SALES)
    )
    return [views, sales]


def _wait_for_first_batch(running: Running) -> None:
    """Wait until a pipeline is under way: two that start at once start slowly."""
    while running.query.isActive and not running.progress.batches:
        time.sleep(0.05)


def _gather_results(
    queen: SyncQueen, running: list[Running], visits: Visits, visitors: threading.Thread
) -> dict[str, list[Any]]:
    """Read the queues of results until all is there that is expected."""
    results: dict[str, list[Any]] = defaultdict(list)
    deadline = time.monotonic() + _GIVE_UP_S
    while time.monotonic() < deadline:
        is_over = not visitors.is_alive()
        for name in (_VIEWS, _SALES, _LATE_VIEWS, _LATE_SALES):
            queue = queen.queue(name).group("demo").partitions(100)
            popped = queue.pop(wait_s=0.2, batch=1000, auto_ack=True)
            results[name] += [message.data for message in popped]
        for run in running:
            if not run.query.isActive:
                # Raises what it died of.
                run.wait()
        if is_over and all(
            count.actual >= count.expected for count in _counts(visits.sent, results)
        ):
            break
    visitors.join()
    return results


def _counts(sent: Counter[str], results: dict[str, list[Any]]) -> list[Count]:
    views = sum(row["views"] for row in results[_VIEWS])
    sides = Counter(row["side"] for row in results[_LATE_SALES])
    amount = sum(row["amount"] for row in results[_SALES])
    late_clicks, late_purchases = sent["late clicks"], sent["late purchases"]
    aside = f"set aside in {_LATE_VIEWS}"
    return [
        Count("clicks sent twice", sent["repeats"], "known as duplicates", sent["duplicates"]),
        Count(f"clicks, {sent['clicks again']} again", sent["clicks"], f"in {_VIEWS}", views),
        Count("clicks, an hour late", late_clicks, aside, len(results[_LATE_VIEWS])),
        Count("purchases", sent["purchases"], f"joined, in {_SALES}", len(results[_SALES])),
        Count("their amounts", sent["amount"], f"in {_SALES}", amount),
        Count("purchases, an hour late", late_purchases, f"in {_LATE_SALES}", sides["purchases"]),
        Count("their clicks, and others", late_clicks, f"in {_LATE_SALES}", sides["clicks"]),
    ]


def _table(rows: list[Any]) -> Table:
    from rich.table import Table

    table = Table(title=f"Clicks of each page, in windows of {_WINDOW_S} s")
    windows = sorted({row["windowStart"] for row in rows})
    pages = sorted({row["page"] for row in rows})
    by_cell = {(row["windowStart"], row["page"]): row for row in rows}
    table.add_column("window from")
    for page in pages:
        table.add_column(f"{page}, 95 % within", justify="right")
    for start in windows:
        cells = [by_cell.get((start, page)) for page in pages]
        shown = [f"{cell['views']}, {cell['p95_ms']} ms" if cell else "" for cell in cells]
        table.add_row(start[11:19], *shown)
    return table
