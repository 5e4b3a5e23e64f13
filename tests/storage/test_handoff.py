"""A push that leases what it stores, and acks that go with it, whatever is in the way."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from queen.core.options import QueueOptions
from queen.errors import OutcomeUnknown
from queen.service.acks.ack_batch import OffsetBatch
from queen.service.broker import Broker, Limits
from queen.service.catalog import Partition
from queen.service.consume.feeds import Feed, Grant, Pop
from queen.service.log.append import Append
from queen.storage.database import Database
from tests.waiting import spend_async, until_met

_HOT = {"append", "append_lone", "append_and_lease", "claim", "claim_lone", "ack_spans", "ack_lone"}


@pytest.fixture
async def broker(dsn: str) -> AsyncIterator[Broker]:
    started = await Broker.start(dsn, Limits(dedup_hashes=1000, connections=4))
    yield started
    await started.stop()


@pytest.fixture
async def other(dsn: str) -> AsyncIterator[Broker]:
    started = await Broker.start(dsn, Limits(dedup_hashes=1000, connections=3))
    yield started
    await started.stop()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The statements that were sent, by name."""
    names: Counter[str] = Counter()
    run = Database.run

    async def counting(self: Database, connection: Any, name: str, *rest: Any) -> Any:
        names[name] += 1
        return await run(self, connection, name, *rest)

    monkeypatch.setattr(Database, "run", counting)
    return names


def _hot(sent: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in sent.items() if name in _HOT}


async def _push(broker: Broker, name: str, *ids: str, partition: str = "p") -> Append:
    columns = [each.encode() for each in ids], [b"1"] * len(ids)
    append = Append(name, partition, *columns, 100)
    await broker.pusher.push([append])
    return append


def _pop_of(group: str = "g", batch: int = 10, *, waits: bool = True, **more: Any) -> Pop:
    pop = Pop(group, batch, waits=waits, **more)
    pop.is_framed = True
    return pop


async def _pop(broker: Broker, name: str, pop: Pop, wait_s: float = 60) -> list[Grant]:
    queue = await broker.catalog.queue(name)
    assert queue is not None
    return await broker.popper.pop([queue], pop, wait_s)


async def _pop_after(
    broker: Broker, name: str, done: OffsetBatch, pop: Pop, wait_s: float = 60
) -> list[Grant]:
    queue = await broker.catalog.queue(name)
    assert queue is not None
    return await broker.handoffs.pop_after([done], [queue], pop, wait_s)


def _done(broker: Broker, grant: Grant, stop: int | None = None) -> OffsetBatch:
    """Return the ack of a grant, up to an offset."""
    owner = grant.partition, grant.group, _feed(broker, grant.partition, grant.group).group_id
    end = grant.stop if stop is None else stop
    count = end - grant.start
    return OffsetBatch(*owner, grant.lease_id, runs=[(grant.start, end)], count=count)


def _feed(broker: Broker, partition: Partition, group: str = "g") -> Feed:
    feed = broker.dispatcher.feed(partition.queue.id, group)
    assert feed is not None
    return feed


async def _waiting(broker: Broker, name: str, pop: Pop | None = None) -> asyncio.Task[list[Grant]]:
    """Return a pop that waits."""
    before = broker.popper.parked_by_name().get(name, 0)
    waiting = asyncio.create_task(_pop(broker, name, pop or _pop_of()))
    await until_met(lambda: broker.popper.parked_by_name().get(name, 0) > before)
    return waiting


async def _waiting_after(
    broker: Broker, name: str, done: OffsetBatch, pop: Pop | None = None
) -> asyncio.Task[list[Grant]]:
    """Return a pop that waits and has brought an ack."""
    waiting = asyncio.create_task(_pop_after(broker, name, done, pop or _pop_of()))
    await until_met(lambda: broker.popper.parked_by_name().get(name, 0))
    return waiting


@pytest.fixture
async def used(broker: Broker) -> tuple[str, Grant]:
    """A queue, and what is leased of its only partition: the second message."""
    await broker.queues.configure(name := uuid.uuid4().hex, "", "", QueueOptions())
    await _push(broker, name, "first")
    (grant,) = await _pop(broker, name, _pop_of())
    await broker.acker.ack([_done(broker, grant)])
    waiting = await _waiting(broker, name)
    await _push(broker, name, "second")
    (grant,) = await waiting
    return name, grant


async def _committed(connection: asyncpg.Connection, grant: Grant) -> int:
    query = "select committed from cursors where partition_id = $1"
    committed: int = await connection.fetchval(query, grant.partition.id)
    return committed


@pytest.fixture
def long_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acks wait for a push longer than a test takes."""
    monkeypatch.setattr("queen.service.consume.handoff._HELD_S", 600.0)


# ---- what is saved ----


async def test_a_push_leases_what_it_stores_to_who_waits(
    broker: Broker, used: tuple[str, Grant], sent: Counter[str]
) -> None:
    name, grant = used
    await broker.acker.ack([_done(broker, grant)])
    # Whichever connection it is.
    for number in range(2 * broker.limits.connections):
        sent.clear()
        waiting = await _waiting(broker, name)
        await _push(broker, name, f"third {number}", f"fourth {number}")
        (given,) = await waiting
        assert (given.start, given.stop, given.attempt) == (grant.stop, grant.stop + 2, 1)
        assert given.epoch > grant.epoch
        assert _hot(sent) == {"append_and_lease": 1}
        grant = given
        await broker.acker.ack([_done(broker, grant)])
    assert await _pop(broker, name, _pop_of(waits=False)) == []


@pytest.mark.usefixtures("long_held")
async def test_push_ack_and_claim_are_one_statement(
    broker: Broker, connection: asyncpg.Connection, used: tuple[str, Grant], sent: Counter[str]
) -> None:
    name, grant = used
    sent.clear()
    for number in range(10):
        done = _done(broker, grant)
        waiting = await _waiting_after(broker, name, done)
        await _push(broker, name, f"next {number}")
        (given,) = await waiting
        assert done.is_taken and done.committed == grant.stop == given.start
        assert await _committed(connection, grant) == given.start
        grant = given
    assert _hot(sent) == {"append_and_lease": 10}


async def test_no_more_is_leased_than_was_asked_for(
    broker: Broker, used: tuple[str, Grant]
) -> None:
    name, grant = used
    await broker.acker.ack([_done(broker, grant)])
    waiting = await _waiting(broker, name, _pop_of(batch=2))
    await _push(broker, name, "a", "b", "c")
    (given,) = await waiting
    assert given.stop - given.start == 2
    done = _done(broker, given)
    (rest,) = await _pop_after(broker, name, done, _pop_of())
    assert done.is_taken and (rest.start, rest.stop) == (given.stop, given.stop + 1)


async def test_groups_that_wait_are_all_given_it(broker: Broker, used: tuple[str, Grant]) -> None:
    name, grant = used
    await broker.acker.ack([_done(broker, grant)])
    for group in ("other", "another"):
        assert await _pop(broker, name, _pop_of(group, 100, waits=False, auto_ack=True))
    waiting = [await _waiting(broker, name, _pop_of(group)) for group in ("g", "other", "another")]
    push = await _push(broker, name, "for all")
    given = [(grant.group, grant.start) for (grant,) in await asyncio.gather(*waiting)]
    assert given == [(group, push.offset_of(0)) for group in ("g", "other", "another")]


# ---- acks that wait ----


async def test_an_ack_without_a_push_goes_by_itself_though_its_pop_waits_on(
    broker: Broker, connection: asyncpg.Connection, used: tuple[str, Grant]
) -> None:
    name, grant = used
    done = _done(broker, grant)
    waiting = await _waiting_after(broker, name, done)
    await until_met(lambda: done.done is not None and done.done.done())
    assert done.is_taken and await _committed(connection, grant) == grant.stop
    assert not waiting.done()
    waiting.cancel()


@pytest.mark.usefixtures("long_held")
@pytest.mark.parametrize("end", ["gone", "answered", "stopping"])
async def test_an_ack_whose_pop_ends_goes_by_itself(
    broker: Broker, connection: asyncpg.Connection, used: tuple[str, Grant], end: str
) -> None:
    name, grant = used
    done, pop = _done(broker, grant), _pop_of()
    waiting = await _waiting_after(broker, name, done, pop)
    if end == "gone":
        waiting.cancel()
    elif end == "answered":
        pop.answer_empty()
        assert await waiting == []
    else:
        broker.handoffs.release_all()
    assert done.done is not None
    await done.done
    assert done.is_taken and await _committed(connection, grant) == grant.stop
    waiting.cancel()


@pytest.mark.usefixtures("long_held")
async def test_an_ack_waits_for_nothing_when_there_is_more(
    broker: Broker, used: tuple[str, Grant], sent: Counter[str]
) -> None:
    name, grant = used
    push = await _push(broker, name, "more")
    sent.clear()
    (given,) = await _pop_after(broker, name, _done(broker, grant), _pop_of())
    assert given.start == push.offset_of(0)
    assert sent["ack_lone"] == 1 and not sent["append_and_lease"]


@pytest.mark.usefixtures("long_held")
async def test_an_ack_of_a_part_waits_for_nothing(broker: Broker, used: tuple[str, Grant]) -> None:
    name, grant = used
    await broker.acker.ack([_done(broker, grant)])
    waiting = await _waiting(broker, name)
    await _push(broker, name, "a", "b")
    (given,) = await waiting
    done = _done(broker, given, stop=given.start + 1)
    # The rest of the lease is still held.
    assert await _pop_after(broker, name, done, _pop_of(waits=False)) == []
    assert done.is_taken and not done.is_over


@pytest.mark.usefixtures("long_held")
async def test_a_lapsed_lease_is_not_acked_with_a_push(
    broker: Broker, connection: asyncpg.Connection, used: tuple[str, Grant]
) -> None:
    name, grant = used
    done = _done(broker, grant)
    waiting = await _waiting_after(broker, name, done)
    await connection.execute(
        "update cursors set lease_until = clock_timestamp() where partition_id = $1",
        grant.partition.id,
    )
    await _push(broker, name, "third")
    assert await waiting == []
    assert not done.is_taken and done.lost == 1
    # Nothing was leased for it, and what it held comes again.
    (again,) = await _pop(broker, name, _pop_of())
    assert (again.start, again.stop, again.attempt_of(again.start)) == (grant.start, 3, 2)


async def test_a_refused_ack_is_told_though_its_pop_would_wait(
    broker: Broker, used: tuple[str, Grant]
) -> None:
    name, grant = used
    done = _done(broker, grant)
    done.lease_id = uuid.uuid4()
    assert await _pop_after(broker, name, done, _pop_of()) == []
    assert not done.is_taken and done.lost == 1


# ---- what is in the way ----


@pytest.mark.parametrize("with_ack", [False, True])
@pytest.mark.parametrize(
    "prepare",
    [
        "update groups set paused = true where id = $2 and $1 > 0",
        "update groups set shared = true where id = $2 and $1 > 0",
        "update cursors set retry_at = clock_timestamp() + interval '1 hour' "
        "where partition_id = $1 and group_id = $2",
        "update cursors set lease_id = gen_random_uuid(), batch_end = 5, "
        "lease_until = clock_timestamp() + interval '1 hour' "
        "where partition_id = $1 and group_id = $2",
        "update cursors set committed = 1, lease_id = null, batch_end = null "
        "where partition_id = $1 and group_id = $2",
        "delete from cursors where partition_id = $1 and group_id = $2",
    ],
    ids=["paused", "shared", "not due", "leased", "moved back", "gone"],
)
@pytest.mark.usefixtures("long_held")
async def test_a_push_leases_nothing_where_something_is_in_the_way(
    broker: Broker,
    connection: asyncpg.Connection,
    used: tuple[str, Grant],
    prepare: str,
    *,
    with_ack: bool,
) -> None:
    name, grant = used
    if with_ack:
        waiting = await _waiting_after(broker, name, _done(broker, grant))
    else:
        await broker.acker.ack([_done(broker, grant)])
        waiting = await _waiting(broker, name)
    group_id = _feed(broker, grant.partition).group_id
    await connection.execute(prepare, grant.partition.id, group_id)
    head = grant.partition.head
    arguments = [
        grant.partition.queue.id, grant.partition.id, 1, head, None, 0, b"12345678", b"body",
        None, 100, group_id, uuid.uuid4(), 60_000, 10, grant.lease_id if with_ack else None,
    ]  # fmt: skip
    (row,) = await broker.hot.fetch("append_and_lease", *arguments)
    assert (row["outcome"], row["head"], row["epoch"]) == (0, head, None)
    waiting.cancel()


async def test_what_another_server_wrote_comes_first(
    broker: Broker, other: Broker, used: tuple[str, Grant], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, grant = used
    await broker.acker.ack([_done(broker, grant)])
    # This server is not told of it.
    monkeypatch.setattr(broker.signals, "_hear", lambda *_: None, raising=False)
    waiting = await _waiting(broker, name)
    theirs, ours = await asyncio.gather(_push(other, name, "theirs"), _push(broker, name, "ours"))
    given = list(await waiting)
    while sum(each.stop - each.start for each in given) < 2:
        await broker.acker.ack([_done(broker, given[-1])])
        given += await _pop(broker, name, _pop_of())
    offsets = [offset for each in given for offset in range(each.start, each.stop)]
    assert offsets == sorted([theirs.offset_of(0), ours.offset_of(0)])


async def test_a_repeated_id_is_given_to_nobody(broker: Broker, used: tuple[str, Grant]) -> None:
    name, grant = used
    await broker.acker.ack([_done(broker, grant)])
    waiting = await _waiting(broker, name)
    assert (await _push(broker, name, "second")).is_duplicate(0)
    assert not waiting.done()
    await _push(broker, name, "third")
    (given,) = await waiting
    assert given.start == grant.stop


async def test_who_hangs_up_meanwhile_gives_it_back(
    broker: Broker, used: tuple[str, Grant], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, grant = used
    await broker.acker.ack([_done(broker, grant)])
    waiting = await _waiting(broker, name)
    fetch, reached, go_on = broker.hot.fetch, asyncio.Event(), asyncio.Event()

    async def slow(statement: str, *arguments: Any) -> Any:
        rows = await fetch(statement, *arguments)
        if statement == "append_and_lease":
            reached.set()
            await go_on.wait()
        return rows

    monkeypatch.setattr(broker.hot, "fetch", slow)
    pushing = asyncio.create_task(_push(broker, name, "third"))
    await reached.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    go_on.set()
    push = await pushing
    (given,) = await _pop(broker, name, _pop_of())
    assert given.start == push.offset_of(0)


@pytest.mark.usefixtures("long_held")
@pytest.mark.parametrize("is_done", [False, True])
async def test_an_unknown_outcome_loses_and_repeats_nothing(
    broker: Broker,
    connection: asyncpg.Connection,
    used: tuple[str, Grant],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_done: bool,
) -> None:
    name, grant = used
    fetch = broker.hot.fetch
    broken: list[str] = []

    async def breaking(statement: str, *arguments: Any) -> Any:
        if statement != "append_and_lease" or broken:
            return await fetch(statement, *arguments)
        broken.append(statement)
        if is_done:
            await fetch(statement, *arguments)
        raise OutcomeUnknown

    monkeypatch.setattr(broker.hot, "fetch", breaking)
    done = _done(broker, grant)
    waiting = await _waiting_after(broker, name, done)
    push = await _push(broker, name, "third")
    (given,) = await waiting
    assert broken and done.is_taken
    assert (given.start, given.stop) == (push.offset_of(0), push.offset_of(0) + 1)
    assert push.offset_of(0) == grant.stop, "stored once"
    await broker.acker.ack([_done(broker, given)])
    assert await _committed(connection, given) == given.stop


# ---- everything at once ----


class _Work:
    """What consumers of a group were given of each partition, in the order of their grants."""

    def __init__(self) -> None:
        self.seen: dict[int, list[int]] = defaultdict(list)
        self.again = 0
        self.end = False

    def note(self, grant: Grant) -> None:
        self.again += grant.attempt > 1
        self.seen[grant.partition.id] += range(grant.start, grant.stop)


async def _consume(broker: Broker, name: str, work: _Work, chance: random.Random) -> None:
    grants: list[Grant] = []
    while not work.end:
        pop, wait_s = _pop_of(batch=chance.choice([1, 2, 10])), chance.choice([0.001, 0.05, 0.5])
        queue = await broker.catalog.queue(name)
        assert queue is not None
        said = [_done(broker, grant) for grant in grants]
        if chance.random() < 0.2:
            await broker.acker.ack([*said])
            said = []
        if said:
            grants = await broker.handoffs.pop_after(said, [queue], pop, wait_s)
            assert all(batch.is_taken for batch in said)
        else:
            grants = await broker.popper.pop([queue], pop, wait_s)
        for grant in grants:
            work.note(grant)
        if chance.random() < 0.3:
            await spend_async(chance.random() / 100)
    await broker.acker.ack([_done(broker, grant) for grant in grants])


@pytest.mark.parametrize("seed", range(4))
async def test_two_servers_hand_out_each_message_once_and_in_order(
    broker: Broker, other: Broker, connection: asyncpg.Connection, seed: int
) -> None:
    chance = random.Random(seed)
    await broker.queues.configure(name := uuid.uuid4().hex, "", "", QueueOptions())
    brokers, groups = (broker, other), [_Work()]
    work = groups[0]
    consuming = [
        asyncio.create_task(_consume(chance.choice(brokers), name, work, random.Random(number)))
        for number in range(6)
    ]
    pushed: Counter[str] = Counter()
    for number in range(300):
        ids = [f"{number}-{each}" for each in range(chance.choice([1, 1, 1, 3]))]
        partition = f"p{chance.randrange(3)}"
        await _push(chance.choice(brokers), name, *ids, partition=partition)
        pushed[partition] += len(ids)
        if chance.random() < 0.5:
            await spend_async(chance.random() / 200)
    await until_met(lambda: sum(map(len, work.seen.values())) >= pushed.total())
    work.end = True
    await asyncio.gather(*consuming)
    assert work.again == 0
    assert sorted(work.seen.values()) == sorted(list(range(count)) for count in pushed.values())
    rows = await connection.fetch(
        "select c.committed, c.lease_id, p.head from cursors c "
        "join partitions p on p.id = c.partition_id join queues q on q.id = p.queue_id "
        "where q.name = $1",
        name,
    )
    assert all(row["lease_id"] is None and row["committed"] == row["head"] for row in rows)


# ---- who hangs up ----


async def test_a_pop_that_is_left_twice_is_given_back_once(
    broker: Broker, used: tuple[str, Grant], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client ends its half of the connection, and then all of it, before its ack is committed."""
    name, grant = used
    go_on, told, left = asyncio.Event(), [], []
    run, leave = Database.run, broker.popper.leave

    async def later(self: Database, connection: Any, statement: str, *rest: Any) -> Any:
        if statement.startswith("ack_"):
            await go_on.wait()
        return await run(self, connection, statement, *rest)

    def note(pop: Pop) -> None:
        left.append(pop)
        leave(pop)

    monkeypatch.setattr(Database, "run", later)
    monkeypatch.setattr(broker.popper, "leave", note)
    queue, done = await broker.catalog.queue(name), _done(broker, grant)
    assert queue is not None
    begun = broker.home.begin_pop(queue, _pop_of(), 60, [done])
    assert begun is not None
    begun.then(lambda: told.append(begun.take()))
    begun.leave()
    begun.leave()
    assert (len(left), told) == (1, [])
    go_on.set()
    await until_met(lambda: told)
    assert (told, done.is_taken) == ([[]], True)
    # It is the next one that gets what comes.
    waiting = await _waiting(broker, name)
    await _push(broker, name, "third")
    (given,) = await waiting
    assert (given.start, given.attempt) == (grant.stop, 1)
