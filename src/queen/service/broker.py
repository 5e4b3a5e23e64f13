"""The broker: all verbs over one database, wired together.

A broker keeps no state that matters: several may run on one database, each can be killed at
any time, and what it had accepted is in the log.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime

import asyncpg
import msgspec

from queen.core.cipher import KeyRing
from queen.core.names import DEFAULT_PARTITION
from queen.core.options import QueueOptions
from queen.errors import EncryptionUnavailable, QueenError, Unavailable
from queen.service.admin.audit_trail import AuditTrail
from queen.service.admin.clock import Clock
from queen.service.admin.maintenance import Maintenance
from queen.service.admin.pipelines import Pipelines
from queen.service.admin.tokens import Tokens
from queen.service.admin.traces import DEFAULT_DAYS, JOB, JOB_INTERVAL_S, Traces
from queen.service.catalog import Catalog, Partition
from queen.service.consume.ack import Acker
from queen.service.consume.dead_letters import DeadLetters
from queen.service.consume.groups import Groups
from queen.service.consume.leases import LeaseBook
from queen.service.consume.pop import Popper
from queen.service.consume.transact import Transactor
from queen.service.log.dedup import Dedup
from queen.service.log.dedup_index import Indexer
from queen.service.log.push import Pusher
from queen.service.log.repeats import Repeats
from queen.service.log.segment_cache import SegmentCache
from queen.service.log.segment_encryption import Vault
from queen.service.outbox.relay import Relay
from queen.service.outbox.scheduled import Staging
from queen.service.read.browse import Browser
from queen.service.read.fetch import Fetcher
from queen.service.read.message_finder import Lookup
from queen.service.read.sealed_reads import SealedReads
from queen.service.sdk.sdk_cycles import Cycles
from queen.service.sdk.sdk_queries import Queries
from queen.service.signals import Signals
from queen.service.sinks.publish import Publisher
from queen.service.sinks.sinks import JOB as SINKS_JOB
from queen.service.sinks.sinks import JOB_INTERVAL_S as SINKS_INTERVAL_S
from queen.service.sinks.sinks import Sinks
from queen.service.stats.activity import Activity, ServerName
from queen.service.stats.lag import Lag
from queen.service.stats.reads import StoredNumbers
from queen.service.stats.statistics import Statistics
from queen.service.stats.vitals import Vitals
from queen.service.streams.content import Content
from queen.service.streams.definitions import Definitions
from queen.service.streams.overview import Overview
from queen.service.streams.planner import FORGET_INTERVAL_S, Planner, forget_windows
from queen.service.streams.work import Work
from queen.service.upkeep.erase import Eraser
from queen.service.upkeep.jobs import Jobs
from queen.service.upkeep.reencrypt import INTERVAL_S as RESEAL_INTERVAL_S
from queen.service.upkeep.reencrypt import Reencrypter
from queen.service.upkeep.retention import CLEANUP_INTERVAL_S, Retention
from queen.service.upkeep.supervisor import Supervisor
from queen.service.upkeep.watchdog import Watchdog
from queen.storage.database import Database, Transaction, session_settings

_log = logging.getLogger(__name__)

_FORGET_ROWS = 10_000
_DELETE_TRIES = 6
_FORGET_INTERVAL_S = 600.0
# Longer than a statement may take.
_STEP_S = 40.0


class Limits(msgspec.Struct, frozen=True):
    """How much memory a broker may use for what it could also ask the database."""

    dedup_hashes: int = 2_000_000
    segment_cache_bytes: int = 16 * 1024 * 1024
    connections: int = 8
    # Pushes in flight at once, each over partitions of its own.
    flushes: int = 1
    # Traces are kept this long.
    trace_days: int = DEFAULT_DAYS
    # Numbers about the past are kept this long; queues with metrics of their own.
    metrics_retention_days: int = 90
    metrics_queues: int = 100
    # How often old messages are looked for.
    retention_interval_s: float = 10.0
    # A group nobody used for so long does not hold completed messages back any more.
    abandoned_group_days: int = 7
    # A partition that is empty and unused for so long is removed; 0 keeps it.
    idle_partition_days: int = 30


class Broker:
    def __init__(
        self, dsn: str, database: Database, limits: Limits, keys: KeyRing, name: ServerName
    ) -> None:
        self._dsn = dsn
        # Pushes, pops, acks and what they need: nothing slow makes them wait for a connection.
        self.hot = database
        # All else.
        self.database = database.background
        self.limits = limits
        self.activity = Activity(self.database, name)
        self.vault = Vault(keys)
        self.jobs = Jobs(self.database)
        self.maintenance = Maintenance(self.hot)
        self._remember()
        self._produce_and_consume()
        self._cut_windows()
        self._administrate()
        self._clean_up()
        self._observe()
        self.supervisor = Supervisor()
        self.watchdog = Watchdog()

    def _remember(self) -> None:
        """What is kept in memory of what the database knows."""
        self.catalog = Catalog(self.hot)
        self.catalog.made_partitions = self.activity.made_partitions
        self.catalog.lost = self._lost
        self.leases = LeaseBook()
        self.cache = SegmentCache(self.limits.segment_cache_bytes)
        self.dedup = Dedup(self.hot, self.vault, self.limits.dedup_hashes)

    def _produce_and_consume(self) -> None:
        """The verbs that must be fast."""
        self.popper = Popper(
            self.hot,
            self.catalog,
            self.cache,
            self.leases,
            self.vault,
            self.activity,
            self.maintenance,
        )
        self.signals = Signals(self.hot, self.catalog, self.cache, self.popper, self.maintenance)
        self.pusher = Pusher(
            self.hot,
            self.catalog,
            self.dedup,
            self.vault,
            self.cache,
            self.activity,
            self._committed,
            self.maintenance,
            self.limits.flushes,
        )
        self.acker = Acker(
            self.hot,
            self.vault,
            self.leases,
            self.activity,
            self.popper.dispatcher.lease_ended,
            self.signals.released,
        )
        self.popper.acker = self.acker
        self.lookup = Lookup(self.database, self.vault)
        self.transactor = Transactor(
            self.database,
            self.pusher,
            self.acker,
            Repeats(self.catalog, self.lookup),
            self.activity,
            self.maintenance,
        )
        self.queries = Queries(self.database, self.catalog, self.vault)
        self.cycles = Cycles(
            self.database, self.catalog, self.queries, self.leases, self.acker, self.transactor
        )
        self.fetcher = Fetcher(self.database, self.catalog, self.vault)
        self.cuts = SealedReads(self.database)
        self.staging = Staging(self.database, self.catalog, self.vault, self.maintenance)
        self.relay = Relay(self.database, self.catalog, self.pusher, self.vault, self.maintenance)
        self.signals.also_listen("queen_staged", self.relay.wake)
        self._collect()

    def _collect(self) -> None:
        """The verbs of those who compute in many places and publish in one."""
        self.sinks = Sinks(self.database, self.catalog, self.vault, self.maintenance)
        self.publisher = Publisher(
            self.database,
            self.catalog,
            self.dedup,
            self.vault,
            self.activity,
            self.maintenance,
            self._committed,
        )

    def _cut_windows(self) -> None:
        """Streams: what is written, in windows."""
        self.planner = Planner(self.database, self._windows_planned)
        self.work = Work(
            self.database, self.transactor, self.publisher, self.signals.windows_planned
        )
        self.signals.on_windows = self.work.look
        self.streams = Definitions(self.database, self.catalog, self.planner.wake)
        self.content = Content(self.database, self.catalog, self.vault, self.fetcher)
        self.stream_overview = Overview(self.database)
        self.jobs.add("stream_windows", FORGET_INTERVAL_S, forget_windows)

    def _windows_planned(self, stream_id: int) -> None:
        self.work.look(stream_id)
        self.signals.windows_planned(stream_id)

    def _administrate(self) -> None:
        """The verbs of those who look after queues."""
        self.dead_letters = DeadLetters(self.database, self.catalog, self.vault, self.pusher)
        self.eraser = Eraser(self.database, self.vault)
        self.browser = Browser(self.database, self.catalog, self.vault)
        self.lag = Lag(self.database)
        self.groups = Groups(self.database, self.popper, self.signals)
        self.traces = Traces(self.database, self.limits.trace_days)
        self.tokens = Tokens(self.hot)
        self.audit_trail = AuditTrail(self.database)
        self.numbers = StoredNumbers(self.database)
        self.pipelines = Pipelines(self.database)
        self.clock = Clock(
            self.database,
            self.signals,
            self.groups,
            self.relay,
            self.jobs,
            self.planner,
            self.work,
        )

    def _observe(self) -> None:
        self.statistics = Statistics(
            self.database, self.jobs, lambda: self.activity.version() + self.groups.version
        )
        self.jobs.add("forget_activity", _FORGET_INTERVAL_S, self._forget_activity)
        self.vitals = Vitals(
            self.database,
            lambda: self.activity.requests,
            lambda: self.popper.parked_count,
            lambda: self.pusher.waiting,
        )
        self.activity.parked = self.popper.parked
        self.activity.also = self.vitals.report

    def _clean_up(self) -> None:
        limits = self.limits
        retention = Retention(limits.abandoned_group_days, limits.idle_partition_days)
        self.indexer = Indexer(self.hot, self.jobs, self._options_changed)
        self.jobs.add("retention", limits.retention_interval_s, retention.remove_old)
        self.jobs.add("reseal", RESEAL_INTERVAL_S, Reencrypter(self.vault).seal_some)
        self.jobs.add("idle_partitions", CLEANUP_INTERVAL_S, retention.drop_idle)
        self.jobs.add(JOB, JOB_INTERVAL_S, self.traces.forget_old)
        self.jobs.add(SINKS_JOB, SINKS_INTERVAL_S, self.sinks.remove_old)

    @classmethod
    async def start(
        cls,
        dsn: str,
        limits: Limits | None = None,
        keys: KeyRing | None = None,
        name: ServerName | None = None,
    ) -> Broker:
        limits = limits or Limits()
        database = await Database.connect(dsn, size=limits.connections)
        broker = cls(dsn, database, limits, keys or KeyRing(), name or ServerName())
        for loop_name, loop in broker._loops().items():
            broker.supervisor.start(loop_name, loop)
        broker.watchdog.start()
        return broker

    def _loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What runs beside the requests, for as long as the server does."""
        return {
            "timers": self.popper.sweeper.run_timers,
            "sweeper": self.popper.sweeper.run_net,
            "labels": self.popper.run_labels,
            "jobs": self.jobs.run,
            "maintenance": self.maintenance.run,
            "activity": self.activity.run,
            "vitals": self.vitals.run,
            "relay": self.relay.run,
            "planner": self.planner.run,
            "sender": self.signals.run_sender,
            "listener": lambda: self.signals.run_listener(self._listener),
        }

    async def stop(self) -> None:
        """Finish what is under way, answer who waits, close.

        What cannot be finished is logged and holds up nothing that comes after it.
        """
        try:
            self.work.close()
            await _tried("answering pops", self.popper.close)
            await _tried("finishing pushes", self.pusher.drained)
            await _tried("finishing acknowledgments", self.acker.drained)
            await _tried("ending loops", self.supervisor.stop)
            await _tried("writing activity", self.activity.flush)
        finally:
            self.watchdog.stop()
            await self.database.close()

    async def _forget_activity(self, transaction: Transaction) -> bool:
        """Remove numbers about the past that are older than they are kept."""
        days = self.limits.metrics_retention_days
        (row,) = await transaction.fetch("forget_activity", days, _FORGET_ROWS)
        await transaction.execute("forget_servers", days)
        return bool(max(row) == _FORGET_ROWS)

    def _options_changed(self) -> None:
        self.catalog.expire_options()
        self.signals.options_changed()

    def _lost(self, partition: Partition) -> None:
        """The database has lost a part of a partition: forget what it was."""
        self.cache.forget(partition.id)
        self.popper.dispatcher.went_back(partition)

    def _committed(self, partitions: list[Partition]) -> None:
        self.popper.written(partitions)
        self.signals.written(partitions)

    async def _listener(self) -> asyncpg.Connection:
        return await asyncpg.connect(self._dsn, timeout=5, server_settings=session_settings())

    async def configure(
        self, queue: str, namespace: str, task: str, options: QueueOptions
    ) -> tuple[int, Partition]:
        """Create a queue or overwrite its configuration; returns its id and first partition."""
        if options.encryption_enabled and not self.vault.keys:
            raise EncryptionUnavailable
        encoded = msgspec.json.encode(options).decode()
        queue_id: int = await self.database.fetchval(
            "configure_queue", queue, namespace, task, encoded
        )
        self._options_changed()
        await self.catalog.resolve([(queue, DEFAULT_PARTITION)])
        partition = self.catalog.known(queue, DEFAULT_PARTITION)
        if partition is None:
            raise Unavailable("the queue was deleted at the same moment")
        return queue_id, partition

    async def now(self) -> datetime:
        """Return the time that counts: the database's."""
        at: datetime = await self.database.fetchval("now")
        return at

    async def turn_maintenance(self, switch: str, enabled: bool) -> None:
        """Hold pushes or pops back on all servers, or let them through again."""
        await self.maintenance.turn(switch, enabled)
        self.signals.maintenance_turned()

    async def cursors_of(self, lease_id: uuid.UUID) -> list[tuple[int, int]]:
        """Return partition and group of every cursor that a lease holds, or held a moment ago."""
        held = [(span.partition.id, span.group_id) for span in self.leases.spans(lease_id)]
        if not held:
            rows = await self.hot.fetch("cursors_of_lease", lease_id)
            held = [(row["partition_id"], row["group_id"]) for row in rows]
        return held

    async def extend(self, lease_id: uuid.UUID, seconds: int) -> datetime | None:
        """Prolong a live lease; None when it is not, or no longer, one."""
        held = await self.cursors_of(lease_id)
        rows = await self.hot.fetch(
            "extend_lease",
            [partition for partition, _ in held],
            [group for _, group in held],
            lease_id,
            seconds * 1000,
        )
        for span in self.leases.spans(lease_id):
            self.popper.dispatcher.lease_extended(span, lease_id, seconds * 1000)
        return min((row["lease_until"] for row in rows), default=None)

    async def delete_queue(self, queue: str) -> bool:
        """Delete a queue with everything in it; false when there is none."""
        known = await self.catalog.queue(queue)
        existed = await self._delete(queue)
        self.catalog.forget_queue(queue)
        if known is not None:
            self.popper.forget_queue(known.id)
        self.signals.options_changed()
        return existed

    async def _delete(self, queue: str) -> bool:
        """Delete until nobody adds a partition or a group in the same moment."""
        for attempt in range(_DELETE_TRIES):
            try:
                existed: bool = await self.database.fetchval("delete_queue", queue)
                return existed
            except Unavailable:
                if attempt == _DELETE_TRIES - 1:
                    raise
                await asyncio.sleep(0.01 * 2**attempt)
        raise AssertionError("unreachable")


async def _tried(what: str, step: Callable[[], Awaitable[None]]) -> None:
    """Take one step of the end; the steps after it are taken whatever becomes of it."""
    try:
        async with asyncio.timeout(_STEP_S):
            await step()
    except TimeoutError:
        _log.error("%s took more than %.0f s and was left", what, _STEP_S)
    except QueenError as error:
        _log.warning("%s: %s", what, error)
    except Exception:
        _log.exception("%s failed", what)
