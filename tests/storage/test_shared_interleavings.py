"""Two things at once in one cursor of a shared group.

Each order of them leaves nothing lost, nothing with two, and nothing acked by a lease that is over.

The first has done its work and not committed when the second begins, on another connection.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import asyncpg
import pytest

from queen.core.cursor import AckStatus
from queen.core.options import QueueOptions
from queen.service.acks.ack_batch import OffsetBatch
from queen.service.broker import Broker, Limits
from queen.service.consume.feeds import Pop
from queen.service.consume.lease_book import BareSpan
from queen.service.log.append import Append
from queen.storage.database import Record, Transaction

COUNT = 12
LEASE_MS = 60_000

_SPANS = """
select s.first_offset, s.end_offset, s.lease_id, s.due_at > clock_timestamp() as live, array(
    select o from generate_series(s.first_offset, s.end_offset - 1) o
    where queen.bits_within(s.acked, s.failed, o - s.first_offset, o - s.first_offset + 1) is null
) as undone
from queen.shared_spans s where s.partition_id = $1 and s.group_id = $2
"""


class Case(NamedTuple):
    """A cursor of which A holds [0, 3), B [3, 6), and C lapsed over [6, 9)."""

    broker: Broker
    partition: int
    group: int
    a: uuid.UUID
    b: uuid.UUID
    c: uuid.UUID

    @property
    def key(self) -> tuple[list[int], list[int]]:
        return [self.partition], [self.group]

    async def claim(self, transaction: Transaction, lease: uuid.UUID, budget: int) -> Record:
        columns = ([1], [lease], [LEASE_MS], [False], [budget], [3], [0], [0], [0], None, False)
        (row,) = await transaction.fetch("claim_shared", *self.key, *columns)
        return row


Step = Callable[[Case, Transaction], Awaitable[object]]


async def claim(case: Case, transaction: Transaction) -> object:
    """C's messages come again."""
    row = await case.claim(transaction, uuid.uuid4(), 3)
    return row["outcome"]


async def claim_fresh(case: Case, transaction: Transaction) -> object:
    """What is due, and then what is fresh."""
    lease = uuid.uuid4()
    await case.claim(transaction, lease, 3)
    return (await case.claim(transaction, uuid.uuid4(), 2))["outcome"]


async def ack(case: Case, transaction: Transaction) -> object:
    rows = await transaction.fetch("ack_shared", *case.key, [case.a], [0], [3], False, None)
    return rows[0]["done"]


async def ack_other(case: Case, transaction: Transaction) -> object:
    rows = await transaction.fetch("ack_shared", *case.key, [case.b], [3], [6], False, None)
    return rows[0]["done"]


async def ack_late(case: Case, transaction: Transaction) -> object:
    rows = await transaction.fetch("ack_shared", *case.key, [case.c], [6], [9], False, None)
    assert rows[0]["done"] is False
    return await _settle(case, transaction, case.c, range(6, 9), AckStatus.DONE)


async def nack(case: Case, transaction: Transaction) -> object:
    """The first message of A fails, and the others go on."""
    return await _settle(case, transaction, case.a, range(1), AckStatus.FAILED)


async def nack_late(case: Case, transaction: Transaction) -> object:
    return await _settle(case, transaction, case.c, range(6, 9), AckStatus.FAILED)


async def renew(case: Case, transaction: Transaction) -> object:
    return len(await transaction.fetch("extend_shared_lease", *case.key, case.a, LEASE_MS))


async def renew_late(case: Case, transaction: Transaction) -> object:
    assert not await transaction.fetch("extend_shared_lease", *case.key, case.c, LEASE_MS)
    return None


async def give_back(case: Case, transaction: Transaction) -> object:
    await transaction.execute("release_shared_lease", *case.key, case.b, 0)
    return None


async def seek(case: Case, transaction: Transaction) -> object:
    await transaction.fetch("seek", case.group, case.partition, None, 1, False)
    return None


async def set_aside(case: Case, transaction: Transaction) -> object:
    return await transaction.fetchval("set_aside_shared", case.partition, case.group, 4)


async def turn(case: Case, transaction: Transaction) -> object:
    """To order, and a claim that finds out."""
    await transaction.fetch("set_shared", [case.group], False)
    return (await case.claim(transaction, uuid.uuid4(), 3))["outcome"]


async def _settle(
    case: Case, transaction: Transaction, lease: uuid.UUID, offsets: range, status: AckStatus
) -> object:
    partition = (await case.broker.catalog.partitions([case.partition]))[case.partition]
    low = offsets.start // 3 * 3
    batch = OffsetBatch(
        partition,
        "g",
        case.group,
        lease,
        runs=[(offsets.start, offsets.stop)] if status is AckStatus.DONE else [],
        failed={} if status is AckStatus.DONE else dict.fromkeys(offsets, status),
        count=len(offsets),
        leased=BareSpan(partition, "g", case.group, low, low + 3),
    )
    await case.broker.acker.settle_in(transaction, [batch])
    return batch.lost


STEPS: list[Step] = [
    *(claim, claim_fresh, ack, ack_other, ack_late, nack, nack_late, renew, renew_late),
    *(give_back, seek, set_aside, turn),
]


@pytest.fixture
async def broker(dsn: str) -> AsyncIterator[Broker]:
    started = await Broker.start(dsn, Limits(dedup_hashes=100_000, connections=4))
    yield started
    await started.stop()


async def _case(broker: Broker, connection: asyncpg.Connection) -> Case:
    name = f"both-{uuid.uuid4().hex[:8]}"
    await broker.queues.configure(name, "", "", QueueOptions(shared_groups=True, retry_delay=0))
    ids = [str(n).encode() for n in range(COUNT)]
    await broker.pusher.push([Append(name, "p", ids, [b"1"] * COUNT, 100)])
    queue = await broker.catalog.queue(name)
    assert queue is not None
    leases = []
    for _ in range(3):
        (grant,) = await broker.popper.pop([queue], Pop("g", 3, named="p"), 0)
        assert grant.lease_id is not None
        leases.append(grant.lease_id)
    (group,) = await broker.groups.find("g", name)
    case = Case(broker, grant.partition.id, group["id"], *leases)
    await connection.execute(
        "update queen.shared_spans set due_at = clock_timestamp() where lease_id = $1", case.c
    )
    return case


async def _check(case: Case, connection: asyncpg.Connection) -> None:
    spans = await connection.fetch(_SPANS, case.partition, case.group)
    cursor = await connection.fetchrow(
        "select committed, handed, in_flight from queen.cursors "
        "where partition_id = $1 and group_id = $2",
        case.partition,
        case.group,
    )
    assert cursor is not None
    undone = [offset for span in spans for offset in span["undone"]]
    assert len(undone) == len(set(undone)), "a message is in two spans"
    assert all(span["undone"] for span in spans), "a span has nothing left"
    if cursor["handed"] is None:
        assert not spans
    else:
        assert cursor["in_flight"] == len(undone)
        assert cursor["committed"] <= min(undone, default=cursor["handed"])
        assert all(offset < cursor["handed"] for offset in undone)
    live = [span["lease_id"] for span in spans if span["live"] and span["lease_id"]]
    assert len(live) == len(set(live))
    assert case.c not in live


@pytest.mark.parametrize("first", STEPS, ids=lambda step: step.__name__)
async def test_two_at_once(broker: Broker, connection: asyncpg.Connection, first: Step) -> None:
    for second in STEPS:
        case = await _case(broker, connection)
        results = await _run_both(case, first, second)
        await _check(case, connection)
        for step, result in zip((first, second), results, strict=True):
            if step in (ack_late, nack_late):
                assert result == 3, "a lease that is over has acked something"
        if first is seek and second in (ack, ack_other):
            assert results[1] is False, "an ack of a lease that a seek has ended"


async def _run_both(case: Case, first: Step, second: Step) -> list[object]:
    """Let the second begin before the first has committed."""

    async def later() -> object:
        async with case.broker.database.transaction() as transaction:
            return await second(case, transaction)

    async with case.broker.database.transaction() as transaction:
        result = await first(case, transaction)
        other = asyncio.create_task(later())
        # It waits for a lock, or is done before that commits.
        await asyncio.wait((other,), timeout=0.01)
    return [result, await other]
