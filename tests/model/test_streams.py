"""Any order of events on streams, on two brokers, against what must hold.

Hypothesis draws runs of steps: pushes, time that passes, polls, acks, nacks, renewals, seeks,
pauses, new limits, recuts, deleted groups, dead windows and their return. After each step:

* every message of a planned window is in that window only, and nothing planned is missing;
* a window that comes again holds what it held before;
* of one key at most `max_in_flight` windows are leased at once, and its windows begin in order;
* a poll that finds nothing had nothing to find: of every key with unfinished windows as many
  are held, or pause before a retry, as may be.

At the end everything is read: each window is done once, or dead.
The default runs are the same every time; `QUEEN_TEST_MODEL_RUNS=5000` draws new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from queen.core.streams import StreamDefinition
from queen.errors import LeaseLost
from queen.service.admin.groups import BEGINNING
from queen.service.broker import Broker, Limits
from queen.service.log.append import Append
from queen.service.streams.work import LeasedWindow

RUNS = int(os.environ.get("QUEEN_TEST_MODEL_RUNS", "0"))
DEFAULT_RUNS, STEPS = 8, 40
T = TypeVar("T")

SIZE_S = 3600
LEASE_MS, RETRY_MS = 600_000, 600_000
GROUPS, KEYS = ("g", "h"), ("a", "b", "c")

servers = st.integers(0, 1)
groups = st.sampled_from(GROUPS)
numbers = st.integers(0, 1000)
outcomes = st.sampled_from([True, True, False])

_PLANNED = """
select w.id, w.key, w.ends_at, x.id as partition_id, x.low, x.high
from queen.stream_windows w
left join lateral unnest(w.partitions, w.from_offsets, w.to_offsets) x (id, low, high) on true
where w.stream_id = $1 order by w.id
"""
_WRITTEN = """
select s.partition_id, s.base_offset, s.end_offset, s.created_at < t.planned_until as is_planned
from queen.streams t
join queen.stream_sources r on r.stream_id = t.id
join queen.segments s on s.queue_id = r.queue_id
where t.id = $1
"""

Messages = frozenset[tuple[int, int]]


class Held:
    def __init__(self, granted: LeasedWindow, broker: int) -> None:
        self.granted = granted
        self.broker = broker


class Progress:
    """What a group has before it and behind it."""

    def __init__(self) -> None:
        # Windows by id, and what became of them.
        self.unfinished: dict[int, str] = {}
        self.seen: set[int] = set()
        self.dead: set[int] = set()
        self.revived: set[int] = set()
        self.leases: dict[int, Held] = {}
        self.resting: set[int] = set()
        self.paused = False

    def of_key(self, key: str) -> list[int]:
        return [window for window, one in self.unfinished.items() if one == key]

    def time_passes(self) -> None:
        self.leases.clear()
        self.resting.clear()


class StreamsAgainstModel(RuleBasedStateMachine):
    loop: asyncio.AbstractEventLoop
    brokers: list[Broker]
    connection: asyncpg.Connection

    def __init__(self) -> None:
        super().__init__()
        self.name = f"model-{uuid.uuid4().hex[:12]}"
        self.queues = [f"{self.name}-1", f"{self.name}-2"]
        self.definition = StreamDefinition()
        self.progress: dict[str, Progress] = {}
        self.content: dict[int, Messages] = {}
        self.keys: dict[int, str] = {}
        # Leases that are over, to be shown again.
        self.stale: list[tuple[str, LeasedWindow]] = []
        self.stream_id = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize(
        in_flight=st.sampled_from([1, 3]),
        retry_limit=st.sampled_from([0, 1, 3]),
        partitioned=st.booleans(),
        slides=st.sampled_from([False, False, True]),
    )
    def define(self, in_flight: int, retry_limit: int, partitioned: bool, slides: bool) -> None:
        self.definition = StreamDefinition(
            partitioned=partitioned,
            window_type="sliding" if slides else "tumbling",
            window_duration_ms=SIZE_S * 1000,
            window_slide_ms=SIZE_S * 500 if slides else None,
            window_grace_period_ms=0,
            window_lease_timeout_ms=LEASE_MS,
            retry_limit=retry_limit,
            retry_delay_ms=RETRY_MS,
            max_in_flight=in_flight,
        )
        self._define(0, recut=False)
        for group in GROUPS:
            self._open(group)
        # Something to work on from the first step.
        for _ in range(3):
            for key in KEYS:
                self.push(0, 0, key, 1)
            self.time_passes(0, 2)

    def _define(self, broker: int, *, recut: bool) -> None:
        made = self.run(
            self.brokers[broker].streams.define(
                self.name, "", self.definition, self.queues, recut=recut
            )
        )
        self.stream_id = made.stream.id

    def _open(self, group: str) -> None:
        stream = self.run(self.brokers[0].streams.get(self.name))
        self.run(self.brokers[0].work.group(stream, group, None))
        self.progress[group] = Progress()
        for window, key in self.keys.items():
            self.progress[group].unfinished[window] = key

    # ---- what happens to queues ----

    @rule(
        broker=servers,
        queue=st.integers(0, 1),
        key=st.sampled_from(KEYS),
        count=st.integers(1, 3),
    )
    def push(self, broker: int, queue: int, key: str, count: int) -> None:
        ids = [uuid.uuid4().hex.encode() for _ in range(count)]
        append = Append(self.queues[queue], key, ids, [b"1"] * count, 100)
        self.run(self.brokers[broker].pusher.push([append]))

    @rule(broker=servers, halves=st.integers(1, 3))
    def time_passes(self, broker: int, halves: int) -> None:
        """Windows, leases and pauses end; both brokers plan at once."""
        self.run(self._pass(broker, halves * SIZE_S / 2 + 1))
        for progress in self.progress.values():
            self.stale += [(name, held.granted) for name, held in self._leases(progress)]
            progress.time_passes()
        self._check_plan()

    def _leases(self, progress: Progress) -> Iterator[tuple[str, Held]]:
        for held in progress.leases.values():
            yield held.granted.group, held

    async def _pass(self, broker: int, seconds: float) -> None:
        await self.brokers[broker].database.fetch("pass_time", self.queues[0], seconds)
        # Both at the same moment, and then until nothing is left to plan.
        await asyncio.gather(*(one.planner.plan_due() for one in self.brokers))
        while await self.brokers[0].planner.plan_due():
            pass

    def _check_plan(self) -> None:
        rows = self.run(self.connection.fetch(_PLANNED, self.stream_id))
        held: dict[int, set[tuple[int, int]]] = {}
        for row in rows:
            held.setdefault(row["id"], set()).update(
                (row["partition_id"], at) for at in range(row["low"], row["high"])
            )
            if row["id"] not in self.keys:
                self.keys[row["id"]] = row["key"]
                for progress in self.progress.values():
                    progress.unfinished[row["id"]] = row["key"]
        for window, messages in held.items():
            assert self.content.setdefault(window, frozenset(messages)) == messages
        self._check_messages(list(held.values()))

    def _check_messages(self, windows: list[set[tuple[int, int]]]) -> None:
        """Every message that was written before the end of the plan is in a window."""
        copies = 2 if self.definition.window_type == "sliding" else 1
        counts: dict[tuple[int, int], int] = {}
        for window in windows:
            for message in window:
                counts[message] = counts.get(message, 0) + 1
        for row in self.run(self.connection.fetch(_WRITTEN, self.stream_id)):
            for at in range(row["base_offset"], row["end_offset"]):
                found = counts.pop((row["partition_id"], at), 0)
                # The later windows of a message that slides may not be planned yet.
                assert (1 if row["is_planned"] else 0) <= found <= copies
                if copies == 1:
                    assert found == (1 if row["is_planned"] else 0)
        assert not counts

    # ---- what consumers do ----

    @rule(broker=servers, group=groups)
    def poll(self, broker: int, group: str) -> None:
        self._poll(broker, group)

    @rule(group=groups)
    def poll_all(self, group: str) -> None:
        while self._poll(0, group):
            pass

    def _poll(self, broker: int, group: str) -> bool:
        progress = self.progress[group]
        granted = self.run(self._polled(broker, group))
        if granted is None:
            if not progress.paused:
                self._check_nothing_is_ready(progress)
            return False
        assert not progress.paused
        window, key = granted.lease.window_id, granted.key
        assert progress.unfinished[window] == key
        assert window not in progress.leases
        assert window not in progress.resting
        messages = {(s.partition_id, at) for s in granted.spans for at in range(s.low, s.high)}
        assert messages == self.content[window]
        progress.leases[window] = Held(granted, broker)
        leased = [one for one in progress.leases if progress.unfinished[one] == key]
        assert len(leased) <= self.definition.max_in_flight
        if window not in progress.seen and window not in progress.revived:
            # Windows of a key are first handed out in their order.
            assert all(one < window for one in progress.seen if self.keys[one] == key)
        progress.seen.add(window)
        return True

    async def _polled(self, broker: int, group: str) -> LeasedWindow | None:
        one = self.brokers[broker]
        stream = await one.streams.get(self.name)
        group_id = await one.work.find_group(stream, group)
        # Windows that are used up are buried on the way: the model learns of it below.
        granted = await one.work.poll(stream, group, group_id, "c", 0)
        await self._learn_dead(group, group_id)
        return granted

    async def _learn_dead(self, group: str, group_id: int) -> None:
        rows = await self.connection.fetch(
            "select window_id, attempts from queen.stream_dead where group_id = $1", group_id
        )
        progress = self.progress[group]
        for row in rows:
            if row["window_id"] not in progress.dead:
                assert row["attempts"] > self.definition.retry_limit
                self._is_dead(progress, row["window_id"])

    def _is_dead(self, progress: Progress, window: int) -> None:
        del progress.unfinished[window]
        progress.leases.pop(window, None)
        progress.resting.discard(window)
        progress.dead.add(window)

    def _check_nothing_is_ready(self, progress: Progress) -> None:
        for key in set(progress.unfinished.values()):
            waiting = progress.of_key(key)
            held = [one for one in waiting if one in progress.leases or one in progress.resting]
            assert len(held) >= min(self.definition.max_in_flight, len(waiting)), (
                f"{key} is stuck: {waiting}, held {held}"
            )

    def _some_lease(self, group: str, number: int) -> Held | None:
        leases = sorted(self.progress[group].leases.items())
        return leases[number % len(leases)][1] if leases else None

    @rule(
        broker=servers, group=groups, number=numbers, success=st.sampled_from([True, True, False])
    )
    def settle(self, broker: int, group: str, number: int, success: bool) -> None:
        held = self._some_lease(group, number)
        if held is None:
            return
        assert self.run(self._settled(broker, held.granted, success))
        # The same again is answered and does nothing.
        assert not self.run(self._settled(1 - broker, held.granted, success))
        progress, window = self.progress[group], held.granted.lease.window_id
        self.stale.append((group, held.granted))
        del progress.leases[window]
        if success:
            del progress.unfinished[window]
        elif held.granted.attempt > self.definition.retry_limit:
            self._is_dead(progress, window)
        else:
            progress.resting.add(window)

    async def _settled(self, broker: int, granted: LeasedWindow, success: bool) -> bool:
        work = self.brokers[broker].work
        owner = await work.owner(granted.lease)
        return await work.settle(
            owner, granted.lease, success=success, error=None, appends=[], scheduled=[]
        )

    @rule(broker=servers, group=groups, number=numbers)
    def give_back(self, broker: int, group: str, number: int) -> None:
        held = self._some_lease(group, number)
        if held is not None:
            self.run(self.brokers[broker].work.give_back(held.granted))
            del self.progress[group].leases[held.granted.lease.window_id]

    @rule(broker=servers, group=groups, number=numbers)
    def renew(self, broker: int, group: str, number: int) -> None:
        held = self._some_lease(group, number)
        if held is not None:
            lease = held.granted.lease
            assert self.run(self.brokers[broker].work.renew(lease, LEASE_MS)) is not None

    @precondition(lambda self: self.stale)
    @rule(broker=servers, number=numbers, success=st.booleans())
    def settle_too_late(self, broker: int, number: int, success: bool) -> None:
        """A lease that is over changes nothing, whoever shows it."""
        _, granted = self.stale[number % len(self.stale)]
        with contextlib.suppress(LeaseLost):
            assert not self.run(self._settled(broker, granted, success))
        assert self.run(self.brokers[broker].work.renew(granted.lease, 1000)) is None

    # ---- what operators do ----

    @rule(broker=servers, group=groups, number=numbers)
    def seek(self, broker: int, group: str, number: int) -> None:
        """Move to the end of a window, or to the beginning."""
        rows = self.run(
            self.connection.fetch(
                "select id, ends_at from queen.stream_windows where stream_id = $1 order by id",
                self.stream_id,
            )
        )
        at = rows[number % len(rows)]["ends_at"] if rows and number % 3 else BEGINNING
        stream, group_id = self._ids(broker, group)
        self.run(self.brokers[broker].work.seek(stream, group_id, at))
        progress = self.progress[group]
        self.stale += [(group, held.granted) for held in progress.leases.values()]
        before = {row["id"] for row in rows if row["ends_at"] <= at}
        dead = progress.dead & before
        paused = progress.paused
        self.progress[group] = progress = Progress()
        progress.dead, progress.paused = dead, paused
        progress.unfinished = {one: key for one, key in self.keys.items() if one not in before}

    def _ids(self, broker: int, group: str) -> tuple[Any, int]:
        stream = self.run(self.brokers[broker].streams.get(self.name))
        return stream, self.run(self.brokers[broker].work.find_group(stream, group))

    @rule(broker=servers, group=groups)
    def retry_dead(self, broker: int, group: str) -> None:
        stream, group_id = self._ids(broker, group)
        progress = self.progress[group]
        work = self.brokers[broker].work
        retried = self.run(work.retry_dead(stream, group_id, None, None, None, None))
        assert retried == len(progress.dead)
        for window in progress.dead:
            progress.unfinished[window] = self.keys[window]
            progress.revived.add(window)
        progress.dead.clear()

    @rule(group=groups, paused=st.booleans())
    def pause(self, group: str, paused: bool) -> None:
        statement = "update queen.stream_groups set paused = $1 where stream_id = $2 and name = $3"
        self.run(self.connection.execute(statement, paused, self.stream_id, group))
        self.progress[group].paused = paused

    @rule(group=groups)
    def begin_again(self, group: str) -> None:
        """Delete a group and make it anew."""
        progress = self.progress[group]
        self.stale += [(group, held.granted) for held in progress.leases.values()]
        statement = "delete from queen.stream_groups where stream_id = $1 and name = $2"
        self.run(self.connection.execute(statement, self.stream_id, group))
        self._open(group)

    @rule(broker=servers, in_flight=st.sampled_from([1, 2, 3]))
    def change_limit(self, broker: int, in_flight: int) -> None:
        self.definition = msgspec.structs.replace(self.definition, max_in_flight=in_flight)
        self._define(broker, recut=False)
        for progress in self.progress.values():
            for key in set(progress.unfinished.values()):
                self._close_above(progress, key, in_flight)

    def _close_above(self, progress: Progress, key: str, in_flight: int) -> None:
        """Above the limit the newest leases end; what rests goes on resting."""
        held = [one for one in progress.of_key(key) if one in progress.leases]
        resting = [one for one in progress.of_key(key) if one in progress.resting]
        for window in sorted(held + resting)[in_flight:]:
            if window in progress.leases:
                held_one = progress.leases.pop(window)
                self.stale.append((held_one.granted.group, held_one.granted))

    @rule(broker=servers)
    def recut(self, broker: int) -> None:
        """Other windows: each group goes on from the oldest message it had not finished."""
        slides = self.definition.window_type == "sliding"
        self.definition = msgspec.structs.replace(
            self.definition,
            window_type="tumbling" if slides else "sliding",
            window_slide_ms=None if slides else SIZE_S * 500,
        )
        owed = {
            group: set().union(*(self.content[one] for one in progress.unfinished))
            for group, progress in self.progress.items()
        }
        self._define(broker, recut=True)
        for progress in self.progress.values():
            self.stale += [(name, held.granted) for name, held in self._leases(progress)]
        self.keys.clear()
        self.content.clear()
        fresh = {group: Progress() for group in GROUPS}
        for group, progress in fresh.items():
            progress.paused = self.progress[group].paused
        self.progress = fresh
        self.run(self._pass(broker, SIZE_S))
        self._check_plan()
        for group, messages in owed.items():
            self._start_after_recut(group, messages)

    def _start_after_recut(self, group: str, owed: set[tuple[int, int]]) -> None:
        statement = """select w.id from queen.stream_groups g join queen.stream_windows w
            on w.stream_id = g.stream_id and w.ends_at > g.starts_at
            where g.stream_id = $1 and g.name = $2"""
        rows = self.run(self.connection.fetch(statement, self.stream_id, group))
        progress = self.progress[group]
        progress.unfinished = {row["id"]: self.keys[row["id"]] for row in rows}
        found: set[tuple[int, int]] = set().union(*(self.content[row["id"]] for row in rows))
        assert owed <= found

    # ---- the end ----

    def teardown(self) -> None:
        if not self.progress:
            return
        try:
            self._drain()
        finally:
            self.run(self.brokers[0].streams.delete(self.name))

    def _drain(self) -> None:
        for group in GROUPS:
            self.pause(group, False)
        self.run(self._pass(0, 2 * SIZE_S))
        for progress in self.progress.values():
            progress.time_passes()
        self._check_plan()
        for group, progress in self.progress.items():
            while self._poll(0, group):
                for held in list(progress.leases.values()):
                    assert self.run(self._settled(0, held.granted, True))
                    window = held.granted.lease.window_id
                    del progress.leases[window], progress.unfinished[window]
            assert not progress.unfinished


@pytest.fixture
def machine(dsn: str) -> Iterator[type[StreamsAgainstModel]]:
    loop = asyncio.new_event_loop()

    class Machine(StreamsAgainstModel):
        pass

    async def start() -> None:
        Machine.connection = await asyncpg.connect(dsn)
        Machine.brokers = [await Broker.start(dsn, Limits(connections=4)) for _ in range(2)]

    async def stop() -> None:
        for broker in Machine.brokers:
            await broker.stop()
        await Machine.connection.close()

    Machine.loop = loop
    loop.run_until_complete(start())
    yield Machine
    loop.run_until_complete(stop())
    loop.close()


@pytest.mark.slow
def test_streams_keep_their_promises(machine: type[StreamsAgainstModel]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=RUNS or DEFAULT_RUNS,
            stateful_step_count=STEPS,
            derandomize=not RUNS,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
