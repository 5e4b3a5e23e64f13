"""Sinks: many tasks stage, one commit publishes.

A program that computes in many places at once, Spark above all, cannot push as it goes: a task
may fail and be repeated, a whole batch may be repeated after a crash. So each attempt of a task
stages its messages under its own name, and the driver publishes a batch by naming the attempts
that count. The batch is recorded in the transaction that publishes it, so that to publish it
again is to be told `already`.

    open   ─▶ epoch        a run of the sink; fences every run that opened before it
    stage  ─▶ parts        of (sink, batch, run, task, attempt), in nobody's sight
    commit ─▶ published    all named stages in one transaction, or `already`
    abort                  drops stages; does not touch what is published

What is staged and never named is removed later: when its batch is published, when another run
has opened, or after a day. See `queen.service.sinks.publish` for the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from queen.core.names import reason_against_name
from queen.errors import BadRequest, Conflict, EncryptionUnavailable, NotFound, Unavailable
from queen.service.admin.maintenance import Maintenance
from queen.service.catalog import Catalog, Partition
from queen.service.log.append import Append
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.scope import Scope, Viewer, listed
from queen.storage.database import Database, Transaction
from queen.wire.sinks import CommitSink

JOB = "sinks"
JOB_INTERVAL_S = 30.0
# Longer than any batch takes from its first task to its commit.
_PART_HOURS = 24
# How long a sink that publishes once can still be asked whether it has.
_ONCE_HOURS = 7 * 24
_PARTS_IN_ROUND = 200


class Opened(NamedTuple):
    """A run that may publish, and the last batch that was published before it."""

    epoch: int
    last_batch: int


class Stage(NamedTuple):
    """The name of what one attempt of a task stages."""

    sink: str
    batch: int
    run: str
    task: int
    attempt: int


class NamedStage(NamedTuple):
    """One stage of a commit, and how much it must hold."""

    task: int
    attempt: int
    messages: int


class Batch(NamedTuple):
    """A batch of a sink, and what it consists of."""

    sink: str
    epoch: int
    run: str
    number: int
    stages: Sequence[NamedStage]
    # What the messages come from, as the columns of `queen.flows` say it; None is the sink itself.
    origin: tuple[str, int, str] | None = None


class Sinks:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        scope: Scope,
        encryption: SegmentEncryption,
        maintenance: Maintenance,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._scope = scope
        self._encryption = encryption
        self._maintenance = maintenance

    async def open(
        self, sink: str, run: str, namespaces: list[str] | None, *, once: bool
    ) -> Opened:
        """Let a run publish from now on, and none that opened before it."""
        row = await self._database.fetchrow("open_sink", sink, run, namespaces, once)
        if row["hidden"]:
            raise NotFound(f"Query {sink!r} not found")
        if row["fenced"]:
            raise _fenced_error(sink)
        return Opened(row["epoch"], row["last_batch"])

    async def check(self, sink: str, epoch: int, namespaces: list[str] | None) -> None:
        """Raise unless this is the run that may publish, and the caller's to see."""
        row = await self._database.findrow("sink", sink, namespaces)
        if row is None or not row["visible"]:
            raise NotFound(f"Query {sink!r} not found; open it first")
        check_epoch(sink, epoch, row["epoch"])

    async def batch(self, viewer: Viewer, sink: str, sent: CommitSink) -> Batch:
        """Return a batch that the viewer may publish."""
        for kind, name in (("query", sink), ("run", sent.run)):
            reason = reason_against_name(kind, name)
            if reason:
                raise BadRequest(reason)
        if len({stage.task for stage in sent.stages}) < len(sent.stages):
            raise BadRequest("a task is named twice among the stages")
        stages = [NamedStage(stage.task, stage.attempt, stage.messages) for stage in sent.stages]
        batch = Batch(sink, sent.epoch, sent.run, sent.batch, stages)
        await self.check(sink, sent.epoch, listed(viewer.namespaces))
        if viewer.namespaces is not None:
            for name in await self._scope.hidden_queues(viewer, await self.queues(batch)):
                raise NotFound(f"Queue {name!r} not found")
        return batch

    async def stage(self, stage: Stage, part: int, appends: list[Append], *, unique: bool) -> int:
        """Keep messages for a commit; returns how many. The same part twice is one part."""
        self._maintenance.check_push()
        partitions = await self._find_partitions(appends)
        codecs, bodies = [], []
        for append, partition in zip(appends, partitions, strict=True):
            codec, body = self._encrypt_if_asked(append, partition)
            codecs.append(codec)
            bodies.append(body)
        await self._database.execute(
            "stage_part",
            *stage[:3],
            stage.task,
            stage.attempt,
            part,
            not unique,
            [partition.id for partition in partitions],
            [append.queue for append in appends],
            [append.partition for append in appends],
            [len(append) for append in appends],
            codecs,
            [None if unique else append.hash().tobytes() for append in appends],
            bodies,
        )
        return sum(map(len, appends))

    async def _find_partitions(self, appends: list[Append]) -> list[Partition]:
        await self._catalog.resolve((append.queue, append.partition) for append in appends)
        partitions = [self._catalog.known(append.queue, append.partition) for append in appends]
        if None in partitions:
            raise Unavailable("a queue was deleted while it was written")
        return [partition for partition in partitions if partition is not None]

    def _encrypt_if_asked(self, append: Append, partition: Partition) -> tuple[int, bytes]:
        assert append.encoded is not None
        if not partition.queue.options.encryption_enabled:
            return append.encoded
        if not self._encryption.keys:
            raise EncryptionUnavailable
        return self._encryption.encrypt_segment(partition.id, *append.encoded)

    async def abort(self, batch: Batch) -> int:
        """Drop stages of a batch; returns how many parts there were."""
        rows = await self._database.fetch("sink_parts", *parts_key(batch))
        if rows:
            await self._database.execute("drop_parts", [row["id"] for row in rows])
        return len(rows)

    async def queues(self, batch: Batch) -> list[str]:
        """Return the queues that a batch goes to."""
        parts = await self._database.fetch("sink_parts", *parts_key(batch))
        rows = await self._database.fetch("sink_queues", [row["id"] for row in parts])
        return [row["queue"] for row in rows]

    async def remove_old(self, transaction: Transaction) -> bool:
        """Remove some of what nobody will publish; return whether there may be more."""
        rows = await transaction.fetch("parts_nobody_wants", _PART_HOURS, _PARTS_IN_ROUND)
        if rows:
            await transaction.execute("drop_parts", [row["id"] for row in rows])
        await transaction.execute("forget_sinks", _ONCE_HOURS)
        return len(rows) == _PARTS_IN_ROUND


def parts_key(batch: Batch) -> tuple[str, int, str, list[int], list[int]]:
    """Return the arguments of the statement that finds the parts of a batch."""
    tasks = [stage.task for stage in batch.stages]
    return batch.sink, batch.number, batch.run, tasks, [stage.attempt for stage in batch.stages]


def check_epoch(sink: str, epoch: int, current: int) -> None:
    if epoch != current:
        raise _fenced_error(sink)


def _fenced_error(sink: str) -> Conflict:
    return Conflict(
        f"another run of query {sink!r} has been started since; "
        "this one may not publish any more and should stop"
    )
