"""GET /metrics, /metrics/prometheus and /api/v1/system/shared-state: one server, from inside.

`/metrics` answers both kinds of callers: those that accept plain text or OpenMetrics, as
Prometheus does, get text; all others the JSON object of the original.
"""

from __future__ import annotations

import time

import msgspec

from queen.server.api.history import live_workers
from queen.server.api.routing import Doc, Other, Route
from queen.server.api.stats_rows import rounded
from queen.server.auth.access import Role
from queen.server.metrics.exporter import CONTENT_TYPE, Exporter
from queen.server.protocol.http import Request, Response
from queen.service.broker import Broker
from queen.wire.stats import analytics as wire

_TAG = "Metrics"
_TEXT = (b"text/plain", b"application/openmetrics-text")


class MetricsRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._exporter = Exporter(broker)

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/metrics", Role.READ, self.metrics, _METRICS),
            Route("GET", "/metrics/prometheus", Role.READ, self.prometheus, _PROMETHEUS),
            Route("GET", "/api/v1/system/shared-state", Role.ADMIN, self.shared_state, _SHARED),
        ]

    async def metrics(self, request: Request) -> Response:
        if _wants_text(request.headers.get(b"accept", b"")):
            return await self.prometheus(request)
        return Response(200, msgspec.json.encode(self._now()))

    async def prometheus(self, _request: Request) -> Response:
        return Response(200, await self._exporter.text(), (("content-type", CONTENT_TYPE),))

    def _now(self) -> wire.Metrics:
        broker = self._broker
        activity, database = broker.activity, broker.database
        uptime_s = max(time.monotonic() - activity.started, 0.001)
        totals = activity.totals()
        messages = totals["push_messages"] + totals["pop_messages"]
        rss, _ = broker.vitals.memory()
        user_s, system_s = broker.vitals.cpu_seconds()
        return wire.Metrics(
            uptime=rounded(uptime_s),
            requests=wire.Counted(activity.requests, rounded(activity.requests / uptime_s)),
            messages=wire.Counted(messages, rounded(messages / uptime_s)),
            database=wire.PoolNow(database.pool_size, database.pool_idle, broker.pusher.waiting),
            memory=wire.MemoryNow(rss, 0, 0, 0, 0),
            cpu=wire.CpuNow(int(user_s * 1_000_000), int(system_s * 1_000_000)),
        )

    async def shared_state(self, _request: Request) -> Response:
        broker = self._broker
        sizes = broker.catalog.sizes()
        name = broker.activity.name
        answer = wire.SharedState(
            enabled=True,
            running=True,
            server_id=f"{name.hostname}:{name.port}/{name.worker}",
            peers=await live_workers(broker),
            queues=sizes.queues,
            partitions=sizes.partitions,
            groups=sizes.groups,
            dedup_hashes=len(broker.dedup.recent),
            dedup_window_seconds=rounded(broker.dedup.recent.held_seconds()),
            segment_cache_bytes=broker.cache.size_bytes,
        )
        return Response(200, msgspec.json.encode(answer))


def _wants_text(accept: bytes) -> bool:
    """Whether plain text is named, and JSON is not named before it."""
    for part in accept.lower().split(b","):
        kind = part.split(b";")[0].strip()
        if kind in _TEXT:
            return True
        if kind in (b"application/json", b"*/*"):
            return False
    return False


_METRICS = Doc(
    _TAG,
    "Numbers of the server that answers; text for Prometheus if the caller accepts it",
    answers={200: (wire.Metrics, Other("text/plain"))},
)
_PROMETHEUS = Doc(
    _TAG, "All metrics in the text format of Prometheus", answers={200: Other("text/plain")}
)
_SHARED = Doc(
    _TAG, "What the server that answers remembers, and its peers", answers={200: wire.SharedState}
)
