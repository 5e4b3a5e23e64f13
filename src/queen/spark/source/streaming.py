"""Reading queues as a stream: the offset of a query is the sealed time.

A micro-batch is [T1, T2), complete and immutable, over all partitions and queues, so that
reading it again gives the same rows. Each trigger asks for a cut; while nothing is written, the
same instant comes back and there is no batch.

    {"sealed": T}                        everything before T is done
    {"sealed": T, "moves": {"q": 3},     … of queue q from the other time on, to which its
     "from": {"q": T0}}                  group was moved; the count tells this move from the last

What Spark shows as the latest offset of a source in a query's progress is the only place where one
of ours can say more. It has how much is left of each queue behind the micro-batch:

    {"sealed": T, "behind": {"q": {"messages": 12, "bytes": 3400}}}

A pattern of queues (option `queuePattern`) is cut like a list of them. The broker looks for what
matches in the same instant, and lets a queue that is made later begin behind it, so that the one
number says enough of it too.

A query with a group (option `group`) tells how far it has come at each trigger. What Spark
hands us there as the start is what its sink has finished, and it comes while nothing is
written too; `commit` would come one batch late, and never when idle.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from queen.spark.arrow.columns import check_schema, has_markers
from queen.spark.options import EARLIEST, Use, check_company, check_options, number, time_of
from queen.spark.source.backlog import Backlog
from queen.spark.source.planning import Planner, selection_of
from queen.spark.source.slices import SliceTask, read_slice
from queen.wire.cuts import Cut, Plan, QueueCut

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, Any]

_MARKER_INTERVAL_MS = 1000
# A group that stands still says so this often, so that nobody takes it for abandoned.
_REPORT_AGAIN_S = 30.0


def stream_reader(options: dict[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return what reads the queues that the options name."""
    if {"stream", "lease", "ranges"} & set(options):
        raise ValueError("windows are read in a batch: give option queue to read as a stream")
    check_options(options, Use.STREAM_READ)
    check_company(options, "markerInterval", "markers")
    check_schema(schema, options)
    return StreamReader(options, schema)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One lives in the planner as long as a query runs; the tasks have others."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._schema = schema
        self._selection = selection_of(options, must_be_whole=True)
        self._planner = Planner(self._selection)
        self._starting_time = time_of(options, "startingTime")
        self._group = options.get("group") or None
        self._dead_letters_of = options.get("deadlettersof") or None
        self._markers = has_markers(options)
        self._marker_s = (
            number(options, "markerInterval", at_least=1) or _MARKER_INTERVAL_MS
        ) / 1000
        self._max_messages = number(options, "maxMessagesPerTrigger", at_least=1)
        self._max_bytes = number(options, "maxBytesPerTrigger", at_least=1)
        # Where everything ends for a query that takes what is there and stops.
        self._target: int | None = None
        self._sealed = EARLIEST
        self._backlog = Backlog(self._selection.queues)
        # What is read: as the options name it, or what matched at the last cut.
        self._queues = self._selection.queues
        self._has_looked = self._selection.pattern is None
        self._marked_at = time.monotonic()
        self._reported: tuple[Offset | None, float] = (None, 0.0)
        # The last batch that was planned: from where, to where.
        self._planned: tuple[Offset, dict[str, int], Plan] | None = None

    # ---- where to begin and how far to go ----

    def initialOffset(self) -> Offset:  # noqa: N802
        cut = self._ask_for_cut()
        begin: Offset = {"sealed": self._beginning(cut)}
        moves = {queue.queue: queue.group.moves for queue in cut.queues if queue.group}
        if any(moves.values()):
            begin["moves"] = moves
        return begin

    def _beginning(self, cut: Cut) -> int:
        if isinstance(self._starting_time, int):
            return self._starting_time
        if self._starting_time == "latest":
            return cut.sealed
        if self._starting_time == "earliest":
            return EARLIEST
        # Unless told: where the group has got to, or the beginning.
        positions = [queue.group.doneUntil or EARLIEST for queue in cut.queues if queue.group]
        at = min(positions, default=EARLIEST)
        others = (queue for queue in cut.queues if not queue.group)
        return at if all(_begins_after(queue, at) for queue in others) else EARLIEST

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._max_messages:
            return ReadMaxRows(self._max_messages)
        return ReadMaxBytes(self._max_bytes) if self._max_bytes else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ask_for_cut().sealed

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return {"sealed": self._sealed, "behind": self._backlog.by_queue()}

    def latestOffset(self, start: Offset | None, limit: ReadLimit) -> Offset:  # noqa: N802
        start = start or self.initialOffset()
        self._report_progress(start)
        wants_marker = self._markers and self._is_marker_due()
        cut = self._cut(start, wants_marker)
        if any(queue.group and queue.group.paused for queue in cut.queues):
            return start
        moves, jumps = _moves_and_jumps(start, cut)
        if jumps and self._target is None:
            # The time it was moved to need not be sealed for the other queues yet.
            cut = self._ask_for_cut()
        until = cut.sealed if self._target is None else self._target
        if until <= start["sealed"] and not jumps:
            self._backlog.clear()
            return start
        since = self._since(start, jumps)
        plan = self._plan(since, max([until, *since.values()]), limit, jumps)
        # Now, and not when the batch is read: then it is in the checkpoint, and fails for good,
        # wherever its group is moved to.
        self._planner.check_whole(plan, since)
        wants_batch = bool(plan.messages or jumps or wants_marker) or self._ends_with_marker(start)
        if not wants_batch and not self._must_move(start, plan, until):
            return start
        end: Offset = {"sealed": plan.until}
        if moves:
            end["moves"] = moves
        if jumps:
            end["from"] = jumps
        self._planned = (end, since, plan)
        self._marked_at = time.monotonic()
        return end

    def _cut(self, start: Offset, wants_marker: bool) -> Cut:
        since = None if wants_marker or self._target is not None else start["sealed"]
        cut = self._ask_for_cut(since)
        self._sealed = max(self._sealed, cut.sealed)
        if self._group is not None and any(queue.group is None for queue in cut.queues):
            # It matches since a moment ago. From here on retention waits for the group.
            self._report_progress(start, again=True)
        return cut

    def _ask_for_cut(self, since: int | None = None) -> Cut:
        cut = self._planner.cut(since, self._group)
        if self._selection.pattern is not None:
            self._queues, self._has_looked = tuple(queue.queue for queue in cut.queues), True
        return cut

    def _is_marker_due(self) -> bool:
        return time.monotonic() - self._marked_at >= self._marker_s

    def _ends_with_marker(self, start: Offset) -> bool:
        """Whether a query that stops at the end still has to be told of the end."""
        return self._markers and self._target is not None and start["sealed"] < self._target

    def _must_move(self, start: Offset, plan: Plan, until: int) -> bool:
        """Whether a batch without messages is worth it.

        It is when others follow those of partitions that are not read, and when nobody has been
        told for long how far these have been looked at. And it is for the first one, which Spark
        makes anyway: whoever stands at the beginning misses nothing that retention removes, so
        what is written after a query began and removed before it is read would not be missed.
        """
        if start["sealed"] == EARLIEST:
            return True
        if not self._selection.partitions:
            return False
        return plan.until < until or time.monotonic() - self._marked_at >= _REPORT_AGAIN_S

    def _plan(self, since: dict[str, int], until: int, limit: ReadLimit, jumps: Any) -> Plan:
        # One number cannot say that one of several queues is still on its way.
        is_limited = not isinstance(limit, ReadAllAvailable) and (not jumps or len(since) == 1)
        if not is_limited:
            self._backlog.clear()
            return self._planner.plan(since, until)
        begin = min(since.values())
        limits = self._max_messages, self._max_bytes
        count_since = self._backlog.count_since(begin)
        plan = self._planner.plan(since, until, *limits, count_since)
        self._backlog.follow(begin, plan, until)
        return plan

    def _since(self, start: Offset, jumps: dict[str, int]) -> dict[str, int]:
        sealed: int = start["sealed"]
        return {queue: jumps.get(queue, sealed) for queue in self._queues}

    # ---- how far it has come ----

    def _report_progress(self, start: Offset, *, again: bool = False) -> None:
        """Tell the broker how far the group is: Spark asks from where its sink has finished."""
        if self._group is None or not self._has_looked:
            return
        before, reported_at = self._reported
        if again or start != before or time.monotonic() - reported_at > _REPORT_AGAIN_S:
            moves = start.get("moves", {})
            places = {queue: moves.get(queue, 0) for queue in self._queues}
            self._planner.report_progress(self._group, start["sealed"], places)
            self._reported = (start, time.monotonic())

    # ---- one batch ----

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        if not self._has_looked:
            # The first that a process does may be to read again what another one has planned.
            self._ask_for_cut(end["sealed"])
        since = self._since(start, end.get("from", {}))
        if self._planned is not None and self._planned[:2] == (end, since):
            plan = self._planned[2]
        else:
            # A batch that an earlier process planned, read again.
            plan = self._planner.plan(since, end["sealed"])
        sealed = end["sealed"] if self._markers else None
        tasks = self._planner.tasks(plan, since, sealed)
        for task in tasks:
            task.group = self._group
            task.dead_letters_of = self._dead_letters_of
        return list(tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SliceTask)
        return read_slice(partition, self._schema)

    def commit(self, end: Offset) -> None:
        """The group is told at the next trigger, with its start."""

    def stop(self) -> None:
        """Nothing to close: connections belong to the process."""


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Says why there is no reader, when Spark asks it for something.

    Spark 4.3 loses the error of a reader that cannot be made: it stops it all the same, and what
    the user sees is that there is no variable for it.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def initialOffset(self) -> Offset:  # noqa: N802
        raise ValueError(self._reason)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        raise ValueError(self._reason)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        raise ValueError(self._reason)

    def latestOffset(self, _start: Offset | None, _limit: ReadLimit) -> Offset:  # noqa: N802
        raise ValueError(self._reason)

    def read(self, _partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise ValueError(self._reason)


def _begins_after(queue: QueueCut, at: int) -> bool:
    """Whether a queue holds nothing that was written before an instant."""
    return queue.earliest is None or queue.earliest >= at


def _moves_and_jumps(start: Offset, cut: Cut) -> tuple[dict[str, int], dict[str, int]]:
    """Return how often groups were moved, and to where those that were since the start."""
    seen = start.get("moves", {})
    groups = {queue.queue: queue.group for queue in cut.queues if queue.group}
    moves = {queue: max(group.moves, seen.get(queue, 0)) for queue, group in groups.items()}
    jumps = {
        queue: group.doneUntil or EARLIEST
        for queue, group in groups.items()
        if group.moves > seen.get(queue, 0)
    }
    return {queue: count for queue, count in moves.items() if count}, jumps
