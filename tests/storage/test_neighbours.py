"""Neighbours in a flush: what is wrong with one item is told to that one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from queen.core.cipher import KeyRing, parse_keys
from queen.core.cursor import AckResult, AckStatus
from queen.core.options import QueueOptions
from queen.errors import Contended, QueenError, Unreadable
from queen.service.acks.ack_batch import AckBatch
from queen.service.admin.groups import BEGINNING, SeekTarget
from queen.service.broker import Broker, Limits
from queen.service.catalog import FROM_BEGINNING, Queue
from queen.service.consume.feeds import Grant, Pop
from queen.service.log import aside
from queen.service.log.append import Append
from queen.service.log.flush_share import Share
from queen.service.log.segment_encryption import SegmentEncryption
from queen.storage.database import session_settings
from tests.waiting import spend_async, until_async

_KEY, _OTHER_KEY = parse_keys("ab" * 32), parse_keys("cd" * 32)
_PATIENCE_S = 60


@pytest.fixture
async def start(dsn: str) -> AsyncIterator[Callable[[KeyRing], Awaitable[Broker]]]:
    brokers: list[Broker] = []

    async def start(keys: KeyRing) -> Broker:
        limits = Limits(dedup_hashes=100_000, connections=6, segment_cache_bytes=0)
        brokers.append(await Broker.start(dsn, limits, keys))
        return brokers[-1]

    yield start
    for broker in brokers:
        await broker.stop()


@pytest.fixture
async def broker(start: Callable[[KeyRing], Awaitable[Broker]]) -> Broker:
    return await start(_KEY)


@pytest.fixture
async def keyless(start: Callable[[KeyRing], Awaitable[Broker]]) -> Broker:
    """A server with a key, but not the one that was used."""
    return await start(_OTHER_KEY)


async def _queue(broker: Broker, **options: object) -> str:
    name = f"near-{uuid.uuid4().hex[:8]}"
    await broker.queues.configure(name, "", "", QueueOptions(**options))  # type: ignore[arg-type]
    return name


async def _found(broker: Broker, name: str) -> Queue:
    queue = await broker.catalog.queue(name)
    assert queue is not None
    return queue


def _append(queue: str, *ids: str, partition: str = "p") -> Append:
    return Append(queue, partition, [name.encode() for name in ids], [b"1"] * len(ids), 100)


async def _push(broker: Broker, queue: str, *ids: str, partition: str = "p") -> None:
    await broker.pusher.push([_append(queue, *ids, partition=partition)])


async def _pop(broker: Broker, name: str, batch: int = 100, *, auto: bool = False) -> list[Grant]:
    queue = await _found(broker, name)
    return await broker.popper.pop([queue], Pop("g", batch, auto_ack=auto), 0)


async def _ids(broker: Broker, name: str, **more: bool) -> list[str]:
    grants = await _pop(broker, name, **more)
    return [
        transaction_id
        for grant in grants
        for stored in grant.stored
        for transaction_id in stored.segment.transaction_ids(*stored.part(grant.start, grant.stop))
    ]


def _ack_batch(grant: Grant, group_id: int, status: AckStatus = AckStatus.DONE) -> AckBatch:
    ids = [name for stored in grant.stored for name in stored.segment.transaction_ids()]
    return AckBatch(grant.partition, "g", group_id, grant.lease_id, dict.fromkeys(ids, status))


async def _group(broker: Broker, name: str) -> int:
    return await broker.catalog.group(await _found(broker, name), "g", FROM_BEGINNING)


async def _damage(dsn: str, name: str, offset: int) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "update queen.segments s set codec = 1, body = 'no zstd' from queen.queues q"
        " where q.id = s.queue_id and q.name = $1 and s.base_offset = $2",
        name,
        offset,
    )
    await connection.close()


@asynccontextmanager
async def _locked(dsn: str, table: str, where: str, *values: object) -> AsyncIterator[None]:
    """A row that a peer has locked, and does not let go."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "queen"})
    try:
        async with connection.transaction():
            sql = f"select 1 from {table} where {where} for update"
            assert await connection.fetch(sql, *values)
            yield
    finally:
        await connection.close()


# ---- what cannot be read ----


async def test_a_repeated_id_that_cannot_be_compared_fails_nobody_else(
    broker: Broker, keyless: Broker
) -> None:
    secret = await _queue(broker, encryption_enabled=True)
    plain = await _queue(broker)
    await _push(broker, secret, "same")
    appends = [_append(plain, f"{n}", partition=f"{n % 5}") for n in range(100)]
    pushes = [keyless.pusher.push([append]) for append in appends]
    repeats = [keyless.pusher.push([_append(secret, "same")]) for _ in range(20)]
    done = await asyncio.gather(*pushes, *repeats, return_exceptions=True)
    assert done[:100] == [None] * 100
    for error in done[100:]:
        assert isinstance(error, Unreadable)
        assert error.offset == 0 and error.partition in error.message
    # What is no repeat needs no comparison, in the same partition.
    await _push(keyless, secret, "other")


async def test_a_batch_with_a_repeat_that_cannot_be_compared_leaves_the_other_batches(
    broker: Broker, keyless: Broker
) -> None:
    secret = await _queue(broker, encryption_enabled=True)
    await _push(broker, secret, "same")
    bad, good = _append(secret, "a", "same"), _append(secret, "b", "c")
    counting_on_it = _append(secret, "d", "a")
    done = await asyncio.gather(
        *(keyless.pusher.push([append]) for append in (bad, good, counting_on_it)),
        return_exceptions=True,
    )
    assert isinstance(done[0], Unreadable) and done[1] is None and isinstance(done[2], QueenError)
    assert good.offset_of(1) == good.offset_of(0) + 1


async def test_what_cannot_be_read_is_not_acked(broker: Broker, keyless: Broker) -> None:
    secret = await _queue(broker, encryption_enabled=True)
    await _push(broker, secret, "a", "b")
    with pytest.raises(Unreadable):
        await _pop(keyless, secret, auto=True)
    for _ in range(20):
        (told,) = await asyncio.gather(_pop(keyless, secret, auto=True), return_exceptions=True)
        assert told == [] or isinstance(told, Unreadable)
    # The lease that was given back may still be on its way.
    assert await until_async(lambda: _ids(broker, secret, auto=True)) == ["a", "b"]


async def test_a_grant_ends_before_what_is_damaged_and_a_seek_passes_over_it(
    broker: Broker, dsn: str
) -> None:
    name = await _queue(broker)
    for n in range(4):
        await _push(broker, name, f"{n}")
    await _damage(dsn, name, 2)
    assert await _ids(broker, name, auto=True) == ["0", "1"]
    with pytest.raises(Unreadable) as told:
        await _pop(broker, name, auto=True)
    assert told.value.offset == 2
    (group,) = await broker.groups.find("g", name)
    partition = await broker.catalog.partition(await _found(broker, name), "p")
    await broker.groups.seek(group, partition, SeekTarget(BEGINNING, 3), dry=False)
    assert await _ids(broker, name, auto=True) == ["3"]


async def test_neighbours_of_an_unreadable_partition_are_delivered(
    broker: Broker, dsn: str
) -> None:
    bad, good = await _queue(broker), await _queue(broker)
    await _push(broker, bad, "x")
    await _damage(dsn, bad, 0)
    for n in range(50):
        await _push(broker, good, f"{n}", partition=f"{n % 10}")
    pops = [_pop(broker, good, auto=True) for _ in range(10)]
    bads = [_pop(broker, bad, auto=True) for _ in range(10)]
    done = await asyncio.gather(*pops, *bads, return_exceptions=True)
    counted = [
        sum(grant.shown for grant in result) for result in done[:10] if isinstance(result, list)
    ]
    assert len(counted) == 10 and sum(counted) == 50
    assert any(isinstance(result, Unreadable) for result in done[10:])
    assert all(isinstance(result, Unreadable) or result == [] for result in done[10:])


async def test_a_message_that_cannot_be_set_aside_holds_up_its_partition_only(
    broker: Broker, keyless: Broker
) -> None:
    """Nobody came back from it, and this server cannot read it to keep a copy."""
    secret = await _queue(broker, encryption_enabled=True, retry_limit=0, lease_time=1)
    plain = await _queue(broker)
    await _push(broker, secret, "x")
    await _pop(broker, secret, 1)

    async def told() -> bool:
        (error,) = await asyncio.gather(_pop(keyless, secret), return_exceptions=True)
        return isinstance(error, Unreadable)

    await until_async(told)
    for n in range(50):
        await _push(keyless, plain, f"{n}", partition=f"{n % 10}")
    delivered = 0
    for _ in range(20):
        done = await asyncio.gather(
            _pop(keyless, plain, auto=True), _pop(keyless, secret), return_exceptions=True
        )
        assert isinstance(done[0], list)
        delivered += sum(grant.shown for grant in done[0])
    assert delivered == 50


async def test_a_failure_that_cannot_be_kept_fails_no_other_ack(
    broker: Broker, keyless: Broker
) -> None:
    secret = await _queue(broker, encryption_enabled=True, retry_limit=0)
    plain = await _queue(broker)
    await _push(broker, secret, "x")
    for n in range(20):
        await _push(broker, plain, f"{n}", partition=f"{n}")
    (bad,) = await _pop(broker, secret)
    goods = [(await _pop(keyless, plain))[0] for _ in range(20)]
    plain_id, secret_id = await _group(keyless, plain), await _group(keyless, secret)
    settled = [_ack_batch(grant, plain_id) for grant in goods]
    refused = _ack_batch(bad, secret_id, AckStatus.FAILED)
    acks = [keyless.acker.ack([batch]) for batch in [*settled, refused]]
    done = await asyncio.gather(*acks, return_exceptions=True)
    assert done[:20] == [None] * 20
    assert all(set(batch.results.values()) == {AckResult.DONE} for batch in settled)
    assert isinstance(done[20], Unreadable)
    # It still is a message, and whoever can read it may fail it.
    again = _ack_batch(bad, secret_id, AckStatus.FAILED)
    await broker.acker.ack([again])
    assert set(again.results.values()) == {AckResult.DEAD}


async def test_one_request_is_told_what_was_done_and_what_was_not(
    broker: Broker, keyless: Broker
) -> None:
    secret = await _queue(broker, encryption_enabled=True, retry_limit=0)
    plain = await _queue(broker)
    await _push(broker, secret, "x")
    await _push(broker, plain, "y")
    (bad,), (good,) = await _pop(broker, secret), await _pop(keyless, plain)
    fine = _ack_batch(good, await _group(keyless, plain))
    refused = _ack_batch(bad, await _group(keyless, secret), AckStatus.FAILED)
    await keyless.acker.ack([fine, refused])
    assert fine.error is None and set(fine.results.values()) == {AckResult.DONE}
    assert isinstance(refused.error, Unreadable)


# ---- what is locked ----


async def test_a_locked_partition_holds_up_no_other_push(broker: Broker, dsn: str) -> None:
    name = await _queue(broker)
    await _push(broker, name, "first", partition="locked")
    partition = await broker.catalog.partition(await _found(broker, name), "locked")
    assert partition is not None
    async with _locked(dsn, "partitions", "id = $1", partition.id):
        behind = [_append(name, f"b{n}", partition="locked") for n in range(5)]
        waiting = []
        for append in behind:
            waiting.append(asyncio.create_task(broker.pusher.push([append])))
            await _push(broker, name, f"n{append.ids[0]!r}", partition="free")
        for n in range(100):
            await _push(broker, name, f"{n}", partition=f"free-{n % 7}")
        assert not any(task.done() for task in waiting)
    await asyncio.gather(*waiting)
    assert [append.offset_of(0) for append in behind] == [1, 2, 3, 4, 5]


async def test_a_locked_queue_that_gets_a_new_partition_holds_up_no_other_push(
    broker: Broker, dsn: str
) -> None:
    name, other = f"a-{uuid.uuid4().hex[:8]}", f"b-{uuid.uuid4().hex[:8]}"
    await _push(broker, name, "first")
    await _push(broker, other, "first")
    queue = await _found(broker, name)
    async with _locked(dsn, "queues", "id = $1", queue.id):
        behind = [_append(name, f"b{n}", partition="new") for n in range(5)]
        waiting = asyncio.create_task(broker.pusher.push(behind))
        beside = [asyncio.create_task(_push(broker, other, f"o{n}")) for n in range(20)]
        await asyncio.wait_for(asyncio.gather(*beside), 5)
        await asyncio.wait_for(_push(broker, name, "second"), 5)
        assert not waiting.done()
    await waiting
    assert [append.offset_of(0) for append in behind] == list(range(5))


async def test_a_queue_that_somebody_is_making_holds_up_no_other_push(
    broker: Broker, dsn: str
) -> None:
    name, other = f"a-{uuid.uuid4().hex[:8]}", f"b-{uuid.uuid4().hex[:8]}"
    await _push(broker, other, "first")
    peer = await asyncpg.connect(dsn)
    transaction = peer.transaction()
    await transaction.start()
    await peer.execute("insert into queen.queues (name) values ($1)", name)
    waiting = asyncio.create_task(_push(broker, name, "behind"))
    for n in range(20):
        await asyncio.wait_for(_push(broker, other, f"o{n}"), 5)
    assert not waiting.done()
    await transaction.commit()
    await waiting
    await peer.close()


async def test_a_partition_that_stays_locked_is_told(
    broker: Broker, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aside, "_PATIENCE_S", 0.3)
    name = await _queue(broker)
    await _push(broker, name, "first")
    partition = await broker.catalog.partition(await _found(broker, name), "p")
    assert partition is not None
    async with _locked(dsn, "partitions", "id = $1", partition.id):
        with pytest.raises(Contended):
            await _push(broker, name, "second")
    await _push(broker, name, "second")


async def test_a_sealed_queue_holds_up_no_other(broker: Broker, dsn: str) -> None:
    held, free = await _queue(broker), await _queue(broker)
    await _push(broker, held, "first")
    connection = await asyncpg.connect(dsn)
    queue = await _found(broker, held)
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(7001, $1)", queue.id)
        waiting = asyncio.create_task(_push(broker, held, "second"))
        for n in range(50):
            await _push(broker, free, f"{n}")
        assert not waiting.done()
    await waiting
    await connection.close()


async def test_a_locked_cursor_holds_up_no_other_pop_and_no_other_ack(
    broker: Broker, dsn: str
) -> None:
    name = await _queue(broker)
    for n in range(20):
        await _push(broker, name, f"{n}", partition=f"{n}")
    grants = [(await _pop(broker, name))[0] for _ in range(10)]
    group_id = await _group(broker, name)
    locked = grants[0].partition.id
    async with _locked(dsn, "cursors", "partition_id = $1 and group_id = $2", locked, group_id):
        settled = [_ack_batch(grant, group_id) for grant in grants]
        acks = [asyncio.create_task(broker.acker.ack([batch])) for batch in settled]
        async with asyncio.timeout(_PATIENCE_S):
            await asyncio.gather(*acks[1:])
        more = [(await _pop(broker, name))[0].partition.id for _ in range(10)]
        assert len(set(more)) == 10 and locked not in more
        assert not acks[0].done()
    await acks[0]
    assert all(set(batch.results.values()) == {AckResult.DONE} for batch in settled)


async def test_a_paused_claim_is_a_poll_that_waits(broker: Broker, dsn: str) -> None:
    """A cursor that somebody holds is looked at again, and served when it is free."""
    name = await _queue(broker)
    await _push(broker, name, "a")
    (grant,) = await _pop(broker, name)
    group_id = await _group(broker, name)
    await broker.acker.ack([_ack_batch(grant, group_id)])
    await _push(broker, name, "b")
    queue = await _found(broker, name)
    async with _locked(
        dsn, "cursors", "partition_id = $1 and group_id = $2", grant.partition.id, group_id
    ):
        poll = asyncio.create_task(broker.popper.pop([queue], Pop("g", 1, waits=True), _PATIENCE_S))
        # Longer than a claim waits for a cursor.
        await spend_async(0.5)
        assert not poll.done()
    assert [grant.start for grant in await poll] == [1]


async def test_lock_waits_are_bounded_for_every_session() -> None:
    assert session_settings()["lock_timeout"] == "10s"


async def test_what_breaks_a_flush_breaks_only_its_own_push(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something nobody thought of is wrong with one partition."""
    name = await _queue(broker)
    build = Share.build

    def fragile(share: Share, encryption: SegmentEncryption) -> None:
        if share.partition.name == "bad":
            raise ZeroDivisionError
        build(share, encryption)

    monkeypatch.setattr(Share, "build", fragile)
    pushes = [_push(broker, name, f"{n}", partition=f"{n % 5}") for n in range(50)]
    bad = _push(broker, name, "x", partition="bad")
    done = await asyncio.gather(*pushes, bad, return_exceptions=True)
    assert done[:50] == [None] * 50
    assert isinstance(done[50], QueenError)
    assert len(await _ids(broker, name)) > 0


async def test_transactions_that_wait_for_a_lock_leave_connections_to_others(
    broker: Broker, dsn: str
) -> None:
    name = await _queue(broker)
    await _push(broker, name, "first", partition="locked")
    partition = await broker.catalog.partition(await _found(broker, name), "locked")
    assert partition is not None
    async with _locked(dsn, "partitions", "id = $1", partition.id):
        waiting = [
            asyncio.create_task(
                broker.transactor.run([_append(name, f"{n}", partition="locked")], [], [], [])
            )
            for n in range(12)
        ]
        # They have begun when the first of them has found the lock.
        await spend_async(0.3)
        for n in range(5):
            async with asyncio.timeout(_PATIENCE_S):
                await broker.transactor.run([_append(name, f"o{n}")], [], [], [])
                await broker.queues.configure(name, "", "", QueueOptions(lease_time=10 + n))
        assert not any(task.done() for task in waiting)
    await asyncio.gather(*waiting)


async def test_what_cannot_be_read_is_told_when_there_is_nothing_else(
    broker: Broker, dsn: str
) -> None:
    bad, good = await _queue(broker), await _queue(broker)
    await _push(broker, bad, "x")
    await _damage(dsn, bad, 0)
    await _push(broker, good, "y")
    queues = [await _found(broker, bad), await _found(broker, good)]
    (grant,) = await broker.popper.pop(queues, Pop("g", 10, auto_ack=True), 0)
    assert grant.partition.queue.name == good
    # A poll waits for what can be given, and is told at its end. What could not be read is tried
    # again after a pause of a second, which may have begun.
    with pytest.raises(Unreadable):
        await broker.popper.pop(queues, Pop("g", 10, waits=True), 3)


async def test_what_cannot_be_read_hides_no_neighbour_in_a_list(broker: Broker, dsn: str) -> None:
    name = await _queue(broker)
    for n in range(3):
        await _push(broker, name, f"{n}")
    await _damage(dsn, name, 1)
    listed = await broker.browser.newest(await _found(broker, name))
    assert [(message.offset, message.transaction_id) for message in listed] == [
        (2, "2"),
        (1, ""),
        (0, "0"),
    ]
    assert "offset 1" in (listed[1].unreadable or "")


async def test_a_fetch_names_what_it_cannot_read(broker: Broker, keyless: Broker) -> None:
    secret = await _queue(broker, encryption_enabled=True)
    await _push(broker, secret, "x")
    with pytest.raises(Unreadable) as told:
        async for _ in keyless.fetcher.queue(await _found(keyless, secret)):
            pass
    assert told.value.offset == 0


async def test_a_partition_that_was_forgotten_meanwhile_is_in_a_flush_once(
    start: Callable[[KeyRing], Awaitable[Broker]],
) -> None:
    """As after a deletion of its queue or of a group: what came before knows another object."""
    broker, name = await start(_KEY), f"twice-{uuid.uuid4().hex[:8]}"
    await broker.pusher.push([Append(name, "p", [b"t0"], [b"0"], 100)])
    before, after = (Append(name, "p", [b"t%d" % n], [b"%d" % n], 100) for n in (1, 2))
    await broker.appender.group([before])
    broker.catalog.forget_queue(name)
    shares = await broker.appender.group([before, after])
    assert before.target is not after.target
    assert [share.appends for share in shares] == [[before, after]]
    assert shares[0].partition is after.target
