"""Every option of a queue does what it says."""

from __future__ import annotations

import itertools
import time
from typing import Any

import asyncpg
import pytest

from queen.core.cipher import KeyRing, key_name
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.upkeep.reencrypt import Reencrypter
from queen.storage.database import Database
from tests.api import Api
from tests.conftest import ENCRYPTION_KEY, ServerProcess
from tests.contract.conftest import Connect, Park, age
from tests.contract.groupcalls import eventually

# ---- retryDelay ----


def test_what_failed_waits_before_it_comes_again(api: Api, queue: str, park: Park) -> None:
    api.configure(queue, retryDelay=1500)
    api.push_many(queue, 3)
    messages = api.messages(queue, batch=2)
    started = time.monotonic()
    assert api.ack_batch(messages, "failed").json["results"][0]["status"] == "failed_retry"
    # Nothing overtakes it.
    assert api.messages(queue, "Default", batch=3) == []
    again = park(api, queue, batch=3, timeout=20_000).data()
    assert 1.5 <= time.monotonic() - started < 10
    assert [one["n"] for one in again] == [0, 1, 2]


def test_a_delay_holds_back_one_partition_of_one_group(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=60_000)
    for partition in ("a", "b"):
        api.push_many(queue, 1, partition)
    (message,) = api.messages(queue, "a", consumerGroup="g")
    api.ack(message, "failed")
    assert api.messages(queue, "a", consumerGroup="g") == []
    assert len(api.messages(queue, "b", consumerGroup="g")) == 1
    assert len(api.messages(queue, "a", consumerGroup="other")) == 1


def test_what_is_given_back_without_fault_comes_at_once(api: Api, queue: str) -> None:
    api.configure(queue, retryDelay=60_000)
    api.push_many(queue, 1)
    (message,) = api.messages(queue)
    assert api.ack(message, "retry").json["success"]
    assert len(api.messages(queue)) == 1


# ---- delayedProcessing and windowBuffer ----


async def test_a_delayed_message_comes_when_it_is_old_enough(
    api: Api, queue: str, park: Park, connection: asyncpg.Connection
) -> None:
    api.configure(queue, delayedProcessing=60)
    for n in range(2):
        api.push({"queue": queue, "payload": n})
    assert api.messages(queue, batch=10) == []
    await age(connection, queue, 30)
    api.push({"queue": queue, "payload": 2})
    await age(connection, queue, 30)
    assert api.data(queue, "Default", batch=10) == [0, 1]


def test_a_poll_waits_until_a_message_is_due(api: Api, queue: str, park: Park) -> None:
    api.configure(queue, delayedProcessing=1)
    started = time.monotonic()
    api.push_many(queue, 1)
    assert len(park(api, queue, timeout=20_000).data()) == 1
    assert 1.0 <= time.monotonic() - started < 10


def test_a_window_buffer_waits_until_a_partition_is_quiet(api: Api, queue: str, park: Park) -> None:
    for number in range(5):
        name = f"{queue}.{number}"
        api.configure(name, windowBuffer=2)
        poll = park(api, name, batch=100, timeout=20_000)
        began = []
        for n in range(3):
            began.append(time.monotonic())
            api.push({"queue": name, "payload": n})
            # All pauses together are longer than the window, each is far shorter.
            poll.is_answered(within_s=0.7)
        data, ended = poll.data(), time.monotonic()
        if max(b - a for a, b in itertools.pairwise(began)) < 1.5:
            assert data == [0, 1, 2]
            assert 2.0 <= ended - began[-1] < 10
            return
    pytest.fail("the machine pauses between all pushes")


# ---- maxSize ----


def items(queue: str, count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"queue": queue, "payload": n, **more} for n in range(count)]


def test_a_full_queue_says_what_is_left(api: Api, queue: str) -> None:
    api.configure(queue, maxSize=5)
    assert api.push(*items(queue, 3)).status == 201
    answer = api.push(*items(queue, 3))
    assert answer.status == 429
    assert answer.json["code"] == "queue_full"
    assert (answer.json["maxSize"], answer.json["left"]) == (5, 2)
    assert "max capacity (5)" in answer.json["error"]
    assert "retry-after" in answer.headers
    assert api.push(*items(queue, 2)).status == 201
    assert api.push(*items(queue, 1)).json["left"] == 0


def test_what_is_consumed_makes_room(api: Api, queue: str) -> None:
    api.configure(queue, maxSize=2)
    api.push(*items(queue, 2))
    assert api.push(*items(queue, 1)).status == 429
    api.messages(queue, autoAck="true")
    # On a slow machine a count is used again, for a second.
    assert eventually(lambda: api.push(*items(queue, 1)).status == 201)


def test_the_slowest_group_decides(api: Api, queue: str) -> None:
    api.configure(queue, maxSize=2)
    api.push(*items(queue, 2))
    for group in ("fast", "slow"):
        assert len(api.messages(queue, consumerGroup=group)) == 1
    api.ack_batch(api.messages(queue, consumerGroup="fast", batch=2), group="fast")
    assert api.push(*items(queue, 1)).status == 429


def test_a_repeated_push_is_not_refused(api: Api, queue: str) -> None:
    api.configure(queue, maxSize=1)
    item = {"queue": queue, "payload": 1, "transactionId": "t"}
    assert api.push(item).status == 201
    again = api.push(item)
    assert (again.status, again.json[0]["status"]) == (201, "duplicate")


def test_a_full_queue_does_not_fail_its_neighbours(api: Api, queue: str) -> None:
    api.configure(queue, maxSize=1)
    other = f"{queue}.other"
    answer = api.push(*items(queue, 2), *items(other, 2))
    assert answer.status == 429
    assert [one["index"] for one in answer.json["items"]] == [0, 1]
    assert [one["index"] for one in answer.json["results"]] == [2, 3]
    assert api.data(other, batch=10) == [0, 1]


def test_a_transaction_into_a_full_queue_does_nothing(api: Api, queue: str) -> None:
    api.configure(queue, maxSize=1)
    api.push(*items(queue, 1))
    other = f"{queue}.other"
    pushes = [{"type": "push", "items": items(one, 1)} for one in (other, queue)]
    assert api.transaction(*pushes).status == 429
    assert api.messages(other) == []


# ---- priority ----


def test_the_higher_priority_is_served_first(api: Api, queue: str) -> None:
    for priority in (1, 9, 5):
        name = f"{queue}.t{priority}"
        body = {"queue": name, "namespace": queue, "options": {"priority": priority}}
        api.call("POST", "/api/v1/configure", body)
        api.push(*items(name, 2))
    path = f"/api/v1/pop?namespace={queue}&batch=10&autoAck=true"
    served = [api.call("GET", path).json["queue"][-1] for _ in range(3)]
    assert served == ["9", "5", "1"]


def test_equal_queues_share(api: Api, queue: str) -> None:
    names = [f"{queue}.{n}" for n in range(3)]
    for name in names:
        api.push(*items(name, 40))
    path = f"/api/v1/pop?namespace={queue}&batch=1&autoAck=true"
    served = [api.call("GET", path).json["queue"] for _ in range(60)]
    # Each would be missed by chance once in 10^10 runs.
    assert set(served) == set(names)


# ---- encryptionEnabled ----


async def bodies(connection: asyncpg.Connection, queue: str) -> list[bytes]:
    rows = await connection.fetch(
        "select s.body from queen.segments s join queen.queues q on q.id = s.queue_id"
        " where q.name = $1 order by s.created_at, s.base_offset",
        queue,
    )
    return [row["body"] for row in rows]


async def test_an_encrypted_queue_keeps_nothing_in_the_clear(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, encryptionEnabled=True)
    api.push({"queue": queue, "payload": {"word": "secret"}, "transactionId": "customer-7"})
    (body,) = await bodies(connection, queue)
    assert b"secret" not in body
    assert b"customer" not in body
    assert key_name(body) == KeyRing([bytes.fromhex(ENCRYPTION_KEY)]).current
    # The other server has it from the database, this one from its memory.
    assert api.data(queue, consumerGroup="a") == [{"word": "secret"}]
    assert other_api.data(queue, consumerGroup="b") == [{"word": "secret"}]
    # A repeat is found although the ids are encrypted too.
    again = other_api.push({"queue": queue, "payload": 1, "transactionId": "customer-7"})
    assert again.json[0]["status"] == "duplicate"
    (frame,) = other_api.frames(queue)
    assert frame.segment().payloads() == [b'{"word": "secret"}']


async def test_what_was_moved_to_another_partition_does_not_open(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, encryptionEnabled=True)
    for partition in ("a", "b"):
        api.push({"queue": queue, "partition": partition, "payload": partition})
    await connection.execute(
        "update queen.segments s set body = (select t.body from queen.segments t join"
        " queen.partitions p on p.id = t.partition_id join queen.queues q on q.id = p.queue_id"
        " where q.name = $1 and p.name = 'a') from queen.partitions p join queen.queues q"
        " on q.id = p.queue_id where s.partition_id = p.id and q.name = $1 and p.name = 'b'",
        queue,
    )
    answer = other_api.pop(queue, "b")
    assert (answer.status, answer.json["code"]) == (503, "unreadable")
    assert other_api.data(queue, "a") == ["a"]


async def test_keys_are_rotated(
    dsn: str, queue: str, connect: Connect, connection: asyncpg.Connection
) -> None:
    new = "fedcba9876543210" * 4
    keys = {"old": ENCRYPTION_KEY, "both": f"{new},{ENCRYPTION_KEY}", "new": new}
    answers: dict[str, Any] = {}
    for name, value in keys.items():
        server = ServerProcess("--database-url", dsn, env={"QUEEN_ENCRYPTION_KEY": value})
        try:
            api = server.api()
            if name == "old":
                api.configure(queue, encryptionEnabled=True)
            if name != "new":
                api.push({"queue": queue, "payload": name})
            answers[name] = api.pop(queue, "Default", batch=10, consumerGroup=name)
        finally:
            server.stop()
    assert [one["data"] for one in answers["both"].messages] == ["old", "both"]
    # A key that is still needed is asked for by name; nothing else is said.
    assert answers["new"].status == 503
    assert KeyRing([bytes.fromhex(ENCRYPTION_KEY)]).current in answers["new"].json["error"]
    first, second = await bodies(connection, queue)
    assert key_name(first) != key_name(second)


async def test_what_was_stored_before_follows_the_option_and_the_key(
    api: Api, queue: str, database: Database, connection: asyncpg.Connection
) -> None:
    for n in range(3):
        api.push({"queue": queue, "payload": f"secret {n}"})
    (first, *_) = api.messages(queue, consumerGroup="g")
    api.ack(first, "dlq")
    api.configure(queue, encryptionEnabled=True)
    old = KeyRing([bytes.fromhex(ENCRYPTION_KEY)])
    await reencrypt(database, old)
    assert {key_name(body) for body in await bodies(connection, queue)} == {old.current}
    new = KeyRing([b"n" * 32, bytes.fromhex(ENCRYPTION_KEY)])
    await reencrypt(database, new)
    # The servers of the tests only have the old key; with the new one alone all of it opens.
    encryption = SegmentEncryption(KeyRing([b"n" * 32]))
    rows = await connection.fetch(
        "select s.partition_id, s.codec, s.body from queen.segments s join queen.queues q"
        " on q.id = s.queue_id where q.name = $1 order by s.base_offset",
        queue,
    )
    found = [payload for row in rows for payload in encryption.decode_segment(row).payloads()]
    assert found == [b'"secret 0"', b'"secret 1"', b'"secret 2"']
    letter = await connection.fetchrow(
        "select d.partition_id, d.codec, d.payload from queen.dead_letters d join queen.queues q"
        " on q.id = d.queue_id where q.name = $1",
        queue,
    )
    assert letter is not None
    assert encryption.decrypt_dead_letter(*letter) == b'"secret 0"'
    await reencrypt(database, KeyRing([bytes.fromhex(ENCRYPTION_KEY), b"n" * 32]))


async def test_what_does_not_open_holds_up_nothing_behind_it(
    api: Api,
    queue: str,
    database: Database,
    connection: asyncpg.Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    api.configure(queue, encryptionEnabled=True)
    for n in range(5):
        api.push({"queue": queue, "payload": n})
    # One is cut off, one damaged, one needs a key that nobody has.
    for offset, change in enumerate(
        ("substring(body for 20)", "overlay(body placing '\\x00' from 60)", _other_key("body"))
    ):
        await connection.execute(
            f"update queen.segments s set body = {change} from queen.queues q"
            " where q.id = s.queue_id and q.name = $1 and s.base_offset = $2",
            queue,
            offset + 1,
        )
    new = KeyRing([b"n" * 32, bytes.fromhex(ENCRYPTION_KEY)])
    await reencrypt(database, new)
    keys = [body[2:10].hex() for body in await bodies(connection, queue)]
    assert (keys[0], keys[4]) == (new.current, new.current)
    assert new.current not in keys[1:4]
    assert "stored texts are damaged or need a key" in caplog.text
    assert api.delete_queue(queue).status == 200


def _other_key(body: str) -> str:
    return f"overlay({body} placing '\\x0102030405060708' from 3)"


async def reencrypt(database: Database, keys: KeyRing) -> None:
    # Pages so small that there are several.
    reencrypter, more = Reencrypter(SegmentEncryption(keys), wait_s=0, page_rows=2), True
    while more:
        async with database.transaction() as transaction:
            more = await reencrypter.encrypt_some(transaction)
