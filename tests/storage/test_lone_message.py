"""A lone message: one statement to push, one to claim, one to ack, whatever breaks between."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from queen.core.cursor import AckStatus
from queen.core.options import QueueOptions
from queen.errors import OutcomeUnknown
from queen.service.acks.ack_batch import AckBatch
from queen.service.broker import Broker, Limits
from queen.service.catalog import Partition
from queen.service.consume.feeds import Grant, Pop
from queen.service.log.append import Append
from queen.storage.database import Database
from tests.contract.conftest import own_database
from tests.waiting import until_met

__all__ = ["own_database"]

# What servers send by themselves, whether or not there are messages.
_HOT = {
    "append",
    "append_lone",
    "append_and_lease",
    "claim",
    "claim_lone",
    "ack_spans",
    "ack_lone",
    "unlocked_partitions",
}
_LOOKS = {"horizon", "written_since", "sweep_page"}


@pytest.fixture
async def broker(dsn: str) -> AsyncIterator[Broker]:
    started = await Broker.start(dsn, Limits(dedup_hashes=1000, connections=4))
    yield started
    await started.stop()


@pytest.fixture
async def undisturbed(own_database: str) -> AsyncIterator[Broker]:
    """A broker in whose database nobody else has staged or written anything."""
    started = await Broker.start(own_database, Limits(dedup_hashes=1000, connections=4))
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


async def _push(broker: Broker, name: str, *ids: bytes) -> Append:
    append = Append(name, "p", list(ids), [b"1"] * len(ids), 100)
    await broker.pusher.push([append])
    return append


async def _pop(broker: Broker, name: str, wait_s: float = 0, **more: Any) -> list[Grant]:
    queue = await broker.catalog.queue(name)
    assert queue is not None
    return await broker.popper.pop([queue], Pop("g", 10, waits=wait_s > 0, **more), wait_s)


async def _ack(broker: Broker, grant: Grant, status: AckStatus = AckStatus.DONE) -> AckBatch:
    ids = [id_ for stored in grant.stored for id_ in stored.segment.transaction_ids(0, 1)]
    feed = broker.dispatcher.feed(grant.partition.queue.id, "g")
    assert feed is not None
    batch = AckBatch(
        grant.partition, "g", feed.group_id, grant.lease_id, dict.fromkeys(ids, status)
    )
    await broker.acker.ack([batch])
    return batch


async def _warm_up(broker: Broker, **options: Any) -> str:
    """Return a queue that has been used once."""
    await broker.queues.configure(name := uuid.uuid4().hex, "", "", QueueOptions(**options))
    await _push(broker, name, b"first")
    (grant,) = await _pop(broker, name)
    await _ack(broker, grant)
    return name


def _hot(sent: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in sent.items() if name in _HOT}


async def _waiting_for(broker: Broker, name: str) -> asyncio.Task[list[Grant]]:
    """Return a pop that waits."""
    waiting = asyncio.create_task(_pop(broker, name, 60))
    await until_met(lambda: broker.popper.parked_by_name().get(name))
    return waiting


async def test_each_step_of_a_lone_message_is_one_statement(
    broker: Broker, sent: Counter[str]
) -> None:
    name = await _warm_up(broker)
    sent.clear()
    for number in range(20):
        await _push(broker, name, str(number).encode())
        (grant,) = await _pop(broker, name)
        batch = await _ack(broker, grant)
        assert batch.all_done and batch.committed == number + 2
    # A connection draws its generation once.
    assert sent.pop("claim", 0) <= broker.limits.connections
    assert _hot(sent) == {"append_lone": 20, "claim_lone": 20, "ack_lone": 20}


async def test_a_pop_that_waits_asks_nothing_of_a_queue_that_is_looked_after(
    broker: Broker, sent: Counter[str]
) -> None:
    name = await _warm_up(broker)
    # The net looks as long as somebody waits.
    first = await _waiting_for(broker, name)
    await until_met(lambda: sent["written_since"])
    before = {look: sent[look] for look in _LOOKS}
    later = [asyncio.create_task(_pop(broker, name, 60)) for _ in range(50)]
    await until_met(lambda: broker.popper.parked_by_name().get(name) == 51)
    assert sum(sent[look] - before[look] for look in _LOOKS) < 10
    broker.popper.answer_all()
    assert not any(await asyncio.gather(first, *later))


async def _offsets(broker: Broker, name: str) -> list[tuple[int, int]]:
    rows = await broker.fetcher._database.fetch(
        "read_spans", [_partition(broker, name).id], [0], [100]
    )
    return [(row["base_offset"], row["end_offset"]) for row in rows]


def _partition(broker: Broker, name: str) -> Partition:
    partition = broker.catalog.known(name, "p")
    assert partition is not None
    return partition


async def test_what_others_wrote_meanwhile_is_compared_and_goes_first(
    broker: Broker, dsn: str, sent: Counter[str]
) -> None:
    name = await _warm_up(broker)
    other = await Broker.start(dsn, Limits(dedup_hashes=1000, connections=3))
    try:
        await _push(other, name, b"theirs")
        repeated = await _push(broker, name, b"theirs")
        assert repeated.is_duplicate(0) and repeated.offset_of(0) == 1
        await _push(other, name, b"theirs too")
        fresh = await _push(broker, name, b"ours")
    finally:
        await other.stop()
    assert fresh.offset_of(0) == 3
    assert await _offsets(broker, name) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert not sent["append"], "what is in the way of one message is found by the same statement"


async def test_a_queue_that_was_configured_meanwhile_is_read_anew(
    broker: Broker, connection: asyncpg.Connection
) -> None:
    name = await _warm_up(broker)
    await connection.execute(
        'update queues set options = options || \'{"dedup": "off"}\', revision = revision + 1 '
        "where name = $1",
        name,
    )
    # Twice the same id: only a server that knows of the change takes it.
    await _push(broker, name, b"same")
    again = await _push(broker, name, b"same")
    assert not again.is_duplicate(0) and again.offset_of(0) == 2


async def test_a_lone_push_to_a_locked_partition_waits_for_it(
    broker: Broker, connection: asyncpg.Connection
) -> None:
    name = await _warm_up(broker)
    async with connection.transaction():
        partition_id = _partition(broker, name).id
        await connection.execute("select from partitions where id = $1 for update", partition_id)
        pushing = asyncio.create_task(_push(broker, name, b"late"))
        await until_met(lambda: broker.pusher._aside.holds((name, "p")))
        # Others are not held up.
        await _push(broker, await _warm_up(broker), b"other")
        assert not pushing.done()
    assert (await pushing).offset_of(0) == 1


@pytest.mark.parametrize(
    "prepare",
    [
        "update groups set paused = true where id = $2 and $1 > 0",
        "update cursors set retry_at = clock_timestamp() + interval '1 hour' "
        "where partition_id = $1 and group_id = $2",
        "update cursors set lease_id = gen_random_uuid(), batch_end = 5, "
        "lease_until = clock_timestamp() + interval '1 hour' "
        "where partition_id = $1 and group_id = $2",
    ],
    ids=["paused", "not due", "leased"],
)
async def test_nothing_is_granted_where_something_is_in_the_way(
    broker: Broker, connection: asyncpg.Connection, prepare: str
) -> None:
    name = await _warm_up(broker)
    partition = _partition(broker, name)
    feed = broker.dispatcher.feed(partition.queue.id, "g")
    assert feed is not None
    await _push(broker, name, b"second")
    await connection.execute(prepare, partition.id, feed.group_id)
    assert await _pop(broker, name) == []


async def test_what_was_done_out_of_order_is_not_given_again(broker: Broker) -> None:
    name = await _warm_up(broker, retry_delay=0)
    await _push(broker, name, b"a", b"b")
    (grant,) = await _pop(broker, name)
    await _ack_some(broker, grant, {"a": AckStatus.FAILED, "b": AckStatus.DONE})
    (again,) = await _pop(broker, name)
    assert (again.start, again.shown, again.attempt_of(1)) == (1, 1, 2)


async def _ack_some(broker: Broker, grant: Grant, statuses: dict[str, AckStatus]) -> None:
    feed = broker.dispatcher.feed(grant.partition.queue.id, "g")
    assert feed is not None
    await broker.acker.ack(
        [AckBatch(grant.partition, "g", feed.group_id, grant.lease_id, statuses)]
    )


async def test_a_lone_claim_whose_answer_is_lost_is_recognised(
    broker: Broker, sent: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await _warm_up(broker)
    await _push(broker, name, b"second")
    findrow = broker.hot.findrow
    lost: list[Any] = []

    async def lose(statement: str, *arguments: Any) -> Any:
        row = await findrow(statement, *arguments)
        if statement == "claim_lone" and row is not None and not lost:
            lost.append(row)
            raise OutcomeUnknown
        return row

    monkeypatch.setattr(broker.hot, "findrow", lose)
    granted = []
    for number in range(broker.limits.connections + 1):
        (grant,) = await _pop(broker, name)
        granted.append((grant.start, grant.stop, grant.attempt))
        assert (await _ack(broker, grant)).all_done
        await _push(broker, name, f"more {number}".encode())
    assert lost, "no connection had a generation"
    # Each once, in order, and none counted as a second delivery.
    assert granted == [(at, at + 1, 1) for at in range(1, len(granted) + 1)]


async def test_a_lease_that_is_over_acks_nothing(
    broker: Broker, connection: asyncpg.Connection
) -> None:
    name = await _warm_up(broker)
    await _push(broker, name, b"second")
    (grant,) = await _pop(broker, name)
    await connection.execute(
        "update cursors set lease_until = clock_timestamp() - interval '1 second' "
        "where partition_id = $1",
        grant.partition.id,
    )
    batch = await _ack(broker, grant)
    assert not batch.all_done
    query = "select committed from cursors where partition_id = $1"
    assert await connection.fetchval(query, grant.partition.id) == 1


async def test_a_connection_that_broke_between_two_messages_costs_nothing(
    broker: Broker, connection: asyncpg.Connection, sent: Counter[str]
) -> None:
    name = await _warm_up(broker)
    await connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where application_name = 'queen' and pid <> pg_backend_pid()"
    )
    await until_met(lambda: not broker.hot.pool_size or _is_gone(broker.hot))
    sent.clear()
    await _push(broker, name, b"second")
    (grant,) = await _pop(broker, name)
    assert (await _ack(broker, grant)).all_done
    assert await _offsets(broker, name) == [(0, 1), (1, 2)]


def _is_gone(database: Database) -> bool:
    """Whether the next statement would find no connection at hand."""
    kept = database._at_hand.take()
    return kept is None or not database._at_hand.keep(kept)


async def test_connections_are_all_given_back_at_the_end(dsn: str) -> None:
    database = await Database.connect(dsn, size=3)
    await asyncio.gather(*(database.fetch("durability") for _ in range(9)))
    assert database.pool_idle == database.pool_size > 0
    async with database.transaction() as transaction:
        await transaction.fetchval("now")
        assert database.pool_idle == database.pool_size - 1
    await database.close()
    assert database.pool_size == 0


async def test_a_server_with_nothing_to_do_counts_nothing_and_opens_no_transactions(
    undisturbed: Broker, sent: Counter[str]
) -> None:
    broker = undisturbed
    name = await _warm_up(broker)
    waiting = await _waiting_for(broker, name)
    # What was just done is counted, once.
    await until_met(lambda: sent["store_round"])
    sent.clear()
    await until_met(lambda: sent["written_since"] >= 4)
    assert sent["store_round"] <= 1
    assert sent["take_outbox"] == 0
    assert sent["claim"] == sent["claim_lone"] == 0
    broker.popper.answer_all()
    assert await waiting == []


# ---- telling others ----


@pytest.fixture
async def beside(own_database: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the database of the undisturbed broker."""
    opened = await asyncpg.connect(own_database, server_settings={"search_path": "queen"})
    yield opened
    await opened.close()


@pytest.fixture
async def heard(beside: asyncpg.Connection) -> list[str]:
    told: list[str] = []
    await beside.add_listener("queen_log", lambda *words: told.append(str(words[-1])))
    return told


async def _until_asked(sent: Counter[str], messages: Callable[[], Any]) -> None:
    before = sent["notify"]
    await messages()
    await until_met(lambda: sent["notify"] > before)


async def test_a_server_that_is_alone_tells_nobody_of_messages(
    undisturbed: Broker, sent: Counter[str], heard: list[str]
) -> None:
    broker = undisturbed
    name = await _warm_up(broker)
    await until_met(lambda: broker.report.server_id)
    await until_met(lambda: not broker.signals._wake.is_set())
    await asyncio.sleep(0)
    before = list(heard)
    await _until_asked(sent, lambda: _push(broker, name, b"second"))
    partition_id = _partition(broker, name).id
    assert not [told for told in heard[len(before) :] if f"{partition_id}=2" in told]
    # Of what is more than a hint it tells all the same.
    broker.events.options_changed()
    await until_met(lambda: [told for told in heard if told.endswith(" c")])


async def test_a_server_that_is_not_alone_tells_the_others(
    undisturbed: Broker, beside: asyncpg.Connection, heard: list[str]
) -> None:
    broker = undisturbed
    name = await _warm_up(broker)
    await beside.execute("insert into servers (hostname, port, worker) values ('another', 1, 0)")
    await _push(broker, name, b"second")
    partition_id = _partition(broker, name).id
    await until_met(lambda: [told for told in heard if f"{partition_id}=2" in told])
