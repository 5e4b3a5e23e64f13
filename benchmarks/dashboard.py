"""`python -m benchmarks.dashboard`: how long what a dashboard reads takes over a large log.

The log is written by SQL (`volume.py`) into a broker of its own. Each route is called a few
times over one connection; the median counts.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from benchmarks.broker import Broker
from benchmarks.onlookers import measure
from benchmarks.postgres import PostgresAddress
from benchmarks.report import machine
from benchmarks.volume import MESSAGES_EACH, PARTITIONS, QUEUE, fill, fill_breadth

_FOLDER = Path(__file__).resolve().parent.parent / ".bench"
# A page has its numbers within this, whatever it asks for.
_AIM_MS = 200
_QUEUES = 10_000
_DEAD_LETTERS_EACH = 10
_CALLS = 5

ROUTES = (
    "/api/v1/resources/queues",
    f"/api/v1/resources/queues/{QUEUE}",
    f"/api/v1/resources/queues/{QUEUE}?limit=100&offset=99000",
    "/api/v1/resources/namespaces",
    "/api/v1/resources/tasks",
    "/api/v1/resources/overview",
    f"/api/v1/resources/partitions?queue={QUEUE}&limit=100",
    "/api/v1/status",
    "/api/v1/status/queues",
    f"/api/v1/status/queues/{QUEUE}",
    f"/api/v1/status/queues/{QUEUE}/messages",
    f"/api/v1/status/queues/{QUEUE}/messages?offset=10000",
    "/api/v1/status/analytics",
    "/api/v1/status/buffers",
    "/api/v1/analytics/system-metrics",
    "/api/v1/analytics/worker-metrics",
    "/api/v1/analytics/queue-lag",
    "/api/v1/analytics/queue-ops",
    "/api/v1/analytics/queue-parked-replicas",
    "/api/v1/analytics/retention",
    "/api/v1/analytics/postgres-stats",
    "/api/v1/system/shared-state",
    "/api/v1/consumer-groups",
    "/api/v1/consumer-groups/lagging",
    "/api/v1/consumer-groups/lagging?minLagSeconds=0",
    "/api/v1/consumer-groups/sparse",
    "/api/v1/consumer-groups/late",
    f"/api/v1/consumer-groups/sparse?queue={QUEUE}&limit=100&offset=99000",
    "/metrics",
    "/metrics/prometheus",
)
# What the pages of the dashboard ask for, beside these.
PAGE_ROUTES = (
    "/",
    "/dashboard/app.js",
    "/api/v1/whoami",
    "/api/v1/status/problems",
    "/api/v1/search?q=p9",
    "/api/v1/search?q=nothing-like-it",
    f"/api/v1/resources/queues/{QUEUE}?limit=1000",
    f"/api/v1/resources/queues/{QUEUE}/options",
    f"/api/v1/analytics/queue-ops?queue={QUEUE}",
    f"/api/v1/messages?queue={QUEUE}&preview=true&limit=200",
    f"/api/v1/messages?queue={QUEUE}&text=nothing-like-it",
    f"/api/v1/consumer-groups/sparse?queue={QUEUE}&limit=1000",
    "/api/v1/consumer-groups?limit=1000",
    "/api/v1/consumer-groups?limit=1000&offset=9000",
    "/api/v1/dlq?limit=100",
    f"/api/v1/dlq?queue={QUEUE}&error=error%207",
    "/api/v1/dlq/errors?limit=100",
    "/api/v1/spool",
    "/api/v1/scheduled",
    "/api/v1/resources/streams",
    "/api/v1/pipelines",
    "/api/v1/system/servers",
    "/api/v1/system/postgres",
    "/api/v1/system/settings",
    "/api/v1/system/map",
    "/api/v1/system/maintenance",
    "/stream",
)


def medians_ms(url: str, routes: Iterable[str] = ROUTES) -> dict[str, float]:
    """Return the median time of each route, over one connection, after one call to warm up."""
    parts = urlsplit(url)
    assert parts.hostname
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    try:
        return {path: _median_ms(connection, path) for path in routes}
    finally:
        connection.close()


def _median_ms(connection: http.client.HTTPConnection, path: str) -> float:
    times = []
    for _ in range(_CALLS + 1):
        started = time.perf_counter()
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        times.append((time.perf_counter() - started) * 1000)
        assert response.status == 200, path
    return statistics.median(times[1:])


def count(url: str) -> float:
    """Have the broker count everything, and return how many milliseconds that took."""
    parts = urlsplit(url)
    assert parts.hostname
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
    try:
        while True:
            connection.request("POST", "/api/v1/stats/refresh")
            answer = json.loads(connection.getresponse().read())
            # Skipped when the broker's own job is at it, which may have begun before.
            if not answer["skipped"]:
                return float(answer["tookMs"])
    finally:
        connection.close()


async def _fill(address: PostgresAddress) -> None:
    connection = await address.connect("queen")
    try:
        await fill(connection)
        await fill_breadth(connection, _QUEUES, _DEAD_LETTERS_EACH)
    finally:
        await connection.close()


def _title() -> str:
    letters = PARTITIONS * _DEAD_LETTERS_EACH
    counts = f"{PARTITIONS:,} partitions of {MESSAGES_EACH}, {_QUEUES:,} queues"
    return f"{counts}, {letters:,} dead letters"


def main() -> None:
    console = Console()
    with Broker(_FOLDER) as broker:
        asyncio.run(_fill(broker.postgres))
        url = f"http://127.0.0.1:{broker.port}"
        took_ms = count(url)
        medians = medians_ms(url, ROUTES + PAGE_ROUTES)
        cost = measure(broker)
    table = Table("route", "median ms", title=_title())
    for path, median_ms in medians.items():
        table.add_row(path, f"{median_ms:.1f}", style="red" if median_ms > _AIM_MS else "")
    console.print(table)
    console.print(
        f"pushes while ten dashboards are open: {cost.looked_at:,.0f}/s of {cost.alone:,.0f}/s, "
        f"{cost.ratio:.2f}"
    )
    console.print(f"counting everything took {took_ms:,.0f} ms")
    console.print(machine())


if __name__ == "__main__":
    main()
