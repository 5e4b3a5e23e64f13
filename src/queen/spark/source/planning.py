"""What to read: options to queues and times, and times to tasks.

Everything here runs on the driver's side, in the process that plans a query.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from queen.errors import HistoryGone
from queen.spark.broker import PATIENCE_S, Broker, BrokerAddress, address_of
from queen.spark.options import names_of, number, queue_names, text_of, truth
from queen.spark.source.slices import SliceTask
from queen.wire.cuts import MAX_SLICES, Cut, Plan, Progress, Range, Slice

_FIRST_PATIENCE_S = 1.0
# The least that is worth another task, and about the most that one task gets.
_SMALL_TASK_BYTES = 256 * 1024
_LARGE_TASK_BYTES = 32 * 1024 * 1024
_SMALL_TASK_MESSAGES = 5000
_MOST_TASKS_PER_CORE = 16
_MAX_PATTERN = 255


class WindowRange(msgspec.Struct):
    """What a window holds of one partition; without a queue when the partition is gone."""

    queue: str
    partitionId: str  # noqa: N815
    start: int = msgspec.field(name="from")
    stop: int = msgspec.field(name="to")


_window_ranges = msgspec.json.Decoder(list[WindowRange])
_cut = msgspec.json.Decoder(Cut)
_plan = msgspec.json.Decoder(Plan)
_progress = msgspec.json.Decoder(Progress)


class Selection(NamedTuple):
    """What to read, and from which broker."""

    address: BrokerAddress
    queues: tuple[str, ...]
    partitions: tuple[str, ...] = ()
    from_offset: int = 0
    to_offset: int | None = None
    tasks: int = 1
    must_be_whole: bool = True
    # Instead of queues: all that match.
    pattern: str | None = None
    # Whatever size there is to read.
    min_tasks: int = 1
    max_tasks: int = MAX_SLICES


def selection_of(options: Mapping[str, str], *, must_be_whole: bool) -> Selection:
    """Return what the options ask for; raises `ValueError` for what they cannot mean."""
    queues = queue_names(options.get("queue", "").strip())
    pattern = _pattern(options)
    if not queues and not {"queuepattern", "stream", "lease", "ranges"} & set(options):
        raise ValueError('say which queue to read: .option("queue", "orders"), or "orders,bills"')
    partitions = names_of("partition", options.get("partition", ""))
    if "partition" in options and not partitions:
        raise ValueError("option partition names none: leave it out to read all of them")
    from_offset = number(options, "startingOffset")
    to_offset = number(options, "endingOffset")
    if (from_offset is not None or to_offset is not None) and len(partitions) != 1:
        raise ValueError("offsets count within a partition: give option partition too, with one")
    if to_offset is not None and (from_offset or 0) > to_offset:
        raise ValueError(
            f"option startingOffset, {from_offset}, is after endingOffset, {to_offset}"
        )
    return Selection(
        address_of(options),
        tuple(dict.fromkeys(queues)),
        partitions,
        from_offset or 0,
        to_offset,
        number(options, "tasks", at_least=1) or os.cpu_count() or 1,
        truth(options, "failOnDataLoss", must_be_whole),
        pattern,
        *_bounds_of_tasks(options),
    )


def _bounds_of_tasks(options: Mapping[str, str]) -> tuple[int, int]:
    least = number(options, "minTasks", at_least=1) or 1
    most = number(options, "maxTasks", at_least=1) or MAX_SLICES
    for name, count in (("minTasks", least), ("maxTasks", most)):
        if count > MAX_SLICES:
            raise ValueError(f"option {name}: {count} is more than {MAX_SLICES}")
    if least > most:
        raise ValueError(f"option minTasks, {least}, is more than maxTasks, {most}")
    return least, most


def _pattern(options: Mapping[str, str]) -> str | None:
    pattern = options.get("queuepattern")
    if pattern is None:
        return None
    if "queue" in options:
        raise ValueError("options queue and queuePattern: name queues, or give a pattern, not both")
    if "ranges" in options:
        raise ValueError("a window knows its queues: leave option queuePattern out")
    if not 0 < len(pattern) <= _MAX_PATTERN:
        raise ValueError(f'option queuePattern: 1 to {_MAX_PATTERN} characters, such as "orders-*"')
    return pattern


def ranges_of(text: str) -> list[Range]:
    """Return the ranges of a leased window."""
    try:
        return offsets_of(_window_ranges.decode(text))
    except msgspec.DecodeError as error:
        raise ValueError(f"option ranges: the `ranges` of a window, as JSON: {error}") from None


def offsets_of(ranges: list[WindowRange]) -> list[Range]:
    """Return where to fetch what a window holds, of partitions that are still there."""
    return [
        Range(held.queue, partitionId=held.partitionId, fromOffset=held.start, toOffset=held.stop)
        for held in ranges
        if held.queue
    ]


class Planner:
    """Asks a broker what there is, and makes tasks of it."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        # A server that was never there is not waited for; one that goes away is.
        self.broker = Broker(selection.address, retry_s=_FIRST_PATIENCE_S)

    def cut(self, since: int | None = None, group: str | None = None) -> Cut:
        """Ask up to when the queues are sealed, and where the group stands."""
        body: dict[str, Any] = {"queues": self.selection.queues, "group": group}
        if self.selection.pattern is not None:
            body["pattern"] = self.selection.pattern
        if since:
            body["since"] = since
        return _cut.decode(self._ask("cut", body))

    def report_progress(self, group: str, done_until: int, moves: Mapping[str, int]) -> Progress:
        """Tell the broker up to when a group has done everything of queues."""
        if not moves:
            return Progress([])
        sources = [{"queue": queue, "moves": count} for queue, count in moves.items()]
        body = {
            "group": group,
            "sources": sources,
            "doneUntil": done_until,
            "existing": self.selection.pattern is not None,
        }
        return _progress.decode(self._ask("progress", body))

    def plan(
        self,
        since: Mapping[str, int],
        until: int,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        count_since: int | None = None,
    ) -> Plan:
        """Return slices of what was written to each queue since a time of its own."""
        chosen = self.selection
        if not since:
            # Nothing matches the pattern yet.
            return Plan([], until, 0, 0, [])
        body: dict[str, Any] = {
            "sources": [{"queue": queue, "since": at} for queue, at in since.items()],
            "existing": chosen.pattern is not None,
            "until": until,
            "partitions": chosen.partitions,
            "fromOffset": chosen.from_offset,
            "slices": min(max(chosen.tasks * _MOST_TASKS_PER_CORE, chosen.min_tasks), MAX_SLICES),
            "maxMessages": max_messages,
            "maxBytes": max_bytes,
            "countSince": count_since,
        }
        if chosen.to_offset is not None:
            body["toOffset"] = chosen.to_offset
        return _plan.decode(self._ask("plan", body))

    def _ask(self, verb: str, body: Any) -> bytes:
        answer = self.broker.call("POST", f"/api/v1/fetch/{verb}", msgspec.json.encode(body))
        self.broker.retry_s = PATIENCE_S
        return answer

    def check_whole(self, plan: Plan, since: Mapping[str, int]) -> None:
        """Raise when retention has removed something that should be read."""
        if plan.lost and self.selection.must_be_whole:
            raise HistoryGone(_loss_message(plan.lost, since))

    def tasks(
        self, plan: Plan, since: Mapping[str, int], sealed_us: int | None = None
    ) -> list[SliceTask]:
        """Return tasks of about equal size; raises when retention was quicker."""
        self.check_whole(plan, since)
        chosen = self.selection
        tasks = [self.task(*group) for group in _group_slices(plan, chosen)]
        if sealed_us is not None:
            tasks = tasks or [SliceTask(chosen.address, [], 0)]
            tasks[-1].sealed_us = sealed_us
        return tasks

    def task(self, *slices: Slice) -> SliceTask:
        """Return the task that reads some slices."""
        ranges = _merge_ranges([part for planned in slices for part in planned.ranges])
        messages = sum(planned.messages for planned in slices)
        task = SliceTask(self.selection.address, ranges, messages)
        task.must_be_whole = self.selection.must_be_whole
        task.may_lose_queues = self.selection.pattern is not None
        return task

    def tasks_of_ranges(self, ranges: list[Range]) -> list[SliceTask]:
        """Return tasks that read ranges of offsets, equally many messages each."""
        total = sum(_length(asked) for asked in ranges)
        chosen = self.selection
        wanted = max(min(chosen.tasks, total // _SMALL_TASK_MESSAGES), chosen.min_tasks)
        count = min(wanted, chosen.max_tasks)
        each = -(-total // count) or 1
        tasks, parts, size = [], list[Range](), 0
        for part in split_ranges(ranges, each):
            if size + _length(part) > each:
                tasks.append(self.task(Slice(parts, size, 0)))
                parts, size = [], 0
            parts.append(part)
            size += _length(part)
        return [*tasks, self.task(Slice(parts, size, 0))] if parts else tasks


def _loss_message(queues: list[str], since: Mapping[str, int]) -> str:
    at = text_of(min(since[queue] for queue in queues))
    names = ", ".join(repr(queue) for queue in queues)
    return (
        f"retention has removed messages of {names} written after {at}, where this read starts: "
        "start with a new checkpoint and startingTime earliest, move its group to what is left "
        "(queen seek), or set option failOnDataLoss to false to go on without them; a group "
        "(option group) keeps completedRetention from it"
    )


def _group_slices(plan: Plan, chosen: Selection) -> list[list[Slice]]:
    """Put neighbours together: as many groups as the size of all of them deserves."""
    slices = plan.slices
    tasks = cores = chosen.tasks
    if plan.bytes < cores * _SMALL_TASK_BYTES:
        tasks = max(plan.bytes // _SMALL_TASK_BYTES, 1)
    elif plan.bytes > cores * _LARGE_TASK_BYTES:
        tasks = plan.bytes // _LARGE_TASK_BYTES
    tasks = min(max(tasks, chosen.min_tasks), chosen.max_tasks, len(slices))
    if not tasks:
        return []
    edges = [len(slices) * number // tasks for number in range(tasks + 1)]
    return [slices[start:stop] for start, stop in pairwise(edges)]


def split_ranges(ranges: list[Range], longest: int) -> Iterator[Range]:
    """Yield ranges, those that are longer than `longest` in parts."""
    for whole in ranges:
        for low in range(whole.fromOffset, whole.toOffset, longest):
            high = min(low + longest, whole.toOffset)
            yield msgspec.structs.replace(whole, fromOffset=low, toOffset=high)


def _length(offsets: Range) -> int:
    return offsets.toOffset - offsets.fromOffset


def _merge_ranges(parts: list[Range]) -> list[Range]:
    """Make one range of those that follow each other: it is read in one go.

    The plan itself stays as it is: a query that reads a queue twice makes its tasks twice.
    """
    merged: list[Range] = []
    for part in parts:
        if merged and _follows(merged[-1], part):
            merged[-1] = msgspec.structs.replace(merged[-1], end=part.end, toOffset=part.toOffset)
        else:
            merged.append(part)
    return merged


def _follows(before: Range, after: Range) -> bool:
    if before.partitionId is not None:
        return before.partitionId == after.partitionId and before.toOffset == after.fromOffset
    return after.partitionId is None and before.queue == after.queue and before.end == after.start
