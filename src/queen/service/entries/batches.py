"""Running one batch of commands, until it is committed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import chain

from queen.errors import OutcomeUnknown, QueenError, Unavailable
from queen.service.background import Background
from queen.service.catalog import Partition
from queen.service.entries.bodies import Bodies
from queen.service.entries.commits import Commit
from queen.service.entries.keyspace import (
    BodyMissing,
    LogKeyspace,
    NamesMissing,
    StreamMissing,
)
from queen.service.entries.replicas import Replica, Replicas, begins_before, head_of, is_name
from queen.service.entries.times import DatabaseTime
from queen.service.events import Events
from queen.service.log.segment_cache import SegmentCache
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.scope import Viewer, listed
from queen.storage.database import Database, Record, Transaction
from queen.streambroker.engine.commands.adding import add_run, plain_adds
from queen.streambroker.engine.keyspace import Arguments, Wait
from queen.streambroker.engine.state.snapshot import encode_stream
from queen.streambroker.engine.waiting import Waiter
from queen.streambroker.replies import Failure, Reply

# Others make progress each time; so many times in a row is no accident.
_MAX_TRIES = 50
_SNAPSHOT_BYTES = 256 * 1024
_LOADED_AT_ONCE = 1000
_MISSING = (StreamMissing, BodyMissing, NamesMissing)


class NotRun(Exception):
    """Commands failed in a way that nobody has thought of; nothing is committed."""


class Unit:
    """Commands of one connection that are answered together."""

    __slots__ = (
        "commands",
        "done",
        "is_atomic",
        "is_retry",
        "replies",
        "viewer",
        "waiter",
        "weight",
    )

    def __init__(
        self,
        viewer: Viewer,
        commands: Sequence[Arguments],
        *,
        is_atomic: bool = False,
        waiter: Waiter | None = None,
    ) -> None:
        self.viewer = viewer
        self.commands = commands
        self.is_atomic = is_atomic
        # The reader that waits because of it, or that tries again.
        self.waiter = waiter
        self.is_retry = waiter is not None
        self.replies: list[Reply | Wait] = []
        self.weight = sum(map(len, chain.from_iterable(commands))) + 64 * len(commands)
        self.done: asyncio.Future[list[Reply | Wait]] = asyncio.get_running_loop().create_future()


class Worker:
    def __init__(
        self,
        database: Database,
        replicas: Replicas,
        bodies: Bodies,
        cache: SegmentCache,
        encryption: SegmentEncryption,
        clock: DatabaseTime,
        background: Background,
        events: Events,
    ) -> None:
        self._database = database
        self._replicas = replicas
        self._bodies = bodies
        self._cache = cache
        self._encryption = encryption
        self._clock = clock
        self._background = background
        self._events = events
        self._space = LogKeyspace(replicas)
        # What is being run.
        self._units: Sequence[Unit] = ()

    async def work(self, units: Sequence[Unit]) -> set[bytes]:
        """Run and commit commands; returns the streams with something new for who waits."""
        await self._clock.begin()
        for attempt in range(_MAX_TRIES):
            try:
                ready = await self._try(units, is_locked=self._is_shared(units) or attempt > 1)
            except BaseException:
                # What is in memory may be committed or not.
                for key in self._space.touched:
                    self._replicas.forget(key)
                raise
            if ready is not None:
                return ready
            await asyncio.sleep(random.random() * 0.002 * attempt)  # noqa: S311
        raise Unavailable("too many servers write to the same streams at once")

    def _is_shared(self, units: Sequence[Unit]) -> bool:
        """Whether other servers are taken to write to streams that these commands name."""
        return self._replicas.has_shared and any(
            replica.is_shared for replica in self._named(units)
        )

    def _named(self, units: Sequence[Unit]) -> list[Replica]:
        known = self._replicas.by_key
        named = {
            key: known[key]
            for unit in units
            for command in unit.commands
            for key in command[1:]
            if key in known
        }
        return [replica for replica in named.values() if replica.id is not None]

    async def _try(self, units: Sequence[Unit], *, is_locked: bool) -> set[bytes] | None:
        """Run commands and commit; None when others wrote meanwhile."""
        self._space.begin()
        self._units = units
        async with AsyncExitStack() as stack:
            within: Transaction | None = None
            if is_locked:
                within = await stack.enter_async_context(self._database.transaction())
                await self._lock(self._named(units), within)
            await self._run_all(units)
            touched = list(self._space.touched.values())
            commit = await self._commit(touched, within)
        if commit is None:
            self._forget_absent(touched)
            return None
        self._note_committed(commit)
        self._tell(commit)
        for replica in touched:
            await self._fill(replica, units)
        self._forget_absent(touched)
        self._replicas.keep_within_bounds()
        return set(self._space.ready)

    async def _lock(self, replicas: Sequence[Replica], within: Transaction) -> None:
        """Keep others from writing, and read what they wrote so far."""
        ids = sorted(replica.id for replica in replicas if replica.id is not None)
        await within.execute("lock_entry_streams", ids)
        rows = {row["id"]: row for row in await within.fetch("entry_versions", ids)}
        for replica in replicas:
            row = rows.get(replica.id or 0)
            if row is None or not await self._replicas.follow(replica, row, within):
                self._replicas.forget(replica.stream.name)

    # ---- running ----

    async def _run_all(self, units: Sequence[Unit]) -> None:
        try:
            for unit in units:
                await self._run(unit)
        except (Unavailable, OutcomeUnknown):
            raise
        except Exception as error:
            # Nothing is committed: the others can still be run without the one that is to blame.
            raise NotRun from error

    async def _fill(self, replica: Replica, units: Sequence[Unit]) -> None:
        """Read the bodies that replies have room for; who named a stream that cannot be read is
        told so, though what it did is committed."""
        try:
            await self._bodies.fill(replica)
        except QueenError as error:
            failure = Failure(f"ERR {error}")
            for unit in units:
                for at, command in enumerate(unit.commands):
                    if replica.stream.name in command and unit.replies[at]:
                        unit.replies[at] = failure

    async def _run(self, unit: Unit) -> None:
        unit.replies = []
        last = None if unit.is_atomic else unit.commands[-1]
        space, now = self._space, self._clock.now_ms()
        space.viewer = None if unit.viewer.namespaces is None else unit.viewer
        commands, at = unit.commands, 0
        while at < len(commands):
            count = plain_adds(commands, at)
            if count > 1 and await self._add_run(unit, commands[at : at + count], now):
                at += count
                continue
            command = commands[at]
            at += 1
            try:
                reply = space.run(command, now, may_wait=command is last)
            except _MISSING:
                reply = await self._run_command(unit.viewer, command, command is last)
            unit.replies.append(reply)

    async def _add_run(self, unit: Unit, commands: Sequence[Arguments], now: int) -> bool:
        """Run adds to one stream at once; returns whether that was possible."""
        try:
            replies = add_run(self._space, commands, now)
        except Failure:
            return False
        except StreamMissing as missing:
            await self._load(missing.key)
            return await self._add_run(unit, commands, now)
        unit.replies += replies or ()
        return replies is not None

    async def _run_command(
        self, viewer: Viewer, command: Arguments, may_wait: bool
    ) -> Reply | Wait:
        """Run a command; what it misses is brought, and it runs again."""
        while True:
            try:
                return self._space.run(command, self._clock.now_ms(), may_wait=may_wait)
            except StreamMissing as missing:
                await self._load(missing.key)
            except BodyMissing as missing:
                replica = self._replicas.by_key[missing.stream.name]
                await self._bodies.load(replica, missing.entry_id)
            except NamesMissing:
                rows = await self._database.fetch("entry_stream_names", listed(viewer.namespaces))
                self._space.stored_names = [row["name"].encode() for row in rows]

    async def _load(self, key: bytes) -> None:
        """Have a stream in memory, and others that the same commands will ask for: one question
        for all of them."""
        known, others = self._replicas.by_key, set[bytes]()
        for unit in self._units:
            for command in unit.commands:
                name = command[1] if len(command) > 1 else b""
                if name not in known and command[0][:1] in {b"X", b"x"} and is_name(name):
                    others.add(name)
        await self._replicas.load([key, *sorted(others - {key})[:_LOADED_AT_ONCE]])

    # ---- committing ----

    async def _commit(
        self, touched: Sequence[Replica], within: Transaction | None
    ) -> Commit | None:
        new = [each for each in touched if each.id is None and each.stream.journal]
        if new and not await self._replicas.place(new):
            self._forget_changed()
            return None
        commit = self._build([each for each in touched if each.id is not None])
        if not commit.replicas:
            return commit
        source = within or self._database
        if commit.is_empty:
            rows = await source.fetch("entry_versions", [each.id for each in commit.replicas])
            return commit if await self._are_current(commit, rows) else None
        rows = await source.fetch("commit_entries", *commit.arguments())
        self._clock.saw(rows[0]["now_ms"])
        if not rows[0]["is_done"]:
            await self._follow(commit, rows)
            return None
        commit.rows = rows
        return commit

    def _build(self, replicas: Sequence[Replica]) -> Commit:
        try:
            return Commit(replicas, self._encryption)
        except Exception as error:
            raise NotRun from error

    async def _are_current(self, commit: Commit, rows: Sequence[Record]) -> bool:
        by_id = {row["id"]: row for row in rows}
        if rows:
            self._clock.saw(rows[0]["now_ms"])
        are_current = True
        for replica in commit.replicas:
            row = by_id.get(replica.id)
            if row is not None and _is_current(replica, row):
                continue
            are_current = False
            if row is None or not await self._replicas.follow(replica, row, None):
                self._replicas.forget(replica.stream.name)
        return are_current

    async def _follow(self, commit: Commit, rows: Sequence[Record]) -> None:
        """Nothing was committed: forget what was changed in memory, and read the rest."""
        by_id = {row["stream_id"]: row for row in rows}
        for replica, record in zip(commit.replicas, commit.records, strict=True):
            row = by_id[replica.id]
            if row["version"] != replica.version:
                self._replicas.note_shared(replica)
            if record is not None:
                self._replicas.forget_changed(replica)
            elif not await self._replicas.follow(replica, row, None):
                self._replicas.forget(replica.stream.name)

    def _note_committed(self, commit: Commit) -> None:
        for replica, record, row in zip(commit.replicas, commit.records, commit.rows, strict=False):
            if record is not None:
                self._note_record(commit, replica, record, row)

    def _note_record(self, commit: Commit, replica: Replica, record: bytes, row: Record) -> None:
        replica.version += 1
        replica.used_at = time.monotonic()
        replica.journal_bytes += len(record)
        stream = replica.stream
        if stream.appended and replica.partition is not None:
            base = head_of(replica)
            for columns in commit.segments_of(replica):
                self._cache.put(replica.partition.id, base, row["created_at"], columns)
                base += columns.count
            replica.partition.saw_head(base)
            self._replicas.count_bodies(replica)
        stream.journal, stream.appended = [], []
        # What a snapshot would free counts as much as what it would shorten.
        worth = replica.journal_bytes + stream.entries.freed_bytes
        if worth > max(_SNAPSHOT_BYTES, replica.snapshot_bytes):
            self._snapshot(replica)

    def _tell(self, commit: Commit) -> None:
        """Tell those who wait, here and elsewhere."""
        written: list[Partition] = []
        for replica, record in zip(commit.replicas, commit.records, strict=True):
            if record is None or replica.partition is None:
                continue
            if replica in commit.appended:
                written.append(replica.partition)
            elif replica.stream.name in self._space.ready:
                self._events.entries_changed(replica.partition.queue.id)
        if written:
            self._events.written(written)

    def _snapshot(self, replica: Replica) -> None:
        """Keep the sum of a journal that has grown long."""
        assert replica.id is not None
        snapshot = encode_stream(replica.stream)
        replica.journal_bytes, replica.snapshot_bytes = 0, len(snapshot)
        replica.stream.entries.freed_bytes = 0
        floor = replica.stream.entries.first_ordinal()
        self._background.start(
            self._database.background.execute(
                "snapshot_entries", replica.id, replica.version, snapshot, floor
            )
        )

    # ---- forgetting ----

    def _forget_changed(self) -> None:
        """Forget what is in memory and not in the database."""
        for replica in self._space.touched.values():
            replica.stream.entries.unread.clear()
            if replica.stream.journal:
                self._replicas.forget_changed(replica)

    def _forget_absent(self, touched: Sequence[Replica]) -> None:
        """Nobody would notice when another server makes a stream that is not stored."""
        for replica in touched:
            replica.stream.entries.unread.clear()
            if replica.id is None:
                self._replicas.forget(replica.stream.name)


def _is_current(replica: Replica, row: Record) -> bool:
    """Whether a replica is what its stream is."""
    is_same = (row["version"], row["head"]) == (replica.version, head_of(replica))
    return is_same and not begins_before(replica, row["tail"])
