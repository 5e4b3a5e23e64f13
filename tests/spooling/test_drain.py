"""Spooled pushes are stored in order and once, whatever happens on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from queen.core.cipher import KeyRing, parse_keys
from queen.errors import OutcomeUnknown, SpoolFull
from queen.service.broker import Broker
from queen.service.spooling import drain as drain_module
from queen.service.spooling.entrance import Buffering
from queen.spool.folder import SpoolRoot
from queen.spool.options import SpoolOptions
from tests.spooling.brokers import (
    PATIENT,
    append_of,
    broker_with_spool,
    damage_payload,
    drained,
    end_suddenly,
    files_in,
    spools_in,
    start_broker,
    stored_ids,
)
from tests.waiting import spend_async, until_async, until_met


async def configure(broker: Broker, queue: str, **options: Any) -> None:
    from queen.core.options import QueueOptions

    await broker.queues.configure(queue, "", "", QueueOptions(**options))


async def test_what_asks_to_be_buffered_is_stored_in_order(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    async with broker_with_spool(dsn, tmp_path) as broker:
        appends = [append_of(queue, f"{n}") for n in range(20)]
        for append in appends:
            await broker.entrance.push([append], PATIENT)
        assert all(append.is_buffered for append in appends)
        assert await stored_ids(connection, queue) == []
        await drained(broker)
        assert await stored_ids(connection, queue) == [f"{n}" for n in range(20)]


async def test_a_push_goes_behind_what_waits_for_its_partition_and_no_other(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    async with broker_with_spool(dsn, tmp_path) as broker:
        await drained(broker)
        await broker.entrance.push([append_of(queue, "a")], PATIENT)
        behind, beside = append_of(queue, "b"), append_of(queue, "c", partition="other")
        await broker.entrance.push([behind, beside])
        assert behind.is_buffered and not beside.is_buffered
        await drained(broker)
        assert await stored_ids(connection, queue) == ["a", "b"]
        direct = append_of(queue, "d")
        await broker.entrance.push([direct])
        assert not direct.is_buffered
        assert await stored_ids(connection, queue) == ["a", "b", "d"]


async def test_a_drain_that_was_slow_once_goes_on_in_batches(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    few = Buffering(within_ms=60_000, most=10)
    async with broker_with_spool(dsn, tmp_path) as broker:
        drain = broker.drain
        assert drain is not None
        begun, may_end = asyncio.Event(), asyncio.Event()
        store = drain._store.store

        async def slow_store(batch: Any) -> None:
            begun.set()
            await may_end.wait()
            await store(batch)

        drain._store.store = slow_store  # type: ignore[method-assign]
        for n in range(10):
            await broker.entrance.push([append_of(queue, f"{n}")], few)
        await begun.wait()
        # Enough for a batch comes while the first one is stored.
        for n in range(10, 25):
            await broker.entrance.push([append_of(queue, f"{n}")], few)
        may_end.set()
        await until_met(lambda: not drain.keys)
        before = drain.batches
        for n in range(25, 44):
            await broker.entrance.push([append_of(queue, f"{n}")], few)
            await spend_async(0.02)
        # One when ten had come; the nine behind them have a minute.
        assert drain.batches == before + 1
        assert len(await stored_ids(connection, queue)) < 44
        await drained(broker)
        assert await stored_ids(connection, queue) == [f"{n}" for n in range(44)]


@pytest.mark.parametrize("dedup", ["off", "window", "forever"])
async def test_a_server_that_dies_between_the_commit_and_its_files_stores_nothing_twice(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path, dedup: str
) -> None:
    broker = await start_broker(dsn, tmp_path)
    assert broker.basins is not None
    await configure(broker, queue, dedup=dedup)
    # Nothing is removed: as if it died before.
    broker.basins.own.spool.spool.release = lambda seq: None  # type: ignore[method-assign]
    for n in range(10):
        await broker.entrance.push([append_of(queue, f"{n}")], PATIENT)
    await drained(broker)
    await broker.entrance.push([append_of(queue, "last")], PATIENT)
    await end_suddenly(broker)
    async with broker_with_spool(dsn, tmp_path) as successor:
        await drained(successor)
        assert await stored_ids(connection, queue) == [*(f"{n}" for n in range(10)), "last"]


@pytest.mark.parametrize("dedup", ["off", "window"])
async def test_a_commit_whose_answer_is_lost_is_not_repeated(
    dsn: str,
    connection: asyncpg.Connection,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dedup: str,
) -> None:
    async with broker_with_spool(dsn, tmp_path) as broker:
        assert broker.drain is not None
        await configure(broker, queue, dedup=dedup)
        store = broker.drain._store
        commit = store._commit
        lost: list[Any] = []

        async def commit_and_lose_the_answer(*arguments: Any) -> Any:
            rows = await commit(*arguments)
            if not lost:
                lost.append(rows)
                raise OutcomeUnknown
            return rows

        monkeypatch.setattr(store, "_commit", commit_and_lose_the_answer)
        for n in range(5):
            await broker.entrance.push([append_of(queue, f"{n}")], PATIENT)
        await drained(broker)
        assert lost
        assert await stored_ids(connection, queue) == [f"{n}" for n in range(5)]
        await broker.entrance.push([append_of(queue, "next")])
        assert (await stored_ids(connection, queue))[-1] == "next"


@pytest.mark.parametrize("dedup", ["off", "window", "forever"])
@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_push_whose_first_try_had_an_unknown_outcome_is_stored_once(
    dsn: str,
    connection: asyncpg.Connection,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dedup: str,
    is_committed: bool,
) -> None:
    async with broker_with_spool(dsn, tmp_path) as broker:
        await configure(broker, queue, dedup=dedup)
        await broker.entrance.push([append_of(queue, "before")])
        fetch = broker.hot.fetch

        async def lose(name: str, *arguments: Any) -> Any:
            if name not in ("append", "append_lone"):
                return await fetch(name, *arguments)
            if is_committed:
                await fetch(name, *arguments)
            raise OutcomeUnknown

        monkeypatch.setattr(broker.hot, "fetch", lose)
        tried = append_of(queue, "a", "b")
        await broker.entrance.push([tried])
        assert tried.is_buffered
        monkeypatch.setattr(broker.hot, "fetch", fetch)
        await drained(broker)
        assert await stored_ids(connection, queue) == ["before", "a", "b"]


async def test_where_nothing_is_compared_equal_messages_are_told_apart_by_their_tries(
    dsn: str,
    connection: asyncpg.Connection,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with broker_with_spool(dsn, tmp_path) as broker:
        await configure(broker, queue, dedup="off")
        await broker.entrance.push([append_of(queue, "same")])

        async def lose(name: str, *arguments: Any) -> Any:
            if name in ("append", "append_lone"):
                raise OutcomeUnknown
            return await fetch(name, *arguments)

        fetch = broker.hot.fetch
        monkeypatch.setattr(broker.hot, "fetch", lose)
        # The one that is stored was there before this one was tried.
        await broker.entrance.push([append_of(queue, "same")])
        monkeypatch.setattr(broker.hot, "fetch", fetch)
        await drained(broker)
        assert await stored_ids(connection, queue) == ["same", "same"]


async def test_a_full_queue_holds_up_nobody_and_gets_its_messages_in_order_later(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    full, other = f"{queue}-full", f"{queue}-other"
    async with broker_with_spool(dsn, tmp_path) as broker:
        assert broker.drain is not None
        await configure(broker, full, max_size=3)
        for n in range(8):
            await broker.entrance.push([append_of(full, f"{n}")], PATIENT)
            await broker.entrance.push([append_of(other, f"{n}")], PATIENT)
        broker.drain.expect(0, 0.0, 1)
        await until_async(lambda: _has(connection, other, 8))
        assert await stored_ids(connection, full) == ["0", "1", "2"]
        numbers = await broker.spool_desk.numbers()
        assert (numbers.waiting, numbers.quarantined) == (5, 0)
        # Written again, it is as old as it was.
        since = numbers.oldest_at_ms
        assert broker.basins is not None and broker.basins.waiting is not None
        position = broker.basins.waiting.position
        waiting = broker.basins.waiting
        await until_met(lambda: waiting.position != position)
        assert (await broker.spool_desk.numbers()).oldest_at_ms == since
        late = append_of(full, "late")
        await broker.entrance.push([late])
        assert late.is_buffered
        direct = append_of(other, "direct")
        await broker.entrance.push([direct])
        assert not direct.is_buffered
        await configure(broker, full, max_size=0)
        await drained(broker)
        assert await stored_ids(connection, full) == [*(f"{n}" for n in range(8)), "late"]


async def _has(connection: asyncpg.Connection, queue: str, count: int) -> bool:
    return len(await stored_ids(connection, queue)) == count


async def test_what_waits_for_its_queue_survives_the_server_and_is_not_doubled(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    broker = await start_broker(dsn, tmp_path)
    assert broker.drain is not None
    await configure(broker, queue, max_size=2, dedup="off")
    for n in range(6):
        await broker.entrance.push([append_of(queue, f"{n}")], PATIENT)
    broker.drain.expect(0, 0.0, 1)
    await until_met(lambda: broker.drain is not None and broker.drain._held)
    await broker.entrance.push([append_of(queue, "6")], PATIENT)
    await end_suddenly(broker)
    async with broker_with_spool(dsn, tmp_path) as successor:
        await configure(successor, queue, max_size=0, dedup="off")
        await drained(successor)
        assert await stored_ids(connection, queue) == [f"{n}" for n in range(7)]


async def test_a_copy_that_was_not_noted_before_the_server_died_does_not_count(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    broker = await start_broker(dsn, tmp_path)
    assert broker.drain is not None
    await configure(broker, queue, max_size=1, dedup="off")
    store = broker.drain._store
    died = asyncio.Event()

    async def die(*arguments: Any) -> Any:
        died.set()
        await asyncio.Event().wait()

    # What waits is written again, and then the server is gone.
    store._commit = die  # type: ignore[assignment,method-assign]
    for n in range(4):
        await broker.entrance.push([append_of(queue, f"{n}")], PATIENT)
    broker.drain.expect(0, 0.0, 1)
    await died.wait()
    await end_suddenly(broker)
    async with broker_with_spool(dsn, tmp_path) as successor:
        await configure(successor, queue, max_size=0, dedup="off")
        await drained(successor)
        assert await stored_ids(connection, queue) == [f"{n}" for n in range(4)]


async def test_a_locked_partition_holds_up_nobody(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    async with broker_with_spool(dsn, tmp_path) as broker:
        assert broker.drain is not None
        await broker.entrance.push([append_of(queue, "0"), append_of(queue, "0", partition="b")])
        locker = await asyncpg.connect(dsn)
        async with locker.transaction():
            await locker.execute(
                "select 1 from queen.partitions p join queen.queues q on q.id = p.queue_id"
                " where q.name = $1 and p.name = 'p' for update of p",
                queue,
            )
            for n in range(1, 5):
                await broker.entrance.push(
                    [append_of(queue, f"{n}"), append_of(queue, f"{n}", partition="b")], PATIENT
                )
            broker.drain.expect(0, 0.0, 1)

            async def others_are_stored() -> bool:
                return len(await stored_ids(connection, queue, "b")) == 5

            await until_async(others_are_stored)
            assert await stored_ids(connection, queue) == ["0"]
        await locker.close()
        await drained(broker)
        assert await stored_ids(connection, queue) == [f"{n}" for n in range(5)]


async def test_what_the_database_refuses_is_in_quarantine_and_the_rest_is_stored(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    async with broker_with_spool(dsn, tmp_path) as broker:
        await broker.entrance.push([append_of(queue, "0"), append_of(queue, "0", partition="bad")])
        await _refuse_partition(connection, queue, "bad")
        try:
            for n in range(1, 9):
                partition = "bad" if n == 5 else "p"
                await broker.entrance.push([append_of(queue, f"{n}", partition=partition)], PATIENT)
            await drained(broker)
            assert await stored_ids(connection, queue) == ["0", "1", "2", "3", "4", "6", "7", "8"]
            (record,) = await broker.spool_desk.quarantined(10, 0)
            assert record.append is not None and list(record.append.ids) == [b"5"]
            assert "22012" in record.refused.reason
        finally:
            await _refuse_nothing(connection)
        assert await broker.spool_desk.retry(None) == 1
        await drained(broker)
        assert await stored_ids(connection, queue, "bad") == ["0", "5"]
        assert await broker.spool_desk.quarantined(10, 0) == []


async def _refuse_partition(connection: asyncpg.Connection, queue: str, partition: str) -> None:
    """Let the database refuse every message of one partition for what it is."""
    partition_id = await connection.fetchval(
        "select p.id from queen.partitions p join queen.queues q on q.id = p.queue_id"
        " where q.name = $1 and p.name = $2",
        queue,
        partition,
    )
    await connection.execute(
        "create function queen.refuse_one() returns trigger language plpgsql as $$ begin"
        f" if new.partition_id = {partition_id} then perform 1 / 0; end if; return new; end $$"
    )
    await connection.execute(
        "create trigger refuse_one before insert on queen.segments"
        " for each row execute function queen.refuse_one()"
    )


async def _refuse_nothing(connection: asyncpg.Connection) -> None:
    await connection.execute("drop trigger refuse_one on queen.segments")
    await connection.execute("drop function queen.refuse_one()")


async def test_records_that_nobody_can_read_are_in_quarantine(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    async with broker_with_spool(dsn, tmp_path) as broker:
        assert broker.basins is not None
        await broker.entrance.push([append_of(queue, "a")], PATIENT)
        await broker.basins.own.spool.append([b"not msgpack"], 5, durable=True)
        await broker.basins.own.spool.append([b"anything"], 17, durable=True)
        await broker.entrance.push([append_of(queue, "b")], PATIENT)
        await drained(broker)
        assert await stored_ids(connection, queue) == ["a", "b"]
        reasons = [each.refused.reason for each in await broker.spool_desk.quarantined(10, 0)]
        assert "does not decode" in reasons[0] and "kind 17" in reasons[1]
        assert await broker.spool_desk.drop(None) == 2
        assert await broker.spool_desk.quarantined(10, 0) == []


async def test_processes_that_ended_are_drained_by_those_that_go_on(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    brokers = [await start_broker(dsn, tmp_path) for _ in range(3)]
    for number, broker in enumerate(brokers):
        for n in range(5):
            await broker.entrance.push([append_of(queue, f"{n}", partition=f"{number}")], PATIENT)
    for broker in brokers:
        await end_suddenly(broker)
    async with broker_with_spool(dsn, tmp_path) as survivor:
        await drained(survivor)
        for number in range(3):
            stored = await stored_ids(connection, queue, f"{number}")
            assert stored == [f"{n}" for n in range(5)]
    assert spools_in(tmp_path) == []


async def test_spooled_records_are_encrypted_when_there_is_a_key(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    keys = parse_keys("ab" * 32)
    async with broker_with_spool(dsn, tmp_path, keys=keys) as broker:
        secret = b'"a very long secret that nobody shall find"'
        await broker.entrance.push([append_of(queue, "a", payloads=[secret])], PATIENT)
        files = files_in(tmp_path)
        assert files and not any(secret in data or queue.encode() in data for data in files)
        await drained(broker)
        assert await stored_ids(connection, queue) == ["a"]


async def test_a_server_without_the_key_of_its_spool_says_so_and_loses_nothing(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    keys = parse_keys("ab" * 32)
    broker = await start_broker(dsn, tmp_path, keys=keys)
    await broker.entrance.push([append_of(queue, "a")], PATIENT)
    await end_suddenly(broker)
    async with broker_with_spool(dsn, tmp_path, keys=KeyRing()) as keyless:
        assert keyless.drain is not None
        await until_met(lambda: keyless.drain is not None and keyless.drain.problem)
        assert "QUEEN_ENCRYPTION_KEY" in (keyless.drain.problem or "")
    async with broker_with_spool(dsn, tmp_path, keys=keys) as successor:
        await drained(successor)
        assert await stored_ids(connection, queue) == ["a"]


async def test_a_full_spool_says_so_and_takes_again_when_it_is_drained(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    options = SpoolOptions(max_bytes=64 * 1024)
    async with broker_with_spool(dsn, tmp_path, options=options) as broker:
        taken = 0
        with pytest.raises(SpoolFull):
            for taken in range(1000):
                body = b'"' + b"x" * 1000 + b'"'
                append = append_of(queue, f"{taken}", payloads=[body])
                await broker.entrance.push([append], PATIENT)
        assert 10 < taken < 100
        await drained(broker)
        assert await stored_ids(connection, queue) == [f"{n}" for n in range(taken)]
        again = append_of(queue, "again")
        await broker.entrance.push([again], PATIENT)
        assert again.is_buffered


async def test_maintenance_sends_pushes_to_the_spool_and_pauses_the_drain(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    async with broker_with_spool(dsn, tmp_path) as broker:
        await drained(broker)
        broker.maintenance.pushes_are_held = True
        broker.maintenance.refresh = _nothing  # type: ignore[method-assign]
        for n in range(3):
            append = append_of(queue, f"{n}")
            await broker.entrance.push([append])
            assert append.is_buffered
        assert broker.drain is not None
        broker.drain.expect(0, 0.0, 1)
        before = broker.drain.batches
        await asyncio.sleep(0)
        assert broker.drain.batches == before
        assert await stored_ids(connection, queue) == []
        broker.maintenance.pushes_are_held = False
        await drained(broker)
        assert await stored_ids(connection, queue) == ["0", "1", "2"]


async def test_a_drain_goes_on_to_the_end_of_the_last_file(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    async with broker_with_spool(
        dsn, tmp_path, options=SpoolOptions(max_file_records=10)
    ) as broker:
        await drained(broker)
        drain, maintenance = broker.drain, broker.maintenance
        assert drain is not None
        # Nothing looks at the spool by itself.
        drain._adopt_at = float("inf")
        refresh, maintenance.refresh = maintenance.refresh, _nothing  # type: ignore[method-assign]
        maintenance.pushes_are_held = True
        for n in range(45):
            await broker.entrance.push([append_of(queue, f"{n}")])
        maintenance.refresh = refresh  # type: ignore[method-assign]
        await until_met(lambda: not drain.keys)
        assert await stored_ids(connection, queue) == [f"{n}" for n in range(45)]


async def test_a_start_drains_all_that_earlier_lives_have_left(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    options = SpoolOptions(max_file_records=10)
    for life in range(2):
        broker = await start_broker(dsn, tmp_path, options=options)
        broker.maintenance.refresh = _nothing  # type: ignore[method-assign]
        broker.maintenance.pushes_are_held = True
        for n in range(25):
            await broker.entrance.push([append_of(queue, f"{life}-{n}")])
        await end_suddenly(broker)
    async with broker_with_spool(dsn, tmp_path, options=options) as broker:
        drain = broker.drain
        assert drain is not None
        drain._adopt_at = float("inf")
        await until_met(lambda: drain.is_clear)
        expected = [f"{life}-{n}" for life in range(2) for n in range(25)]
        assert await stored_ids(connection, queue) == expected


async def _nothing() -> None:
    return None


async def test_a_file_that_cannot_be_removed_is_not_drained_again(
    dsn: str,
    connection: asyncpg.Connection,
    queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drain_module, "_ADOPT_S", 0.1)
    async with broker_with_spool(dsn, tmp_path) as survivor:
        await configure(survivor, queue, dedup="off")
        other = await start_broker(dsn, tmp_path)
        for n in range(5):
            await other.entrance.push([append_of(queue, f"{n}")], PATIENT)
        assert other.basins is not None and survivor.drain is not None
        folder = other.basins.own.spool.spool.path
        await end_suddenly(other)
        damage_payload(folder, b'"2"')
        adopted: list[int] = []
        survivor.drain._adopt_at = 0.0
        # Adopted, drained and given up, again and again.
        for _ in range(3):
            adopted.append(survivor.drain.batches)
            survivor.drain._adopt_at = 0.0
            survivor.drain.expect(0, 0.0, 1)
            await until_async(lambda: _has(connection, queue, 4))
        await drained(survivor)
        assert await stored_ids(connection, queue) == ["0", "1", "3", "4"]
    async with broker_with_spool(dsn, tmp_path) as successor:
        await drained(successor)
        assert await stored_ids(connection, queue) == ["0", "1", "3", "4"]


async def test_what_waits_is_only_taken_with_what_came_behind_it(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    broker = await start_broker(dsn, tmp_path)
    assert broker.drain is not None and broker.basins is not None
    await configure(broker, queue, max_size=1)
    for n in range(4):
        await broker.entrance.push([append_of(queue, f"{n}")], PATIENT)
    broker.drain.expect(0, 0.0, 1)
    await until_met(lambda: broker.drain is not None and broker.drain._held)
    for n in range(4, 8):
        await broker.entrance.push([append_of(queue, f"{n}")], PATIENT)
    waiting = broker.basins.waiting
    assert waiting is not None
    own_path, waiting_path = broker.basins.own.spool.spool.path, waiting.spool.spool.path
    await end_suddenly(broker)
    one, other = SpoolRoot(tmp_path, "test"), SpoolRoot(tmp_path, "test")
    # Whoever comes second gets nothing of it, whichever of the two is looked at first.
    taken = one.claim()
    assert taken.path == own_path
    assert other.claim().path not in (own_path, waiting_path) and other.adopt() == []
    assert [held.path for held in one.adopt()] == [waiting_path]


async def test_what_finds_no_room_to_wait_in_is_not_refused_for_good(
    dsn: str, connection: asyncpg.Connection, queue: str, tmp_path: Path
) -> None:
    options = SpoolOptions(max_bytes=64 * 1024)
    async with broker_with_spool(dsn, tmp_path, options=options) as broker:
        assert broker.drain is not None
        await configure(broker, queue, max_size=1)
        taken = 0
        with pytest.raises(SpoolFull):
            for taken in range(1000):
                body = b'"' + b"x" * 1000 + b'"'
                append = append_of(queue, f"{taken}", payloads=[body])
                await broker.entrance.push([append], PATIENT)
        broker.drain.expect(0, 0.0, 1)
        await until_met(lambda: broker.drain is not None and broker.drain.problem)
        assert "full" in (broker.drain.problem or "")
        assert await broker.spool_desk.quarantined(10, 0) == []
        await configure(broker, queue, max_size=0)
        await drained(broker)
        assert await stored_ids(connection, queue) == [f"{n}" for n in range(taken)]
        assert await broker.spool_desk.quarantined(10, 0) == []
