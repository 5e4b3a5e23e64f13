"""What a scrape reads from the database before its metrics are made."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from queen.errors import QueenError
from queen.service.broker import Broker
from queen.service.rows import Record
from queen.service.spooling.desk import SpoolNumbers
from queen.service.stats.activity import FIELDS
from queen.service.stats.reads import ALL_QUEUES
from queen.service.stats.statistics import Stamp


class Snapshot(NamedTuple):
    """What a scrape has asked the database."""

    queues: list[Record]
    groups: list[Record]
    # Groups that their breaker holds back.
    breakers: list[Record]
    # Groups of streams.
    streams: list[Record]
    # What all servers did with the busiest queues in the last full minute.
    minute: list[Record]
    totals: dict[str, int]
    pipelines: list[Record]
    stamp: Stamp
    # How old the oldest snapshot is that somebody holds open.
    oldest_snapshot_s: float
    database_healthy: bool
    spool: SpoolNumbers


async def read_snapshot(broker: Broker) -> Snapshot:
    """Ask the database; without it everything is empty, and the snapshot says so."""
    most = broker.limits.metrics_queues
    nothing = dict.fromkeys(FIELDS, 0)
    spool = await broker.spool_desk.numbers()
    try:
        await broker.report.settle()
        stamp = await broker.statistics.current()
        numbers = broker.numbers
        rows = await numbers.cluster_totals()
        totals = {FIELDS[row["at"] - 1]: row["total"] for row in rows if row["at"] <= len(FIELDS)}
        queues = await numbers.busiest_queues()
        groups = await numbers.list_groups(ALL_QUEUES, max(most, 1))
        breakers = await broker.problems.open_breakers(None, max(most, 1))
        streams = await numbers.stream_gauges(max(most, 1))
        end = (await broker.clock.now()).replace(second=0, microsecond=0)
        minute = await numbers.queue_series(
            1, (end - timedelta(minutes=1), end), ALL_QUEUES, max(most, 1)
        )
        pipelines = await broker.pipelines.reporting(max(most, 1))
        snapshot_s = await numbers.oldest_snapshot_s()
    except QueenError:
        # A scrape must tell that the database is down, not fail because of it.
        return Snapshot([], [], [], [], [], nothing, [], Stamp(None, 0.0, None), 0.0, False, spool)
    return Snapshot(
        queues=queues,
        groups=groups,
        breakers=breakers,
        streams=streams,
        minute=minute,
        totals={**nothing, **totals},
        pipelines=pipelines,
        stamp=stamp,
        oldest_snapshot_s=snapshot_s,
        database_healthy=True,
        spool=spool,
    )
