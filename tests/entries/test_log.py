"""A stream and a queue are one log: entries are messages, and messages are entries."""

from __future__ import annotations

import asyncio
import uuid
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from queen import Queen
from queen.service.broker import Broker
from queen.service.entries.executor import EntryExecutor
from queen.service.entries.payloads import fields_of, message_of, messages_of
from queen.streambroker.engine import keyspace
from queen.streambroker.replies import NO_ARRAY, ByStream, Failure, Reply
from tests.conftest import ServerProcess
from tests.entries.conftest import Caller
from tests.waiting import until_async


async def run(executor: EntryExecutor, *command: bytes | str | int) -> Reply:
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
    [reply] = await executor.execute([parts])
    return reply


def entries_of(reply: Reply) -> list[Any]:
    assert isinstance(reply, ByStream), reply
    entries = reply.streams[0][1]
    assert isinstance(entries, list)
    return entries


@pytest.mark.parametrize(
    "fields",
    [
        [b"data", b'{"a":1}'],
        [b"data", b"1e400"],
        [b"data", b"not json"],
        [b"data", b'{"a": "\\u0000"}'],
        [b"data", b'{"a":\n1}'],
        [b"data", b""],
        [b"", b""],
        [b"a", b"1", b"b", b"2"],
        [b"a", b"1", b"a", b"2"],
        [b"fields", b"[]"],
        [b"a", b"\xff\xfe"],
        [b"a", b"\x00"],
        [b"data", b"1", b"data", b"2"],
        ["ключ".encode(), 'значение "\\'.encode()],
    ],
)
def test_an_entry_comes_back_as_it_was(fields: list[bytes]) -> None:
    transaction_id, payload = message_of(b"5-1", fields)
    assert b"\n" not in payload
    assert fields_of(b"5-1", transaction_id, payload) == fields


@pytest.mark.parametrize("value", [b"x", b'"', b"\\", b"\n", b"\x1f", b"\xff", b""])
def test_entries_of_one_field_come_back_as_they_were(value: bytes) -> None:
    entries = [(b"5-1", [b"name", b"plain"]), (b"5-2", [b"name", value]), (b"5-3", [value, b"x"])]
    messages = messages_of(entries)
    for (entry_id, fields), message in zip(entries, messages, strict=True):
        assert fields_of(entry_id, *message) == fields


async def test_entries_are_messages_of_the_queue(
    here: EntryExecutor, key: bytes, server: ServerProcess
) -> None:
    await run(here, "XADD", key, "1-1", "data", '{"n":1}')
    await run(here, "XADD", key, "1-2", "name", "x", "size", "7")
    await run(here, "XADD", key, "1-3", "name", b"\xff")
    async with Queen(server.url) as queen:
        messages = await queen.queue(key.decode()).batch(10).pop()
    assert [message.transaction_id for message in messages] == ["1-1", "1-2/fields", "1-3/bytes"]
    assert [message.data for message in messages] == [
        {"n": 1},
        {"name": "x", "size": "7"},
        {"fields": [["bmFtZQ==", "/w=="]]},
    ]


async def test_messages_are_entries_of_the_stream(
    here: EntryExecutor, key: bytes, server: ServerProcess
) -> None:
    await run(here, "XGROUP", "CREATE", key, "g", "0", "MKSTREAM")
    async with Queen(server.url) as queen:
        await queen.queue(key.decode()).push([{"n": 1}, {"n": 2}])
        await run(here, "XADD", key, "*", "data", '{"n":3}')
        await queen.queue(key.decode()).push([{"n": 4}])
    read = entries_of(await run(here, "XREADGROUP", "GROUP", "g", "c", "STREAMS", key, ">"))
    assert [fields for _, fields in read] == [[b"data", b'{"n":%d}' % n] for n in (1, 2, 3, 4)]
    assert await run(here, "XLEN", key) == 4
    assert await run(here, "XACK", key, "g", *[entry_id for entry_id, _ in read]) == 4


async def test_a_stream_over_an_old_queue_has_its_messages(
    here: EntryExecutor, key: bytes, server: ServerProcess
) -> None:
    async with Queen(server.url) as queen:
        await queen.queue(key.decode()).push([1, 2])
        assert await run(here, "EXISTS", key) == 0
        await run(here, "XADD", key, "*", "data", "3")
    entries = await run(here, "XRANGE", key, "-", "+")
    assert isinstance(entries, list)
    assert [entry[1] for entry in entries] == [[b"data", b"%d" % n] for n in (1, 2, 3)]  # type: ignore[index]


async def test_a_push_wakes_a_reader_that_waits(
    here: EntryExecutor, key: bytes, server: ServerProcess, broker: Broker
) -> None:
    await run(here, "XGROUP", "CREATE", key, "g", "$", "MKSTREAM")
    reading = asyncio.create_task(
        run(here, "XREADGROUP", "GROUP", "g", "c", "BLOCK", 30_000, "STREAMS", key, ">")
    )
    await until_async(lambda: _is_blocked(broker))
    async with Queen(server.url) as queen:
        await queen.queue(key.decode()).push([{"n": 1}])
    assert entries_of(await reading)[0][1] == [b"data", b'{"n":1}']


async def _is_blocked(broker: Broker) -> bool:
    return broker.entries.blocked > 0


async def test_readers_are_woken_by_other_servers_in_order(
    here: EntryExecutor, there: EntryExecutor, key: bytes, broker: Broker
) -> None:
    await run(there, "XGROUP", "CREATE", key, "g", "$", "MKSTREAM")
    reads = []
    for number in range(3):
        command = ("XREADGROUP", "GROUP", "g", f"c{number}", "COUNT", 1, "BLOCK", 0)
        reads.append(asyncio.create_task(run(here, *command, "STREAMS", key, ">")))
        wanted = number + 1
        await until_async(lambda: _are_blocked(broker, wanted))  # noqa: B023
    for number in range(3):
        await run(there, "XADD", key, f"{number + 1}-0", "n", number)
    answers = [entries_of(await read) for read in reads]
    assert [answer[0][0] for answer in answers] == [b"1-0", b"2-0", b"3-0"]


async def _are_blocked(broker: Broker, count: int) -> bool:
    return broker.entries.blocked >= count


async def test_a_group_destroyed_elsewhere_ends_the_wait(
    here: EntryExecutor, there: EntryExecutor, key: bytes, broker: Broker
) -> None:
    await run(here, "XGROUP", "CREATE", key, "g", "$", "MKSTREAM")
    reading = asyncio.create_task(
        run(here, "XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", key, ">")
    )
    await until_async(lambda: _is_blocked(broker))
    assert await run(there, "XGROUP", "DESTROY", key, "g") == 1
    answer = await reading
    assert isinstance(answer, Failure)
    assert answer.text.startswith("NOGROUP")


async def test_a_wait_ends_when_its_time_is_over(here: EntryExecutor, key: bytes) -> None:
    assert await run(here, "XREAD", "BLOCK", 20, "STREAMS", key, "$") is NO_ARRAY


async def test_a_reader_that_hangs_up_waits_no_more(
    here: EntryExecutor, key: bytes, broker: Broker
) -> None:
    reading = asyncio.create_task(run(here, "XREAD", "BLOCK", 0, "STREAMS", key, "$"))
    await until_async(lambda: _is_blocked(broker))
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert broker.entries.blocked == 0


async def test_long_journals_become_snapshots_and_free_what_was_trimmed(
    here: EntryExecutor, broker: Broker, key: bytes, connection: asyncpg.Connection
) -> None:
    add = [b"XADD", key, b"MAXLEN", b"100", b"*", b"n", b"1"]
    for _ in range(12):
        await here.execute([add] * 1000)
    count = """select s.snapshot_version > 0 as is_kept, count(distinct j.version) as records,
                      count(distinct g.base_offset) as segments
               from queen.entry_streams s join queen.queues q on q.id = s.queue_id
               left join queen.entry_journal j on j.stream_id = s.id
               left join queen.segments g on g.partition_id = s.partition_id
               where q.name = $1 group by s.id"""

    async def is_short() -> bool:
        row = await connection.fetchrow(count, key.decode())
        return row is not None and row["is_kept"] and row["records"] < 12 and row["segments"] < 12

    await until_async(is_short)
    broker.entries.forget()
    assert await run(here, "XLEN", key) == 100
    entries = await run(here, "XRANGE", key, "-", "+")
    assert isinstance(entries, list)
    assert all(entry[1] == [b"n", b"1"] for entry in entries)  # type: ignore[index]


async def test_what_is_trimmed_or_deleted_gives_its_space_back(
    here: EntryExecutor, key: bytes, connection: asyncpg.Connection
) -> None:
    large = b"x" * 100_000
    for _ in range(20):
        await run(here, "XADD", key, "MAXLEN", 3, "*", "n", large)
    stored = """select coalesce(sum(g.end_offset - g.base_offset), 0) from queen.segments g
                join queen.queues q on q.id = g.queue_id where q.name = $1"""

    async def are_few() -> bool:
        count = await connection.fetchval(stored, key.decode())
        return isinstance(count, int | Decimal) and count <= 8

    await until_async(are_few)
    assert await run(here, "XLEN", key) == 3
    await run(here, "DEL", key)

    async def are_none() -> bool:
        return not await connection.fetchval(stored, key.decode())

    await until_async(are_none)


async def test_what_retention_removes_is_trimmed(
    here: EntryExecutor, key: bytes, connection: asyncpg.Connection
) -> None:
    for number in range(3):
        await here.execute([[b"XADD", key, b"%d-*" % (number + 1), b"n", b"1"]] * 40)
    await connection.execute(
        """with gone as (
               delete from queen.segments s using queen.queues q
               where q.id = s.queue_id and q.name = $1 and s.base_offset < 40 returning s.*)
           update queen.partitions p set tail = 40 from gone where p.id = gone.partition_id""",
        key.decode(),
    )
    assert await run(here, "XLEN", key) == 80
    entries = await run(here, "XRANGE", key, "-", "+", "COUNT", 1)
    assert entries == [[b"2-0", [b"n", b"1"]]]


async def test_others_see_only_their_namespaces(broker: Broker, here: EntryExecutor) -> None:
    name = uuid.uuid4().hex[:8]
    await run(here, "XADD", f"{name}a.x", "*", "n", 1)
    await run(here, "XADD", f"{name}b.x", "*", "n", 1)
    limited = broker.entries.executor_for(Caller(f"{name}a"))
    assert await run(limited, "XLEN", f"{name}a.x") == 1
    for command in (["XLEN"], ["EXISTS"], ["DEL"], ["XADD", "*", "n", "2"]):
        reply = await run(limited, command[0], f"{name}b.x", *command[1:])
        assert isinstance(reply, Failure)
        assert reply.text.startswith("NOPERM")
    assert await run(limited, "KEYS", f"{name}*") == [f"{name}a.x".encode()]
    assert await run(limited, "FLUSHALL") is not None
    assert await run(here, "EXISTS", f"{name}a.x", f"{name}b.x") == 1


async def test_names_that_no_queue_can_have_are_refused(here: EntryExecutor) -> None:
    for name in (b"", b"\xff", b"a\nb", b"x" * 300):
        reply = await run(here, "XADD", name, "*", "a", "1")
        assert isinstance(reply, Failure), name


async def test_what_is_wrong_with_one_is_told_to_that_one(here: EntryExecutor, key: bytes) -> None:
    async def add(value: bytes) -> Reply:
        return await run(here, "XADD", key, "*", "n", value)

    replies = await asyncio.gather(
        add(b"1"), run(here, "XADD", b"\xff", "*", "n", "1"), run(here, "NOPE"), add(b"2")
    )
    assert [isinstance(reply, Failure) for reply in replies] == [False, True, True, False]
    assert await run(here, "XLEN", key) == 2


async def test_a_command_that_breaks_breaks_no_other(
    here: EntryExecutor, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> Reply:
        raise ZeroDivisionError

    monkeypatch.setitem(keyspace._HANDLERS, b"BREAK", (breaks, -1))
    adds = [run(here, "XADD", key, "*", "n", number) for number in range(5)]
    broken, *ids = await asyncio.gather(run(here, "BREAK"), *adds)
    assert isinstance(broken, Failure)
    assert all(isinstance(entry_id, bytes) for entry_id in ids)
    assert await run(here, "XLEN", key) == 5


async def test_a_deleted_queue_is_a_stream_that_is_gone(
    here: EntryExecutor, key: bytes, server: ServerProcess
) -> None:
    await run(here, "XADD", key, "5-0", "n", 1)
    assert server.api().delete_queue(key.decode()).status == 200
    assert await run(here, "EXISTS", key) == 0
    assert await run(here, "XADD", key, "1-0", "n", 1) == b"1-0"
    assert await run(here, "XLEN", key) == 1


async def test_released_entries_are_claimed_when_their_delay_is_over(
    here: EntryExecutor, key: bytes
) -> None:
    await run(here, "XADD", key, "1-0", "n", 1)
    await run(here, "XGROUP", "CREATE", key, "g", "0")
    await run(here, "XREADGROUP", "GROUP", "g", "c", "STREAMS", key, ">")
    assert await run(here, "XNACK", key, "g", "FAIL", "IDS", 1, "1-0", "DELAY", 300) == 1
    claim = ("XREADGROUP", "GROUP", "g", "d", "CLAIM", 0)
    assert await run(here, *claim, "STREAMS", key, ">") is NO_ARRAY
    read = entries_of(await run(here, *claim, "BLOCK", 30_000, "STREAMS", key, ">"))
    assert read[0][0] == b"1-0"
