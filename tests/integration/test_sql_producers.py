"""Messages pushed in SQL, in transactions of the user's, beside everything else."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from queen.storage.embedded import EmbeddedPostgres
from tests.acceptance.client import HttpClient
from tests.acceptance.deployment import until
from tests.api import Api, Poll, pop_path, push_of
from tests.conftest import ServerProcess
from tests.stopwatch import tries
from tests.waiting import spend_async, until_async

_STORED = """
select coalesce(sum(p.head), 0)::integer
from queen.partitions p join queen.queues q on q.id = p.queue_id where q.name = $1
"""


@pytest.fixture
async def producer(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of an application, with no settings of ours."""
    opened = await asyncpg.connect(dsn)
    yield opened
    await opened.close()


async def push(connection: asyncpg.Connection, queue: str, payload: int, **more: Any) -> None:
    names = "".join(f", {name} => ${at}" for at, name in enumerate(more, 3))
    sql = f"select queen.push($1, 'p', to_jsonb($2::integer){names})"
    await connection.execute(sql, queue, payload, *more.values())


async def relayed(connection: asyncpg.Connection, queue: str) -> None:
    """Return when nothing that has committed is staged for a queue any more."""

    async def is_empty() -> bool:
        sql = "select not exists (select 1 from queen.staged where queue = $1)"
        return bool(await connection.fetchval(sql, queue))

    await until(is_empty, 30)


def poll_for(api: Api, queue: str) -> Poll:
    return Poll(api, pop_path(queue, "p", wait="true", timeout=10_000, autoAck="true"))


# ---- one message ----


async def test_a_commit_wakes_who_waits_on_every_server(
    api: Api, other_api: Api, queue: str, producer: asyncpg.Connection
) -> None:
    """Through a notification, not at the relay's next look, which is a second away."""
    api.push({"queue": queue, "partition": "p", "payload": 0})
    assert api.data(queue, "p", autoAck="true") == [0]
    for stopwatch in tries(looks_every_s=1):
        number = stopwatch.number
        poll = poll_for(api if number % 2 else other_api, queue)
        async with producer.transaction():
            await push(producer, queue, number)
            assert not poll.is_answered(0.05)
        with stopwatch:
            assert await asyncio.to_thread(poll.data) == [number]
        poll.hang_up()


async def test_a_rolled_back_message_never_comes(
    api: Api, queue: str, producer: asyncpg.Connection
) -> None:
    transaction = producer.transaction()
    await transaction.start()
    await push(producer, queue, 1)
    await transaction.rollback()
    async with producer.transaction():
        savepoint = producer.transaction()
        await savepoint.start()
        await push(producer, queue, 2)
        await savepoint.rollback()
        await push(producer, queue, 3)
    await relayed(producer, queue)
    assert api.data(queue, batch=10) == [3]


async def test_everything_of_a_message_arrives(
    api: Api, queue: str, producer: asyncpg.Connection
) -> None:
    trace = str(uuid.uuid4())
    payload = '{"name": "Zoë \\u0001 \\"\\n", "n": [1.50, null, true, 1e3], "😀": {}}'
    returned = await producer.fetchval(
        "select queen.push($1, 'lane', $2::text::jsonb, 'order-7', $3)", queue, payload, trace
    )
    generated = await producer.fetchval("select queen.push($1, '\"plain\"')", queue)
    await relayed(producer, queue)
    (message,) = api.messages(queue, "lane")
    assert (returned, message["transactionId"], message["traceId"]) == ("order-7", "order-7", trace)
    assert message["data"] == {
        "name": 'Zoë \x01 "\n',
        "n": [1.5, None, True, 1000],
        "😀": {},
    }
    (message,) = api.messages(queue, "Default")
    assert (message["data"], message["transactionId"]) == ("plain", generated)


async def test_a_transaction_id_is_one_message_over_http_and_sql(
    api: Api, queue: str, producer: asyncpg.Connection
) -> None:
    for dedup in ("window", "forever", "off"):
        lane = f"{queue}-{dedup}"
        api.configure(lane, dedup=dedup)
        api.push({"queue": lane, "partition": "p", "payload": 0, "transactionId": "a"})
        for number, transaction_id in ((1, "a"), (2, "b"), (3, "b")):
            await push(producer, lane, number, transaction_id=transaction_id)
        await relayed(producer, lane)
        await push(producer, lane, 4, transaction_id="a")
        await relayed(producer, lane)
        expected = [0, 2] if dedup != "off" else [0, 1, 2, 3, 4]
        assert api.data(lane, batch=10) == expected
        answer = api.push({"queue": lane, "partition": "p", "payload": 5, "transactionId": "b"})
        assert answer.json[0]["status"] == ("queued" if dedup == "off" else "duplicate")


async def test_rows_that_are_no_messages_are_set_aside_and_block_nobody(
    api: Api, queue: str, producer: asyncpg.Connection
) -> None:
    bad: list[tuple[str, str, str, str | None, bytes, int, str]] = [
        ("", "p", "t", None, b"1", 0, "queue name is empty"),
        (queue, "a\nb", "t", None, b"1", 0, "not printable"),
        (queue, "p", "", None, b"1", 0, "transactionId is empty"),
        (queue, "p", "t" * 256, None, b"1", 0, "transactionId is longer"),
        (queue, "p", "t", "trace", b"1", 0, "not a UUID"),
        (queue, "p", "t", None, b"{", 0, "not valid JSON"),
        (queue, "p", "t", None, b"1 2", 0, "not valid JSON"),
        (queue, "p", "t", None, b"", 0, "not valid JSON"),
        (queue, "p", "t", None, b'"\xff"', 0, "not valid UTF-8"),
        (queue, "p", "t", None, b'"\\u0000"', 0, "NUL"),
        (queue, "p", "t", None, b"[" * 129 + b"]" * 129, 0, "deeper than"),
        (queue, "p", "t", None, b"1", 77, "codec 77"),
        (queue, "p", "t", None, b"1", 2, "does not open"),
    ]
    first = await producer.fetchval("select coalesce(max(id), 0) from queen.staged_refused")
    async with producer.transaction():
        await push(producer, queue, 1)
        await producer.executemany(
            "insert into queen.staged"
            " (queue, partition, transaction_id, trace_id, payload, codec)"
            " values ($1, $2, $3, $4, $5, $6)",
            [row[:6] for row in bad],
        )
        await producer.execute(
            "insert into queen.staged (queue, partition, transaction_id, payload)"
            " values ($1, 'p', 'by hand', E'[1,\\n2]'::bytea)",
            queue,
        )
        await push(producer, queue, 2)
    await relayed(producer, queue)
    assert api.data(queue, batch=100) == [1, [1, 2], 2]
    rows = await producer.fetch(
        "select payload, reason from queen.staged_refused where id > $1 order by id", first
    )
    assert [row["payload"] for row in rows] == [row[4] for row in bad]
    for row, expected in zip(rows, bad, strict=True):
        assert expected[6] in row["reason"]


async def test_a_large_backlog_of_large_messages_arrives_in_order(
    api: Api, queue: str, producer: asyncpg.Connection
) -> None:
    """Rounds are bounded in bytes: forty megabytes take several."""
    async with producer.transaction():
        for number in range(10):
            await producer.execute(
                "select queen.push($1, 'p', jsonb_build_array($2::integer, repeat('x', 4000000)))",
                queue,
                number,
            )
    seen: list[int] = []
    while len(seen) < 10:
        found = api.data(queue, "p", wait="true", timeout=10_000, batch=2, autoAck="true")
        seen += [one[0] for one in found]
    assert seen == list(range(10))


async def test_maintenance_holds_the_relay_too(
    start_server: Callable[..., ServerProcess], tmp_path: Path, queue: str
) -> None:
    api = start_server("--data-dir", str(tmp_path / "data")).api()
    connection = await asyncpg.connect(EmbeddedPostgres(tmp_path / "data", {}).dsn)
    path = "/api/v1/system/maintenance"
    assert api.call("POST", path, {"enabled": True}).status == 200
    timed = {"queue": queue, "payload": 1, "delay": 60}
    assert api.push(timed).status == api.transaction(push_of(timed)).status == 503
    await push(connection, queue, 1)
    poll = poll_for(api, queue)
    assert not poll.is_answered(1.5)
    assert api.call("POST", path, {"enabled": False}).status == 200
    assert await asyncio.to_thread(poll.data) == [1]
    poll.hang_up()
    await connection.close()


async def test_a_message_waits_for_a_server_that_has_the_key(
    start_server: Callable[..., ServerProcess], tmp_path: Path, queue: str
) -> None:
    """And nobody waits for the message."""
    data = ("--data-dir", str(tmp_path / "data"))
    keyed = start_server(*data)
    connection = await asyncpg.connect(EmbeddedPostgres(tmp_path / "data", {}).dsn)
    keyed.api().configure(queue, encryptionEnabled=True)
    keyed.api().push({"queue": queue, "partition": "p", "payload": 1, "delay": 60})
    stranger = start_server(*data, env={"QUEEN_ENCRYPTION_KEY": "ab" * 32})
    keyed.stop()
    make_due = "update queen.staged set deliver_at = clock_timestamp() where queue = $1"
    await connection.execute(make_due, queue)
    await push(connection, f"{queue}-b", 2)
    api = stranger.api()
    assert api.data(f"{queue}-b", wait="true", timeout=20_000) == [2]
    await until(lambda: _is_postponed(connection, queue), 5)
    again = start_server(*data)
    stranger.stop()
    await connection.execute(make_due, queue)
    assert again.api().data(queue, "p", wait="true", timeout=20_000) == [1]
    await connection.close()


async def test_what_cannot_be_compared_holds_up_nothing_else(
    start_server: Callable[..., ServerProcess], tmp_path: Path, queue: str
) -> None:
    """A staged message may be stored already: in a segment that this server cannot open."""
    data = ("--data-dir", str(tmp_path / "data"))
    keyed = start_server(*data)
    connection = await asyncpg.connect(EmbeddedPostgres(tmp_path / "data", {}).dsn)
    api = keyed.api()
    api.push({"queue": queue, "partition": "p", "payload": 1, "transactionId": "same", "delay": 60})
    api.configure(queue, encryptionEnabled=True)
    api.push({"queue": queue, "partition": "p", "payload": 1, "transactionId": "same"})
    log = tmp_path / "stranger.log"
    stranger = start_server(*data, env={"QUEEN_ENCRYPTION_KEY": "ab" * 32}, log=log)
    keyed.stop()
    make_due = "update queen.staged set deliver_at = clock_timestamp() where queue = $1"
    await connection.execute(make_due, queue)
    await push(connection, f"{queue}-b", 2)
    assert stranger.api().data(f"{queue}-b", wait="true", timeout=20_000) == [2]
    await until(lambda: _is_postponed(connection, queue), 10)
    assert f"{queue!r} 'p'" in log.read_text()
    again = start_server(*data)
    stranger.stop()
    await connection.execute(make_due, queue)
    await relayed(connection, queue)
    assert again.api().data(queue, "p") == [1]
    await connection.close()


async def test_a_staged_message_that_is_damaged_is_set_aside(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, encryptionEnabled=True)
    for number, damage in enumerate(
        (
            "payload",
            "substring(payload for 9)",
            "set_byte(payload, 49, 255 - get_byte(payload, 49))",
        )
    ):
        api.push(
            {
                "queue": queue,
                "payload": number,
                "transactionId": str(number),
                "delay": 60,
            }
        )
        await connection.execute(
            f"update queen.staged set payload = {damage} where queue = $1 and transaction_id = $2",
            queue,
            str(number),
        )
    await connection.execute(
        "update queen.staged set deliver_at = clock_timestamp() where queue = $1", queue
    )
    assert api.data(queue, wait="true", timeout=20_000, batch=10) == [0]
    rows = await connection.fetch(
        "select transaction_id, reason from queen.staged_refused where queue = $1 order by id",
        queue,
    )
    assert [row["transaction_id"] for row in rows] == ["1", "2"]
    assert all("damaged" in row["reason"] for row in rows)


async def _is_postponed(connection: asyncpg.Connection, queue: str) -> bool:
    sql = "select deliver_at > clock_timestamp() from queen.staged where queue = $1"
    return bool(await connection.fetchval(sql, queue))


# ---- who waits for an open transaction ----


async def test_an_open_transaction_holds_up_nobody(
    api: Api, queue: str, producer: asyncpg.Connection, dsn: str
) -> None:
    api.push({"queue": queue, "partition": "p", "payload": 0})
    assert api.data(queue, "p", autoAck="true") == [0]
    other = await asyncpg.connect(dsn)
    open_transaction = producer.transaction()
    await open_transaction.start()
    await push(producer, queue, 99)
    started = time.monotonic()
    for number in range(1, 21):
        if number % 2:
            api.push({"queue": queue, "partition": "p", "payload": number})
        else:
            await push(other, queue, number)
        assert api.data(queue, "p", wait="true", timeout=20_000, autoAck="true") == [number]
    api.configure(queue, leaseTime=10)
    # What seals a queue takes this lock.
    async with asyncio.timeout(10), other.transaction():
        sql = "select pg_advisory_xact_lock(7001, id) from queen.queues where name = $1"
        await other.execute(sql, queue)
    assert time.monotonic() - started < 20
    await open_transaction.commit()
    assert api.data(queue, "p", wait="true", timeout=20_000, autoAck="true") == [99]
    await other.close()


# ---- servers that die ----


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_nothing_is_lost_or_doubled_when_the_relaying_server_is_killed(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    servers = [start_server(*data), start_server(*data)]
    dsn = EmbeddedPostgres(tmp_path / "data", {}).dsn
    producers = [await asyncpg.connect(dsn) for _ in range(4)]
    expected: list[list[int]] = [[] for _ in producers]
    producing = True

    async def produce(who: int) -> None:
        chance = random.Random(who)
        for number in itertools.count():
            if not producing:
                return
            transaction = producers[who].transaction()
            await transaction.start()
            batch = [number * 100 + at for at in range(chance.randint(1, 40))]
            # No dedup would hide a message that is appended twice: ids are generated.
            await producers[who].execute(
                "select queen.push_many('crash', $1, array(select to_jsonb(n)"
                " from unnest($2::integer[]) n))",
                f"p{who}",
                batch,
            )
            if chance.random() < 0.3:
                await transaction.rollback()
            else:
                await transaction.commit()
                expected[who] += batch

    tasks = [asyncio.create_task(produce(who)) for who in range(4)]
    for round_ in range(4):
        wanted = [len(numbers) + 200 for numbers in expected]
        await until_async(partial(_all_wrote, expected, wanted))
        killed = servers[round_ % 2]
        killed.kill()
        servers[round_ % 2] = await asyncio.to_thread(start_server, *data, port=killed.port)
    producing = False
    await asyncio.gather(*tasks)
    await relayed(producers[0], "crash")
    api = servers[0].api()
    for who, numbers in enumerate(expected):
        got: list[int] = []
        while len(got) < len(numbers):
            found = api.data("crash", f"p{who}", batch=1000, autoAck="true")
            assert found, f"{len(numbers) - len(got)} messages are missing"
            got += found
        assert got == numbers
        assert api.data("crash", f"p{who}") == []
    for connection in producers:
        await connection.close()


async def _all_wrote(numbers: list[list[int]], wanted: list[int]) -> bool:
    return all(len(one) >= least for one, least in zip(numbers, wanted, strict=True))


# ---- the whole ----

_LANES, _HTTP, _SQL = 4, 8, 2
_TURNS, _PUSHES = 8, 20
# Far less than so many pushes take if each waits for a transaction, far more than they need.
_SOON_S = 30.0


class Traffic:
    """Eight HTTP producers, and SQL producers that dawdle until all of those have got on."""

    def __init__(self, port: int, dsn: str, queue: str) -> None:
        self._port = port
        self._dsn = dsn
        self._queue = queue
        self._holding = True
        # For each lane and producer, what was committed, in order.
        self.committed: dict[tuple[str, str], list[int]] = {}

    async def run(self) -> None:
        pushing = [asyncio.create_task(self._push_http(f"h{who}")) for who in range(_HTTP)]
        try:
            await asyncio.gather(*(self._hold_open(f"s{who}") for who in range(_SQL)))
        finally:
            self._holding = False
            await asyncio.gather(*pushing)

    def _record(self, who: str, numbers: list[tuple[str, int]]) -> None:
        for lane, number in numbers:
            self.committed.setdefault((lane, who), []).append(number)

    def _next(self, who: str) -> int:
        return sum(len(one) for (_, name), one in self.committed.items() if name == who)

    async def _push_http(self, who: str) -> None:
        http = HttpClient(self._port)
        while self._holding:
            number = self._next(who)
            lane = f"p{number % _LANES}"
            item = {"queue": self._queue, "partition": lane, "payload": [who, number]}
            answer = await http.call("POST", "/api/v1/push", {"items": [item]})
            assert answer.status == 201
            self._record(who, [(lane, number)])
        await http.close()

    async def _hold_open(self, who: str) -> None:
        """Push to every lane, dawdle, and roll back half of the time."""
        connection = await asyncpg.connect(self._dsn)
        for turn in range(_TURNS):
            transaction = connection.transaction()
            await transaction.start()
            first = self._next(who)
            mine = [(f"p{lane}", first + lane) for lane in range(_LANES)]
            kept = turn % 2 == 0
            for lane, number in mine:
                await connection.execute(
                    "select queen.push($1, $2, jsonb_build_array($3::text, $4::integer))",
                    self._queue,
                    lane,
                    who,
                    number if kept else -1,
                )
            await self._others_get_on()
            await (transaction.commit() if kept else transaction.rollback())
            if kept:
                self._record(who, mine)
        await connection.close()

    async def _others_get_on(self) -> None:
        """Whoever waited for the transaction that is open now would not."""
        wanted = {f"h{who}": self._next(f"h{who}") + _PUSHES for who in range(_HTTP)}

        async def all_did() -> bool:
            return all(self._next(who) >= number for who, number in wanted.items())

        await until_async(all_did, _SOON_S)


async def read_on(port: int, queue: str, seen: dict[str, list[Any]], stop: asyncio.Event) -> None:
    """Read all lanes from their tails until told, and then until they are empty."""
    http = HttpClient(port)
    path = pop_path(queue, batch=1000, autoAck="true", consumerGroup="tail")
    while True:
        last = stop.is_set()
        answer = await http.call("GET", path)
        messages = answer.body["messages"] if answer.status == 200 else []
        for one in messages:
            seen.setdefault(one["partition"], []).append((one["offset"], one["data"]))
        if last and not messages:
            break
        await spend_async(0.005)
    await http.close()


@pytest.mark.slow
async def test_a_sql_producer_that_dawdles_beside_eight_http_producers(
    server: ServerProcess, api: Api, queue: str, dsn: str, producer: asyncpg.Connection
) -> None:
    """No gap, no phantom, nothing skipped, and no HTTP producer waits for a transaction."""
    traffic = Traffic(server.port, dsn, queue)
    seen: dict[str, list[Any]] = {}
    stop = asyncio.Event()
    api.configure(queue)
    reader = asyncio.create_task(read_on(server.port, queue, seen, stop))
    await traffic.run()
    await relayed(producer, queue)
    stop.set()
    await reader

    for lane, messages in seen.items():
        assert [offset for offset, _ in messages] == list(range(len(messages)))
        by_producer: dict[str, list[int]] = {}
        for _, (who, number) in messages:
            by_producer.setdefault(who, []).append(number)
        assert by_producer == {
            who: numbers for (name, who), numbers in traffic.committed.items() if name == lane
        }
    assert len(seen) == _LANES
    assert await producer.fetchval(_STORED, queue) == sum(map(len, seen.values()))
