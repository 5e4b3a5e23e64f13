"""Cuts, plans and slices, as Spark uses them; and readers who are in the middle of a page."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from queen.service.broker import Broker
from queen.service.catalog import Partition, Queue
from queen.service.instants import instant_at, microseconds
from queen.service.merged import laid_pages
from queen.service.read import fetch
from queen.service.read.sealed_reads import Plan, SealedReads, Slice
from queen.wire.frames.joined_frame import ANY_ORDER, JOINED, PLAIN, Accepted
from tests.api import Api
from tests.contract.test_sealed_reads import plan as plan_by_http
from tests.contract.test_sealed_reads import sealed
from tests.frame_contents import Told
from tests.merged.answers import ROOT, read, same, told_of
from tests.merged.conftest import Merge
from tests.merged.history import History

_BEGINNING = instant_at(0)
_SLICES = range(1, 8)
_KINDS = (PLAIN, JOINED, ANY_ORDER)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few segments at a time, so that pages end everywhere, and nothing too small to be laid."""
    monkeypatch.setattr(laid_pages, "_WORTH_STRETCHES", 2)
    monkeypatch.setattr(fetch, "_PAGE_ROWS", 7)
    monkeypatch.setattr(fetch, "_SLICE_ROWS", 9)
    monkeypatch.setattr(fetch, "_PAGE_BYTES", 4000)


async def queue_of(broker: Broker, name: str) -> Queue:
    queue = await broker.catalog.queue(name)
    assert queue is not None
    return queue


async def partitions_of(broker: Broker, history: History) -> dict[str, Partition]:
    found = await broker.catalog.partitions(set(history.partitions.values()))
    return {partition.name: partition for partition in found.values()}


async def collect(frames: AsyncGenerator[bytes, None], *, accepted: Accepted) -> list[Told]:
    messages: list[Told] = []
    async for data in frames:
        messages += told_of(data, accepted)
    return messages


async def read_slices(
    broker: Broker, slices: Sequence[Slice], *, accepted: Accepted
) -> list[list[Told]]:
    return [
        await collect(broker.fetcher.ranges(part.ranges, accepted=accepted), accepted=accepted)
        for part in slices
    ]


def flat(parts: Sequence[Sequence[Told]]) -> list[Told]:
    return [message for part in parts for message in part]


def check_counts(planned: Plan, parts: Sequence[Sequence[Told]]) -> None:
    """A plan holds what it says; how much is in each slice is looked at by a test of its own."""
    assert sum(part.messages for part in planned.slices) == planned.messages
    assert planned.messages == sum(map(len, parts))
    assert sum(held.messages for held in planned.held.values()) == planned.messages


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("page_rows", [3, 50_000])
async def test_plans_hold_everything_once(
    broker: Broker, history: History, merge: Merge, page_rows: int
) -> None:
    queue = await queue_of(broker, history.queue)
    reads = SealedReads(broker.database, page_rows=page_rows)
    until, _ = await reads.cut([queue], None, None)
    for when in ("before", "after"):
        for slices in _SLICES:
            planned = await reads.plan({queue: _BEGINNING}, until, slices)
            parts = await read_slices(broker, planned.slices, accepted=_KINDS[slices % 3])
            check_counts(planned, parts)
            same(flat(parts), history.messages(), f"{slices} slices, {when}")
            assert len(planned.slices) <= slices
        if when == "before":
            await merge(history.queue)


@pytest.mark.parametrize("page_rows", [3, 50_000])
async def test_each_slice_holds_what_its_plan_says(
    broker: Broker, history: History, merge: Merge, page_rows: int
) -> None:
    queue = await queue_of(broker, history.queue)
    reads = SealedReads(broker.database, page_rows=page_rows)
    until, _ = await reads.cut([queue], None, None)
    await merge(history.queue)
    for slices in _SLICES:
        planned = await reads.plan({queue: _BEGINNING}, until, slices)
        parts = await read_slices(broker, planned.slices, accepted=JOINED)
        said = [part.messages for part in planned.slices]
        assert said == [len(part) for part in parts], f"{slices} slices of {page_rows} rows a page"


@pytest.mark.usefixtures("small_pages")
async def test_a_plan_of_before_is_read_slice_by_slice(
    broker: Broker, history: History, merge: Merge
) -> None:
    queue = await queue_of(broker, history.queue)
    until, _ = await broker.sealed_reads.cut([queue], None, None)
    plans = [
        await broker.sealed_reads.plan({queue: _BEGINNING}, until, slices) for slices in _SLICES
    ]
    before = [await read_slices(broker, one.slices, accepted=PLAIN) for one in plans]
    await merge(history.queue)
    for planned, parts in zip(plans, before, strict=True):
        for accepted in _KINDS:
            now = await read_slices(broker, planned.slices, accepted=accepted)
            same(now, parts, f"{len(planned.slices)} slices")


@pytest.mark.usefixtures("small_pages")
async def test_ranges_of_time_are_planned_and_read(
    broker: Broker, history: History, merge: Merge, rng: random.Random
) -> None:
    queue = await queue_of(broker, history.queue)
    times = history.boundaries(rng, 10)
    ranges = [sorted(rng.sample(times, 2)) for _ in range(25)]
    ranges += [[a, b] for a, b in pairwise(times)]
    for when in ("before", "after"):
        for low, high in ranges:
            wanted = [
                one
                for one in history.messages()
                if microseconds(low) <= one.created_at_us < microseconds(high)
            ]
            planned = await broker.sealed_reads.plan({queue: low}, high, 3)
            parts = await read_slices(broker, planned.slices, accepted=ANY_ORDER)
            check_counts(planned, parts)
            same(flat(parts), wanted, f"{low} to {high}, {when}")
        if when == "before":
            await merge(history.queue)


@pytest.mark.usefixtures("small_pages")
async def test_parts_of_partitions_are_planned_and_read(
    broker: Broker, history: History, merge: Merge, rng: random.Random
) -> None:
    reads = SealedReads(broker.database, page_rows=4)
    partitions = await partitions_of(broker, history)
    times = history.boundaries(rng, 8)
    cases = []
    for number in range(24):
        some = rng.sample(sorted(partitions), rng.randint(1, len(partitions)))
        low, high = sorted(rng.choices(range(60), k=2))
        offsets = (0, 2**62) if number % 4 == 0 else (low, high + 1)
        since, until = sorted(rng.sample(times, 2)) if number % 2 else (_BEGINNING, times[-1])
        cases.append((some, since, until, offsets))

    async def answers(slices: int) -> list[Any]:
        found = []
        for some, since, until, offsets in cases:
            sources = dict.fromkeys((partitions[name] for name in some), since)
            planned = await reads.plan_partitions(sources, until, offsets, slices)
            parts = await read_slices(broker, planned.slices, accepted=JOINED)
            # A slice may reach beyond its range, by whole segments: what it holds of it counts.
            ranges = [
                [(part.partition.id, part.low, part.high) for part in one.ranges]  # type: ignore[union-attr]
                for one in planned.slices
            ]
            held = [
                [
                    message
                    for message in part
                    if any(
                        message.partition_id == number and low <= message.offset < high
                        for number, low, high in bounds
                    )
                ]
                for part, bounds in zip(parts, ranges, strict=True)
            ]
            found.append((planned.messages, flat(held)))
        return found

    before = [await answers(slices) for slices in (1, 3)]
    await merge(history.queue)
    same([await answers(slices) for slices in (1, 3)], before, "parts of partitions")


async def test_a_plan_of_partitions_of_before_is_read_after(
    broker: Broker, history: History, merge: Merge
) -> None:
    partitions = await partitions_of(broker, history)
    sources = dict.fromkeys(partitions.values(), _BEGINNING)
    until = history.stored[-1].at + timedelta(days=1)
    plans = [
        await broker.sealed_reads.plan_partitions(sources, until, offsets, slices)
        for slices in (1, 3, 7)
        for offsets in ((0, 2**62), (3, 11), (5, 6))
    ]
    before = [await read_slices(broker, one.slices, accepted=PLAIN) for one in plans]
    await merge(history.queue)
    for planned, parts in zip(plans, before, strict=True):
        for accepted in _KINDS:
            now = await read_slices(broker, planned.slices, accepted=accepted)
            same(now, parts, f"{len(planned.slices)} slices of partitions")


async def test_limits_are_met_at_the_same_instants(
    broker: Broker, history: History, merge: Merge, rng: random.Random
) -> None:
    queue = await queue_of(broker, history.queue)
    until = max(one.at for one in history.stored) + timedelta(seconds=1)
    starts = [_BEGINNING, *rng.sample(history.boundaries(rng, 8), 6)]
    limits = (1, 2, 3, 5, 8, 20, 50, 100, 1000)

    async def answers() -> list[datetime]:
        return [
            await broker.sealed_reads.admit({queue: since}, until, limit, None)
            for since in starts
            for limit in limits
        ]

    before = await answers()
    await merge(history.queue)
    same(await answers(), before, "instants of limits")


@pytest.mark.parametrize("limit", [{"max_bytes": 500}, {"max_bytes": 20_000}, {"max_messages": 7}])
async def test_batches_of_limited_size_hold_everything_once(
    broker: Broker, history: History, merge: Merge, limit: dict[str, int]
) -> None:
    """Step by step, with the merge in the midst of it."""
    queue = await queue_of(broker, history.queue)
    until, _ = await broker.sealed_reads.cut([queue], None, None)
    since, found, steps = _BEGINNING, list[Told](), 0
    while since < until:
        admitted = await broker.sealed_reads.admit(
            {queue: since}, until, limit.get("max_messages"), limit.get("max_bytes")
        )
        assert admitted > since, f"step {steps} does not get on from {since}"
        planned = await broker.sealed_reads.plan({queue: since}, admitted, 2)
        parts = await read_slices(broker, planned.slices, accepted=ANY_ORDER)
        check_counts(planned, parts)
        found += flat(parts)
        since, steps = admitted, steps + 1
        if steps == 2:
            await merge(history.queue)
    same(found, history.messages(), f"{steps} steps")


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("accepted", _KINDS, ids=["frames", "joined", "laid"])
@pytest.mark.parametrize("pages", [1, 3])
async def test_a_merge_between_two_pages_is_not_seen(
    broker: Broker,
    history: History,
    merge: Merge,
    rng: random.Random,
    accepted: Accepted,
    pages: int,
) -> None:
    queue = await queue_of(broker, history.queue)
    partitions = await partitions_of(broker, history)
    until, _ = await broker.sealed_reads.cut([queue], None, None)
    planned = await broker.sealed_reads.plan({queue: _BEGINNING}, until, 2)
    by_offset = await broker.sealed_reads.plan_partitions(
        dict.fromkeys(partitions.values(), _BEGINNING), until, (0, 2**62), 2
    )
    times = history.boundaries(rng, 6)
    fetcher, name = broker.fetcher, next(iter(partitions))
    readers: dict[str, Callable[[], AsyncGenerator[bytes, None]]] = {
        "queue": lambda: fetcher.queue(queue, accepted=accepted),
        "queue from": lambda: fetcher.queue(queue, from_time=times[4], accepted=accepted),
        "queue to": lambda: fetcher.queue(queue, to_time=times[-5], accepted=accepted),
        "partition": lambda: fetcher.partition(partitions[name], accepted=accepted),
        "partition from": lambda: fetcher.partition(
            partitions[name], from_offset=3, accepted=accepted
        ),
        "partition since": lambda: fetcher.partition(
            partitions[name], from_time=times[4], accepted=accepted
        ),
        "slice": lambda: fetcher.ranges(planned.slices[0].ranges, accepted=accepted),
        "last slice": lambda: fetcher.ranges(planned.slices[-1].ranges, accepted=accepted),
        "slice by offset": lambda: fetcher.ranges(by_offset.slices[0].ranges, accepted=accepted),
    }
    before = {what: await collect(make(), accepted=accepted) for what, make in readers.items()}
    begun = {what: make() for what, make in readers.items()}
    first = {
        what: [message for _ in range(pages) async for message in _next(frames, accepted)]
        for what, frames in begun.items()
    }
    await merge(history.queue)
    for what, frames in begun.items():
        rest = await collect(frames, accepted=accepted)
        assert rest or len(first[what]) == len(before[what]), f"{what}: nothing came after it"
        same(first[what] + rest, before[what], f"{what}, {len(first[what])} before the merge")


async def _next(
    frames: AsyncGenerator[bytes, None], accepted: Accepted
) -> AsyncGenerator[Told, None]:
    """Yield what the next page holds."""
    data = await anext(frames, b"")
    for message in told_of(data, accepted):
        yield message


async def test_a_server_plans_and_reads_as_before(api: Api, history: History, merge: Merge) -> None:
    """Over HTTP, where places travel as numbers."""
    queue = history.queue
    until = sealed(api, queue)
    plans = [plan_by_http(api, {queue: 0}, until, slices=slices) for slices in (1, 3, 7)]

    def answers() -> list[Any]:
        return [
            read(api, f"{ROOT}/slice", {"ranges": part["ranges"]})
            for planned in plans
            for part in planned["slices"]
        ]

    before = answers()
    await merge(queue)
    same(answers(), before, "slices planned before")
    again = [plan_by_http(api, {queue: 0}, until, slices=slices) for slices in (1, 3, 7)]
    for planned, old in zip(again, plans, strict=True):
        assert planned["messages"] == old["messages"] == len(history.messages())
        assert sum(part["messages"] for part in planned["slices"]) == planned["messages"]
