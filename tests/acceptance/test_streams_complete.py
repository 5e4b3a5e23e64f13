"""Every message in exactly one acked window, whatever happens around its edges.

Eight producers write to two queues and 200 keys; three of them on connections of their own
that append and hold their transaction open over a boundary. Windows of one second are read
by two groups, in four processes of which one is killed, or stopped for longer than its lease,
every few seconds. Servers are killed while they plan, an append hangs with its transaction
open, and seals and heads stand ahead of the clock, as one that was set back leaves them.

`QUEEN_TEST_STREAM_MESSAGES=1000000` makes it a long run.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from queen import Queen, QueenError
from queen.core.frame import compress, encode_body, segment_of
from queen.core.hashing import hash_ids
from tests.acceptance.deployment import Deployment, until
from tests.acceptance.ledger import Acked, Delivery, Written, violations
from tests.waiting import spend_async

MESSAGES = int(os.environ.get("QUEEN_TEST_STREAM_MESSAGES", "10000"))
IS_LONG = MESSAGES >= 500_000
SEED = int(os.environ.get("QUEEN_TEST_SEED", "1"))
QUEUES, KEYS, GROUPS = ("clicks", "orders"), 200, ("billing", "reports")
STREAM, RESULTS = "both", "results"
CLIENTS, WRITERS, CONSUMERS = 5, 3, 4
BATCH = 100 if IS_LONG else 30
DRAIN_S = 600.0 if IS_LONG else 90.0
# A hanging append is ended by PostgreSQL after this.
STUCK_S = 5 if IS_LONG else 1
LEASE_S = 3 if IS_LONG else 1

_APPEND = """
select outcome from queen.append(
    array[$1::integer], array[$2::bigint], array[$3::integer], array[null::bigint], array[false],
    array[1], array[0], array[$3::integer], array[$4::smallint], array[$5::bytea], array[$6::bytea])
"""
_PARTITIONS = """
select q.id as queue_id, p.id from queen.partitions p join queen.queues q on q.id = p.queue_id
where q.name = any ($1) and p.name like 'k%'
"""
_LEFT = """
select count(*) from queen.streams s
where s.name = $1 and s.planned_until > (
    select max(p.head_at) from queen.stream_sources r
      join queen.partitions p on p.queue_id = r.queue_id where r.stream_id = s.id)
and not exists (
    select 1 from queen.stream_groups g where g.stream_id = s.id and (
        g.frontier < (select max(w.id) from queen.stream_windows w where w.stream_id = s.id)
        or exists (select 1 from queen.stream_work k where k.group_id = g.id and k.state < 2)))
"""
_DONE = """
select (select sum(done) from queen.stream_groups)
     + (select count(*) from queen.stream_work where state = 2)
"""
_STEP = """
with seal as materialized (select pg_advisory_xact_lock(7001, id), id from queen.queues
                           where name = $1),
moved as (update queen.queues q
             set sealed_until = greatest(q.sealed_until, clock_timestamp() + $2 * interval '1 s')
            from seal where q.id = seal.id returning q.id)
update queen.partitions p
   set head_at = greatest(p.head_at, clock_timestamp() + $3 * interval '1 s')
  from moved where p.queue_id = moved.id and p.id % 7 = $4::integer
"""


class Run:
    """Producers, consumers and faults, and what they saw."""

    def __init__(self, deployment: Deployment, folder: Path) -> None:
        self._deployment = deployment
        self._folder = folder
        self._choice = random.Random(SEED)
        self._numbers = iter(range(MESSAGES))
        self.confirmed: set[int] = set()
        self.unknown: set[int] = set()
        self.faults: Counter[str] = Counter()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.producing = True

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self._deployment.ports]

    async def prepare(self) -> None:
        async with Queen(self.urls) as queen:
            made = queen.stream(STREAM).sources(list(QUEUES)).partitioned().tumbling_time(1)
            # Consumers that die use up tries; no window shall end among the dead.
            made = made.grace_period(0).lease_timeout(LEASE_S).retry_limit(1_000_000)
            await made.define()
            for group in GROUPS:
                await queen.consumer(STREAM, group).poll_window(timeout=0)
            # Whoever appends without a server needs partitions that are there.
            await asyncio.gather(
                *(self._begin(queen, queue, key) for queue in QUEUES for key in range(KEYS))
            )

    async def _begin(self, queen: Queen, queue: str, key: int) -> None:
        numbers = self._take(1)
        await queen.queue(queue).partition(f"k{key}").push(list(numbers))
        self.confirmed.update(numbers)

    # ---- producers ----

    def _take(self, most: int) -> list[int]:
        return list(itertools.islice(self._numbers, most))

    async def produce(self) -> None:
        clients = [self._push(number) for number in range(CLIENTS)]
        await asyncio.gather(*clients, *(self._append(number) for number in range(WRITERS)))
        self.producing = False

    async def _push(self, seed: int) -> None:
        """Push through the client, which repeats what it is not sure of."""
        choice = random.Random(SEED * 100 + seed)
        async with Queen(self.urls[seed % 2 :] + self.urls[: seed % 2]) as queen:
            while numbers := self._take(choice.randint(1, BATCH)):
                lane = queen.queue(choice.choice(QUEUES)).partition(f"k{choice.randrange(KEYS)}")
                try:
                    await lane.push(list(numbers))
                    self.confirmed.update(numbers)
                except QueenError as error:
                    self.unknown.update(numbers)
                    self.faults[f"push: {type(error).__name__}"] += 1
                if not IS_LONG:
                    await spend_async(choice.uniform(0, 0.02))

    async def _append(self, seed: int) -> None:
        """Append on a connection of our own, and be slow about the commit at boundaries."""
        choice = random.Random(SEED * 200 + seed)
        connection = await asyncpg.connect(self._deployment.dsn)
        lanes = await connection.fetch(_PARTITIONS, list(QUEUES))
        while numbers := self._take(choice.randint(1, BATCH)):
            lane = choice.choice(lanes)
            try:
                async with connection.transaction():
                    await _write(connection, lane, numbers)
                    await spend_async(choice.uniform(0, 0.15))
                self.confirmed.update(numbers)
                self.faults["held transaction"] += 1
            except asyncpg.PostgresError as error:
                self.unknown.update(numbers)
                self.faults[f"append: {type(error).__name__}"] += 1
            # The next one begins shortly before a boundary.
            if choice.random() < 0.5:
                left_s = 1 - time.time() % 1
                await spend_async(max(0.0, left_s - choice.uniform(0, 0.15)))
        await connection.close()

    # ---- consumers ----

    def start_consumer(self, number: int) -> None:
        """Start a consumer process in a place, perhaps of one that was killed."""
        path = self._folder / f"seen-{number}-{self.faults['consumer']}.jsonl"
        arguments = [",".join(self.urls), STREAM, RESULTS, ",".join(GROUPS), str(path)]
        with path.with_suffix(".log").open("w") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.acceptance.windowed", *arguments],
                stdout=said,
                stderr=said,
            )
        self._processes[number : number + 1] = [process]

    async def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    # ---- faults ----

    async def harm(self) -> None:
        """Do harm until all is written, each kind at least once."""
        kinds = [
            self._kill_consumer,
            self._kill_server,
            self._step_clock,
            self._pause_consumer,
            self._hang,
        ]
        turn = 0
        while self.producing or turn < len(kinds):
            await kinds[turn % len(kinds)]()
            turn += 1
            await spend_async(self._choice.uniform(0.1, 1.5 if IS_LONG else 0.5))

    async def _kill_consumer(self) -> None:
        number = self._choice.randrange(CONSUMERS)
        process = self._processes[number]
        process.kill()
        process.wait()
        self.faults["consumer"] += 1
        self.start_consumer(number)

    async def _pause_consumer(self) -> None:
        """Stop a consumer until its leases are over; what it acks then must be refused."""
        process = self._processes[self._choice.randrange(CONSUMERS)]
        process.send_signal(signal.SIGSTOP)
        await spend_async(1.5 * LEASE_S)
        process.send_signal(signal.SIGCONT)
        self.faults["pause"] += 1

    async def _kill_server(self) -> None:
        """Kill a server about when a boundary is planned; the other one has to do it."""
        port = self._choice.choice(self._deployment.ports)
        left_s = 1 - time.time() % 1
        await spend_async(left_s + self._choice.uniform(0, 0.03))
        if self._deployment.kill_server(port):
            self.faults["server"] += 1
        await self._deployment.start_server(port)

    async def _step_clock(self) -> None:
        """Leave behind what a clock leaves that was ahead: a seal and heads in the future."""
        connection = await asyncpg.connect(self._deployment.dsn)
        ahead_s = [self._choice.uniform(0, 2.5) for _ in range(2)]
        queue = self._choice.choice(QUEUES)
        await connection.execute(_STEP, queue, *ahead_s, self._choice.randrange(7))
        await connection.close()
        self.faults["clock"] += 1

    async def _hang(self) -> None:
        """Append and go silent with the transaction open; nothing of it may count."""
        connection = await asyncpg.connect(
            self._deployment.dsn,
            server_settings={"idle_in_transaction_session_timeout": f"{STUCK_S}s"},
        )
        lane = self._choice.choice(await connection.fetch(_PARTITIONS, list(QUEUES)))
        transaction = connection.transaction()
        await transaction.start()
        await _write(connection, lane, [-2])
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        await asyncio.wait_for(ended.wait(), STUCK_S + 10)
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError):
            await connection.close()
        self.faults["stuck append"] += 1

    # ---- the end ----

    async def drain(self) -> int:
        """Wait until everything is read; return how many windows the broker says are done."""
        connection = await asyncpg.connect(self._deployment.dsn)

        async def is_drained() -> bool:
            return bool(await connection.fetchval(_LEFT, STREAM))

        try:
            await until(is_drained, DRAIN_S)
            dead = await connection.fetchval("select count(*) from queen.stream_dead")
            assert dead == 0
            return int(await connection.fetchval(_DONE))
        finally:
            await connection.close()

    async def acks(self) -> list[Acked]:
        found: list[Acked] = []
        async with Queen(self.urls) as queen:
            results = queen.queue(RESULTS).group("check").partitions(10)
            while popped := await results.pop(batch=1000, wait_s=1):
                await queen.ack(popped)
                found += [
                    Acked(d["group"], d["window"], d["digest"], tuple(d["numbers"]))
                    for d in (message.data for message in popped)
                ]
        return found

    def deliveries(self) -> list[Delivery]:
        found: list[Delivery] = []
        for path in self._folder.glob("seen-*.jsonl"):
            for line in path.read_text().splitlines():
                seen = json.loads(line)
                found.append(Delivery(seen["group"], seen["window"], seen["digest"]))
        return found


async def _write(connection: asyncpg.Connection, lane: asyncpg.Record, numbers: list[int]) -> None:
    ids = [f"sql-{number}".encode() for number in numbers]
    body = encode_body(segment_of(ids, [str(number).encode() for number in numbers]))
    codec, stored = compress(body)
    hashes = hash_ids(ids).tobytes()
    await connection.fetch(
        _APPEND, lane["queue_id"], lane["id"], len(numbers), codec, hashes, stored
    )


@pytest.mark.slow
@pytest.mark.timeout(1800 if IS_LONG else 600)
async def test_every_message_is_in_one_acked_window(deployment: Deployment, tmp_path: Path) -> None:
    await deployment.add_server()
    await deployment.add_server()
    run = Run(deployment, tmp_path)
    await run.prepare()
    try:
        for number in range(CONSUMERS):
            run.start_consumer(number)
        began = time.monotonic()
        await asyncio.gather(run.produce(), run.harm())
        produced = time.monotonic()
        done = await run.drain()
        drained = time.monotonic()
        acks, deliveries = await run.acks(), run.deliveries()
    finally:
        await run.stop()
    print(
        f"\n{len(run.confirmed)} messages written in {produced - began:.1f} s, drained after"
        f" {drained - produced:.1f} s more; {len(acks)} acked windows, {len(deliveries)}"
        f" deliveries; {dict(run.faults)}"
    )
    assert len(acks) == done
    written = Written(frozenset(run.confirmed), frozenset(run.unknown))
    assert violations(GROUPS, written, deliveries, acks)[:20] == []
    # A tame run proves nothing.
    assert len(deliveries) > len(acks)
    kinds = ("consumer", "pause", "server", "clock", "stuck append", "held transaction")
    assert all(run.faults[kind] for kind in kinds)
    assert len(run.confirmed) > 0.9 * MESSAGES
    assert {ack.group for ack in acks} == set(GROUPS)
    assert len({ack.window for ack in acks}) > KEYS


# ---- the checker itself ----

_GOOD = [
    Acked("g", "w1", "x", (1, 2)),
    Acked("g", "w2", "y", (3,)),
    Acked("h", "w1", "x", (1, 2)),
    Acked("h", "w2", "y", (3, 4)),
]
_WRITTEN = Written(frozenset({1, 2, 3}), frozenset({4}))
_SEEN = [Delivery("g", "w1", "x")]


def test_the_checker_accepts_what_is_right() -> None:
    assert violations(("g", "h"), _WRITTEN, _SEEN, _GOOD) == []


@pytest.mark.parametrize(
    ("acks", "seen", "kind"),
    [
        (_GOOD[:1] + _GOOD[2:], [], "missing"),
        ([*_GOOD, Acked("g", "w1", "x", ())], [], "acked twice"),
        ([*_GOOD, Acked("g", "w3", "z", (2,))], [], "in two windows"),
        ([*_GOOD, Acked("g", "w3", "z", (9,))], [], "invented"),
        (_GOOD, [Delivery("h", "w2", "other")], "changed"),
    ],
)
def test_the_checker_finds_what_is_wrong(
    acks: list[Acked], seen: list[Delivery], kind: str
) -> None:
    found = violations(("g", "h"), _WRITTEN, seen, acks)
    assert {one.split(":")[0] for one in found} == {kind}
