"""The broker: all services over one database, wired together. Nothing else is here.

A broker keeps no state that matters: several may run on one database, each can be killed at
any time, and what it had accepted is in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import asyncpg
import msgspec

from queen.core.cipher import KeyRing
from queen.errors import QueenError, StartupError, Unavailable
from queen.service.acks.ack import Acker
from queen.service.admin.audit_trail import AuditTrail
from queen.service.admin.checkup import Checkup
from queen.service.admin.dead_letters import DeadLetters
from queen.service.admin.flow_map import FlowMap
from queen.service.admin.groups import Groups
from queen.service.admin.machinery import Machinery
from queen.service.admin.maintenance import Maintenance
from queen.service.admin.pipelines import Pipelines
from queen.service.admin.queues import Queues
from queen.service.admin.time_steps import TimeSteps
from queen.service.admin.tokens import Tokens
from queen.service.admin.traces import DEFAULT_DAYS, JOB, JOB_INTERVAL_S, Traces
from queen.service.background import Background
from queen.service.catalog import Catalog
from queen.service.clock import Clock
from queen.service.consume.claims import Claims
from queen.service.consume.dispatch import Dispatcher
from queen.service.consume.give_back import GiveBack
from queen.service.consume.granted_reads import Reader
from queen.service.consume.handoff import Handoffs
from queen.service.consume.lease_book import LeaseBook
from queen.service.consume.leases import Leases
from queen.service.consume.pop import Popper
from queen.service.consume.sweeper import Sweeper
from queen.service.consume.wakeups import Wakeups
from queen.service.entries.entries import Entries
from queen.service.events import Events
from queen.service.holders import JOB as HOLDERS_JOB
from queen.service.holders import JOB_INTERVAL_S as HOLDERS_INTERVAL_S
from queen.service.holders import Holders
from queen.service.home.home import Home
from queen.service.home.host import Verbs
from queen.service.intake.acks import AckIntake
from queen.service.intake.pushes import Intake
from queen.service.log.appender import Appender
from queen.service.log.dedup import Dedup
from queen.service.log.dedup_index import Indexer
from queen.service.log.push import Pusher
from queen.service.log.segment_cache import SegmentCache
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.merged.merging import INTERVAL_S as MERGE_INTERVAL_S
from queen.service.merged.merging import REST as MERGE_REST
from queen.service.merged.merging import Merger
from queen.service.outbox.relay import Relay
from queen.service.outbox.scheduled import Outbox
from queen.service.pacing.breakers import Breakers
from queen.service.pacing.limits import ClaimLimits
from queen.service.preparation import Requirements, prepare
from queen.service.read.browse import Browser
from queen.service.read.fetch import Fetcher
from queen.service.read.message_finder import MessageFinder
from queen.service.read.sealed_reads import SealedReads
from queen.service.read.search import Search
from queen.service.scope import Scope
from queen.service.sdk.sdk_cycles import SdkCycles
from queen.service.sdk.sdk_queries import SdkQueries
from queen.service.shared.kinds import Kinds
from queen.service.signals import Signals
from queen.service.sinks.publish import Publisher
from queen.service.sinks.sinks import JOB as SINKS_JOB
from queen.service.sinks.sinks import JOB_INTERVAL_S as SINKS_INTERVAL_S
from queen.service.sinks.sinks import Sinks
from queen.service.spooling.basins import Basins, SpoolSettings
from queen.service.spooling.desk import SpoolDesk
from queen.service.spooling.drain import Drain
from queen.service.spooling.entrance import Entrance
from queen.service.spooling.first_tries import FirstTries
from queen.service.spooling.store import SpoolStore
from queen.service.stats.activity import Activity, ServerName
from queen.service.stats.activity_report import ActivityReport
from queen.service.stats.lag import Lag
from queen.service.stats.problems import Problems
from queen.service.stats.reads import StoredNumbers
from queen.service.stats.statistics import Statistics
from queen.service.stats.steps import Steps
from queen.service.stats.storage import Storage
from queen.service.stats.vitals import Vitals
from queen.service.streams.content import Content
from queen.service.streams.definitions import Definitions
from queen.service.streams.overview import Overview
from queen.service.streams.planner import FORGET_INTERVAL_S, Planner, forget_windows
from queen.service.streams.work import Work
from queen.service.tasks.keys import JOB as KEYS_JOB
from queen.service.tasks.keys import JOB_INTERVAL_S as KEYS_INTERVAL_S
from queen.service.tasks.keys import JobKeys
from queen.service.tasks.results import JOB as RESULTS_JOB
from queen.service.tasks.results import JOB_INTERVAL_S as RESULTS_INTERVAL_S
from queen.service.tasks.results import JobResults, forget_results
from queen.service.tasks.schedules import Schedules
from queen.service.tasks.states import JobStates
from queen.service.tasks.ticker import Ticker
from queen.service.tasks.waits import JobWaits
from queen.service.transactions.repeats import Repeats
from queen.service.transactions.transact import Transactor
from queen.service.upkeep.erase import Eraser
from queen.service.upkeep.jobs import Jobs
from queen.service.upkeep.reencrypt import INTERVAL_S as REENCRYPT_INTERVAL_S
from queen.service.upkeep.reencrypt import Reencrypter
from queen.service.upkeep.retention import CLEANUP_INTERVAL_S, Retention
from queen.service.upkeep.retention import JOB as RETENTION_JOB
from queen.service.upkeep.supervisor import Supervisor
from queen.service.upkeep.watchdog import Watchdog
from queen.storage.database import Database, session_settings

_log = logging.getLogger(__name__)

# Messages that were popped and not sent yet, as they are in memory.
_MAX_UNSENT_BYTES = 96 * 1024 * 1024
_FORGET_INTERVAL_S = 600.0
# What is not drained by then stays in the spool.
_DRAIN_S = 5.0
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
    # Small segments of that age are merged; 0: they stay.
    merge_after_s: int = 60
    # A group nobody used for so long does not hold completed messages back any more.
    abandoned_group_days: int = 7
    # A partition that is empty and unused for so long is removed; 0 keeps it.
    idle_partition_days: int = 30
    # How much of the work of a server each namespace gets when there is more than it can do; as it
    # comes when there is none.
    namespace_weights: dict[str, int] = {}


class Broker:
    def __init__(
        self,
        dsn: str,
        database: Database,
        limits: Limits,
        keys: KeyRing,
        name: ServerName,
        spool: SpoolSettings | None = None,
        home: str | None = None,
    ) -> None:
        self._dsn = dsn
        # Why the database, which was away at the start, is of no use.
        self.refused: asyncio.Future[StartupError] = asyncio.get_running_loop().create_future()
        # Pushes, pops, acks and what they need: nothing slow makes them wait for a connection.
        self.hot = database
        # All else.
        self.database = database.background
        self.limits = limits
        self.events = Events()
        self.activity = Activity(name)
        self.steps = Steps()
        self.events.partitions_made.subscribe(self.activity.count_partitions)
        self.encryption = SegmentEncryption(keys)
        self.clock = Clock(self.database)
        self.jobs = Jobs(self.database)
        self.maintenance = Maintenance(self.hot, self.events)
        self.background = Background()
        self._remember()
        self._consume()
        self._connect_servers()
        self._produce(spool, home)
        self._decide_together()
        self._cut_windows()
        self._keep_entries()
        self._keep_jobs()
        self._administrate()
        self._clean_up()
        self._observe()
        self.supervisor = Supervisor()
        self.watchdog = Watchdog()

    def _remember(self) -> None:
        """What is kept in memory of what the database knows."""
        self.catalog = Catalog(self.hot, self.events)
        self.lease_book = LeaseBook()
        self.holders = Holders(self.database)
        self.cache = SegmentCache(self.limits.segment_cache_bytes)
        self.events.partition_lost.subscribe(lambda partition: self.cache.forget(partition.id))
        self.dedup = Dedup(self.hot, self.encryption, self.limits.dedup_hashes)
        self.streams = Definitions(self.database, self.catalog, self.events)

    def _consume(self) -> None:
        """From a pop to the ack, in the order in which they are passed."""
        self.dispatcher = Dispatcher(self.lease_book, self.events)
        self.kinds = Kinds(self.hot, self.events)
        self.sweeper = Sweeper(self.hot, self.catalog, self.dispatcher)
        reader = Reader(self.hot, self.cache, self.encryption, _MAX_UNSENT_BYTES)
        give_back = GiveBack(self.hot, self.lease_book, reader, self.dispatcher, self.background)
        self.breakers = Breakers(self.hot, self.dispatcher, self.events)
        self.acker = Acker(
            self.hot,
            self.encryption,
            self.lease_book,
            self.activity,
            self.events,
            self.steps,
            self.breakers,
        )
        claims = Claims(
            self.hot,
            self.catalog,
            self.cache,
            self.lease_book,
            reader,
            self.dispatcher,
            self.acker,
            give_back,
            self.background,
            self.holders,
            self.events,
            self.steps,
            self.breakers,
            ClaimLimits(self.dispatcher),
            self.limits.namespace_weights,
        )
        self.popper = Popper(
            self.catalog,
            self.dispatcher,
            self.sweeper,
            reader,
            claims,
            give_back,
            self.background,
            self.activity,
            self.maintenance,
            self.kinds,
            self.events,
        )
        self.handoffs = Handoffs(
            self.dispatcher,
            self.lease_book,
            claims,
            self.acker,
            self.popper,
            give_back,
            self.holders,
            self.events,
        )

    def _connect_servers(self) -> None:
        """What servers tell each other, and who may see what."""
        self.wakeups = Wakeups(
            self.hot,
            self.catalog,
            self.lease_book,
            self.dispatcher,
            self.sweeper,
            self.background,
            self.kinds,
            self.events,
        )
        self.signals = Signals(
            self.hot,
            self.catalog,
            self.cache,
            self.wakeups,
            self.maintenance,
            self.events,
            lambda: self.report.server_id,
        )
        self.leases = Leases(self.hot, self.lease_book, self.dispatcher)
        self.scope = Scope(self.catalog, self.leases, self.streams)
        self.ack_intake = AckIntake(self.catalog, self.scope)

    def _produce(self, spool: SpoolSettings | None, home: str | None) -> None:
        """From a push to the log, or to the spool and then to the log."""
        self.appender = Appender(
            self.hot,
            self.catalog,
            self.dedup,
            self.encryption,
            self.cache,
            self.activity,
            self.events,
        )
        self.pusher = Pusher(
            self.hot,
            self.catalog,
            self.appender,
            self.handoffs.reserve,
            self.activity,
            self.limits.flushes,
            self.steps,
            self.limits.namespace_weights,
        )
        self.basins = Basins(spool, self.encryption.keys) if spool is not None else None
        self.drain = self._drain_of(self.basins) if self.basins is not None else None
        self.entrance = Entrance(
            self.pusher,
            self.maintenance,
            self.hot.breaker,
            self.activity,
            self.basins,
            self.drain,
        )
        self.spool_desk = SpoolDesk(self.hot.breaker, self.entrance, self.basins, self.drain)
        self.outbox = Outbox(self.database, self.catalog, self.encryption, self.maintenance)
        verbs = Verbs(
            self.catalog,
            self.entrance,
            self.popper,
            self.acker,
            self.handoffs,
            self.signals.follow,
        )
        self.home = Home(home, verbs, self.events)
        self.intake = Intake(self.scope, self.clock, self.home, self.outbox)
        self.relay = Relay(
            self.database, self.catalog, self.appender, self.encryption, self.maintenance
        )
        self.signals.also_listen("queen_staged", self.relay.wake)

    def _drain_of(self, basins: Basins) -> Drain:
        tries = FirstTries(self.database, self.encryption)
        store = SpoolStore(self.database, self.appender, basins, tries)
        return Drain(basins, store, self.hot.breaker, self.maintenance, lambda: self.pusher.flushes)

    def _decide_together(self) -> None:
        """What acks and appends in one transaction, and what publishes for many."""
        self.message_finder = MessageFinder(self.database, self.encryption)
        self.transactor = Transactor(
            self.database,
            self.appender,
            self.acker,
            self.leases,
            Repeats(self.catalog, self.message_finder),
            self.activity,
            self.maintenance,
        )
        self.sdk_queries = SdkQueries(self.database, self.catalog, self.encryption)
        self.sdk_cycles = SdkCycles(
            self.database,
            self.catalog,
            self.sdk_queries,
            self.lease_book,
            self.acker,
            self.transactor,
        )
        self.sinks = Sinks(
            self.database, self.catalog, self.scope, self.encryption, self.maintenance
        )
        self.publisher = Publisher(
            self.database,
            self.catalog,
            self.dedup,
            self.encryption,
            self.activity,
            self.maintenance,
            self.events,
        )

    def _cut_windows(self) -> None:
        """Streams: what is written, in windows."""
        self.fetcher = Fetcher(self.database, self.catalog, self.encryption)
        self.sealed_reads = SealedReads(self.database)
        self.planner = Planner(self.database, self.events)
        self.work = Work(
            self.database,
            self.transactor,
            self.publisher,
            self.signals,
            self.activity.flows,
            self.events,
        )
        self.content = Content(self.database, self.catalog, self.encryption, self.fetcher)
        self.stream_overview = Overview(self.database)
        self.jobs.add("stream_windows", FORGET_INTERVAL_S, forget_windows)

    def _keep_entries(self) -> None:
        """Streams with the verbs of Redis, over the same log."""
        self.entries = Entries(
            self.hot,
            self.catalog,
            self.cache,
            self.encryption,
            self.clock,
            self.background,
            self.events,
        )
        self.signals.heed_writes_if(self._anybody_reads)

    def _anybody_reads(self) -> bool:
        """Whether somebody here wants to know what others write."""
        return self.dispatcher.has_feeds or self.popper.has_labels or self.entries.blocked > 0

    def _keep_jobs(self) -> None:
        """Tasks: results and keys of jobs, and what is pushed by the calendar."""
        self.browser = Browser(self.database, self.catalog, self.encryption)
        states = JobStates(
            self.database, self.catalog, self.message_finder, self.browser, self.encryption
        )
        self.job_waits = JobWaits(self.database, states, self.events)
        self.job_keys = JobKeys(self.database, self.intake, self.transactor, states)
        self.job_results = JobResults(
            self.transactor, self.ack_intake, self.encryption, self.events
        )
        self.schedules = Schedules(self.database, self.clock, self.outbox, self.encryption)
        self.ticker = Ticker(self.database, self.maintenance)
        self.signals.also_listen("queen_schedules", self.ticker.wake)
        self.jobs.add(RESULTS_JOB, RESULTS_INTERVAL_S, forget_results)
        self.jobs.add(KEYS_JOB, KEYS_INTERVAL_S, self.job_keys.forget_some)

    def _administrate(self) -> None:
        """The verbs of those who look after queues."""
        self.queues = Queues(self.database, self.catalog, self.encryption, self.events)
        self.dead_letters = DeadLetters(self.database, self.catalog, self.encryption, self.appender)
        self.eraser = Eraser(self.database, self.encryption)
        self.lag = Lag(self.database)
        self.problems = Problems(self.database)
        self.search = Search(self.database)
        self.groups = Groups(self.database, self.kinds, self.events)
        self.traces = Traces(self.database, self.limits.trace_days)
        self.tokens = Tokens(self.hot)
        self.audit_trail = AuditTrail(self.database)
        self.numbers = StoredNumbers(self.database)
        self.storage = Storage(self.database)
        self.checkup = Checkup(self.database, self.numbers, self.storage, self.spool_desk)
        self.pipelines = Pipelines(self.database)
        self.flow_map = FlowMap(self.database, self.pipelines)
        self.machinery = Machinery(self.database)
        self.time_steps = TimeSteps(
            self.database,
            self.signals,
            self.groups,
            self.relay,
            self.ticker,
            self.jobs,
            self.planner,
            self.work,
        )

    def _observe(self) -> None:
        self.statistics = Statistics(
            self.database, self.jobs, lambda: self.activity.version() + self.groups.version
        )
        self.vitals = Vitals(
            self.database,
            lambda: self.activity.requests,
            lambda: self.popper.parked_count,
            lambda: self.pusher.waiting,
        )
        self.report = ActivityReport(
            self.database,
            self.activity,
            self.popper.parked,
            self.vitals.report,
            self.limits.metrics_retention_days,
        )
        self.jobs.add("forget_activity", _FORGET_INTERVAL_S, self.report.forget_old)

    def _clean_up(self) -> None:
        limits = self.limits
        retention = Retention(limits.abandoned_group_days, limits.idle_partition_days)
        self.indexer = Indexer(self.hot, self.jobs, self.events)
        self.jobs.add(RETENTION_JOB, limits.retention_interval_s, retention.remove_old)
        self.merger = Merger(self.encryption, limits.merge_after_s)
        if limits.merge_after_s:
            self.jobs.add("merge", MERGE_INTERVAL_S, self.merger.merge_some, rest=MERGE_REST)
        self.jobs.add("reseal", REENCRYPT_INTERVAL_S, Reencrypter(self.encryption).encrypt_some)
        self.jobs.add("idle_partitions", CLEANUP_INTERVAL_S, retention.drop_idle)
        self.jobs.add(JOB, JOB_INTERVAL_S, self.traces.forget_old)
        self.jobs.add(HOLDERS_JOB, HOLDERS_INTERVAL_S, self.holders.forget_old)
        self.jobs.add(SINKS_JOB, SINKS_INTERVAL_S, self.sinks.remove_old)

    @classmethod
    async def start(
        cls,
        dsn: str,
        limits: Limits | None = None,
        keys: KeyRing | None = None,
        name: ServerName | None = None,
        spool: SpoolSettings | None = None,
        unprepared: Requirements | None = None,
        home: str | None = None,
    ) -> Broker:
        """Start all of it. A database that is `unprepared` is away, and prepared when it is
        back."""
        limits = limits or Limits()
        database = await Database.connect(dsn, size=limits.connections)
        broker = cls(dsn, database, limits, keys or KeyRing(), name or ServerName(), spool, home)
        if unprepared is not None:
            database.breaker.begin_open(partial(broker._prepare, unprepared))
        else:
            # Before the first push, or it would have to wait in the spool.
            with suppress(Unavailable):
                await broker.maintenance.refresh()
        for loop_name, loop in broker._loops().items():
            broker.supervisor.start(loop_name, loop)
        broker.watchdog.start()
        return broker

    async def _prepare(self, requirements: Requirements) -> None:
        try:
            await prepare(self._dsn, requirements)
        except StartupError as error:
            self.refused.set_result(error)
            # Whoever started us ends us.
            await asyncio.Event().wait()

    def _loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What runs beside the requests, for as long as the server does."""
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "breaker": self.hot.breaker.run,
            "timers": self.sweeper.run_timers,
            "sweeper": self.sweeper.run_net,
            "labels": self.popper.run_labels,
            "jobs": self.jobs.run,
            "maintenance": self.maintenance.run,
            "activity": self.report.run,
            "vitals": self.vitals.run,
            "relay": self.relay.run,
            "holders": self.holders.run,
            "ticker": self.ticker.run,
            "results": self.job_waits.run,
            "planner": self.planner.run,
            "entries": self.entries.run,
            "sender": self.signals.run_sender,
            "listener": lambda: self.signals.run_listener(self._listener),
        }
        if self.home.has_others:
            loops["home"] = self.home.run
        if self.drain is not None:
            loops["drain"] = self.drain.run
        return loops

    async def stop(self) -> None:
        """Finish what is under way, answer who waits, close.

        What cannot be finished is logged and holds up nothing that comes after it.
        """
        try:
            self.work.close()
            await _try_step("answering pops", self.popper.close)
            await _try_step("finishing commands on streams", self.entries.close)
            await _try_step("finishing pushes", self.pusher.drain)
            self.handoffs.release_all()
            await _try_step("finishing acknowledgments", self.acker.drain)
            await _try_step("answering other workers", self.home.finish_calls)
            if self.drain is not None:
                await _try_step("draining the spool", partial(self.drain.finish, _DRAIN_S))
            await _try_step("ending loops", self.supervisor.stop)
            await _try_step("writing activity", self.report.flush)
        finally:
            self.watchdog.stop()
            if self.basins is not None:
                await _try_step("closing the spool", self.basins.close)
            await self.database.close()

    async def _listener(self) -> asyncpg.Connection:
        return await asyncpg.connect(self._dsn, timeout=5, server_settings=session_settings())


async def _try_step(what: str, step: Callable[[], Awaitable[None]]) -> None:
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
