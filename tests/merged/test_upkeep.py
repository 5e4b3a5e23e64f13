"""Merged rows grow old, are cleared, encrypted and moved in time like all others."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from queen.core.cipher import KeyRing
from queen.service.broker import Broker
from queen.storage.database import Database
from tests.api import Api
from tests.conftest import ENCRYPTION_KEY, ServerProcess
from tests.contract.groupcalls import moved
from tests.contract.test_entry_streams import add, consumer_path, ids_of
from tests.contract.test_options import reencrypt
from tests.contract.test_retention import run, stored
from tests.merged import merging
from tests.merged.answers import fetch_path, read, same
from tests.merged.conftest import Merge, Write
from tests.merged.history import History, instant_at, microseconds
from tests.merged.test_pops import by_partition, shown
from tests.merged.test_slices import queue_of
from tests.merged.test_standing import quiet_instants

# No merged row holds more than this.
_SPAN = timedelta(minutes=10)
_SPARSE = [1000, 1000, 1_000_000, 1_000_000, 5_000_000, 120_000_000]


async def rows_left(connection: asyncpg.Connection, queue_id: int) -> dict[str, int]:
    """How many rows there are of a queue, in each table of messages."""
    found = {}
    for table in ("segments", "merged_segments"):
        if await connection.fetchval("select to_regclass($1)", f"queen.{table}") is None:
            continue
        found[table] = await connection.fetchval(
            f"select count(*) from queen.{table} where queue_id = $1", queue_id
        )
    return found


async def id_of(connection: asyncpg.Connection, queue: str) -> int:
    number: int = await connection.fetchval("select id from queen.queues where name = $1", queue)
    return number


# ---- retention ----


async def test_what_is_young_enough_stays_and_what_is_old_goes(
    api: Api,
    write: Write,
    merge: Merge,
    database: Database,
    connection: asyncpg.Connection,
) -> None:
    history = await write(gaps_us=_SPARSE, large=0)
    queue_id = await id_of(connection, history.queue)
    await merge(history.queue)
    for at in quiet_instants(history)[::4]:
        seconds = int((datetime.now(UTC) - at).total_seconds())
        api.configure(history.queue, retentionEnabled=True, retentionSeconds=seconds)
        await run(database)
        left = read(api, fetch_path(history.queue))["messages"]
        young = [one for one in history.messages() if one.created_at_us >= microseconds(at)]
        assert [one for one in young if one not in left] == [], f"too much is gone at {at}"
        # A row goes when all of it is old: until then the others of it may stay, or be hidden.
        oldest = microseconds(at - _SPAN)
        assert [one for one in left if one.created_at_us < oldest] == [], f"{at}: too much is left"
        told = await stored(connection, history.queue)
        assert told[0] >= len(young)
    api.configure(history.queue, retentionEnabled=True, retentionSeconds=1)
    await run(database)
    assert await stored(connection, history.queue) == (0, 0)
    assert set((await rows_left(connection, queue_id)).values()) == {0}
    assert read(api, fetch_path(history.queue))["messages"] == []


async def test_what_groups_have_done_goes_and_what_they_need_stays(
    api: Api,
    history: History,
    merge: Merge,
    rng: random.Random,
    database: Database,
    connection: asyncpg.Connection,
) -> None:
    queue = history.queue
    api.pop(queue, consumerGroup="g")
    stands = {name: rng.randrange(len(history.of(name))) for name in history.partitions}
    for name, offset in stands.items():
        moved(api, "g", queue, name, offset=offset)
    await merge(queue)
    api.configure(queue, retentionEnabled=True, completedRetentionSeconds=60)
    await run(database)
    found: list[Any] = []
    while page := api.messages(queue, consumerGroup="g", batch=100, partitions=10, autoAck="true"):
        found += page
    wanted = {
        name: messages
        for name, offset in stands.items()
        if (messages := shown(history, "g")[name][_hidden_before(history, name, offset) :])
    }
    same(by_partition(found), wanted, "what the group had not done")
    await run(database)
    assert await stored(connection, queue) == (0, 0)
    queue_id = await id_of(connection, queue)
    assert set((await rows_left(connection, queue_id)).values()) == {0}


def _hidden_before(history: History, name: str, offset: int) -> int:
    """Return how many messages a group is shown before an offset."""
    return [one.offset < offset for one in history.shown("g")[name]].count(True)


async def test_what_is_lost_is_told(
    api: Api,
    broker: Broker,
    write: Write,
    merge: Merge,
    rng: random.Random,
    database: Database,
    connection: asyncpg.Connection,
) -> None:
    """Readers by time hear that something is missing, and only those that need it."""
    history = await write(gaps_us=_SPARSE, large=0)
    await merge(history.queue)
    at = quiet_instants(history)[5]
    seconds = int((datetime.now(UTC) - at).total_seconds())
    api.configure(history.queue, retentionEnabled=True, retentionSeconds=seconds)
    await run(database)
    queue = await queue_of(broker, history.queue)
    left = {
        (one.partition_id, one.offset) for one in read(api, fetch_path(history.queue))["messages"]
    }
    gone = [one for one in history.messages() if (one.partition_id, one.offset) not in left]
    assert gone
    last = instant_at(max(one.created_at_us for one in gone))
    for since in history.boundaries(rng, 20):
        lost = await broker.sealed_reads.lost({queue: since})
        if since <= last:
            assert lost == [history.queue], f"{since} is before {last}, which is gone"
        if since > last + _SPAN:
            assert lost == [], f"{since} is long after {last}, the last that is gone"


@pytest.mark.parametrize("what", ["clear", "clear a partition", "delete"])
async def test_nothing_is_left_of_what_is_cleared(
    api: Api, history: History, merge: Merge, connection: asyncpg.Connection, what: str
) -> None:
    queue, queue_id = history.queue, await id_of(connection, history.queue)
    first, *others = history.partitions
    await merge(queue)
    if what == "delete":
        assert api.delete_queue(queue).status == 200
    elif what == "clear":
        answer = api.call("DELETE", f"/api/v1/queues/{queue}/clear")
        assert answer.status == 200, answer.raw
    else:
        answer = api.call("DELETE", f"/api/v1/queues/{queue}/clear?partition={quote(first)}")
        assert answer.status == 200, answer.raw
        rest = [one for one in history.messages() if one.partition != first]
        same(read(api, fetch_path(queue))["messages"], rest, "other partitions")
        for name in others:
            path = f"/api/v1/queues/{queue}/clear?partition={quote(name)}"
            assert api.call("DELETE", path).status == 200
    assert set((await rows_left(connection, queue_id)).values()) == {0}
    if what != "delete":
        head = len(history.of(first))
        api.push({"queue": queue, "partition": first, "payload": "new"})
        (message,) = read(api, fetch_path(queue))["messages"]
        assert (message.offset, message.payload) == (head, b'"new"')


# ---- encryption and time ----


async def test_what_is_encrypted_later_is_read_the_same(
    api: Api, history: History, merge: Merge, database: Database, connection: asyncpg.Connection
) -> None:
    path = fetch_path(history.queue)
    before = read(api, path)
    await merge(history.queue)
    api.configure(history.queue, encryptionEnabled=True)
    current = bytes.fromhex(ENCRYPTION_KEY)
    # Then with another key, which this server does not have, and back.
    for keys in ([current], [b"n" * 32, current], [current, b"n" * 32]):
        await reencrypt(database, KeyRing(keys))
    same(read(api, path), before, "encrypted")
    plain = await connection.fetchval(
        "select count(*) from queen.segments where queue_id = $1 and position('parcel' in"
        " encode(body, 'escape')) > 0",
        await id_of(connection, history.queue),
    )
    assert plain == 0
    await merge(history.queue, must=False)
    same(read(api, path), before, "merged again")


async def test_time_passes_for_what_is_merged(
    api: Api, history: History, merge: Merge, connection: asyncpg.Connection
) -> None:
    await merge(history.queue)
    await connection.fetch("select queen.pass_time($1, 5000)", history.queue)
    wanted = [
        one._replace(created_at_us=one.created_at_us - 5_000_000_000) for one in history.messages()
    ]
    same(read(api, fetch_path(history.queue))["messages"], wanted, "5000 seconds later")


# ---- streams of entries ----


async def test_entries_are_those_of_before(
    api: Api,
    queue: str,
    merge: Merge,
    merging_dsn: str,
    start_server: Callable[..., ServerProcess],
    rng: random.Random,
) -> None:
    """The verbs of Redis, on this server and on one that has to read it all anew."""
    added = [add(api, queue, {"n": number, "text": "ü" * rng.randrange(9)}) for number in range(80)]
    api.call("POST", f"/stream/{queue}/group/g", {"startId": "0"})
    some = ids_of(api.call("GET", consumer_path(queue, count=20)).json["messages"])
    assert some == added[:20]
    api.call("POST", f"/stream/{queue}/group/g/ack", {"messageIds": some[:10]})
    api.call("POST", f"/stream/{queue}/delete", {"messageIds": added[30:33]})

    def answers(at: Api) -> list[Any]:
        paths = [
            f"/stream/{queue}/messages?count=1000",
            f"/stream/{queue}/messages?from=({added[5]}&to={added[50]}&count=30",
            f"/stream/{queue}/length",
            f"/stream/{queue}/group/g/pending",
        ]
        found = [at.call("GET", path) for path in paths]
        assert {one.status for one in found} == {200}, [one.raw for one in found]
        return [_without_idle(one.json) for one in found]

    before = answers(api)
    assert len(before[0]["messages"]) == 77
    await merge(queue, must=False)
    same(answers(api), before, "entries")
    later = start_server("--database-url", merging_dsn)
    same(answers(later.api()), before, "entries on another server")
    rest = ids_of(later.api().call("GET", consumer_path(queue, count=1000)).json["messages"])
    assert rest == added[20:30] + added[33:]
    trimmed = api.call("POST", f"/stream/{queue}/trim", {"maxLength": 11}).json
    assert trimmed["count"] == 66
    left = api.call("GET", f"/stream/{queue}/messages?count=1000").json["messages"]
    assert ids_of(left) == added[-11:]
    assert left == before[0]["messages"][-11:]
    await merging.merge_all(merging_dsn)
    more = [add(api, queue, number) for number in range(30)]
    await merging.merge_all(merging_dsn)
    left = api.call("GET", f"/stream/{queue}/messages?count=1000").json["messages"]
    assert ids_of(left) == added[-11:] + more


def _without_idle(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_idle(one) for key, one in value.items() if "idle" not in key.lower()}
    if isinstance(value, list):
        return [_without_idle(one) for one in value]
    return value
