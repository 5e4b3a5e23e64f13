"""What the published streaming SDK asks of a server: queries, cycles and their state."""

from __future__ import annotations

import time
import uuid
from typing import Any

import asyncpg
import pytest

from queen.core.cipher import KeyRing, key_name
from queen.storage.database import Database
from tests.api import Api
from tests.conftest import ENCRYPTION_KEY
from tests.contract.conftest import stored
from tests.contract.querycalls import QueryCalls, ack, delete, upsert, window
from tests.contract.test_ack import dead_letters, let_lapse
from tests.contract.test_options import reencrypt

_KEY = "tumb:1\x1f1970-01-01T00:00:00.000Z\x1fk"
_STALE = "Invalid or expired lease"


@pytest.fixture
def query(api: Api, queue: str) -> QueryCalls:
    api.configure(queue, leaseTime=60)
    return QueryCalls(api, queue)


def _kept(query: QueryCalls, count: int = 5, key: str = _KEY) -> str:
    """Leave the state of a window behind that is over, and nothing to read."""
    (message,) = query.leased()
    done = query.cycle(
        message["partitionId"], state_ops=[upsert(key, window(count))], ack=ack(message)
    )
    assert done["success"] is True, done
    partition_id: str = message["partitionId"]
    return partition_id


def _ripe(query: QueryCalls, partition_id: str, **more: Any) -> dict[str, Any]:
    now_ms = int(time.time() * 1000)
    return query.values(
        partition_id, **{"ripe_at_or_before": now_ms, "key_prefix": "tumb:1", **more}
    )


# ---- queries ----


def test_a_query_is_known_by_its_name_and_source(query: QueryCalls) -> None:
    again = query.register()
    assert again.status == 200
    assert again.json == {
        "success": True,
        "query_id": query.id,
        "name": query.name,
        "config_hash": "h1",
        "fresh": False,
        "reset": False,
    }
    other = QueryCalls(query.api, f"{query.queue}.other", query.name)
    assert other.id != query.id


def test_a_changed_definition_is_a_conflict(query: QueryCalls) -> None:
    partition_id = _kept(query)
    refused = query.register("h2")
    assert refused.status == 409
    body = refused.json
    assert (body["success"], body["query_id"], body["name"]) == (False, query.id, query.name)
    assert body["error"].startswith("config_hash mismatch: ")
    assert query.values(partition_id) == {_KEY: window(5)}
    assert query.register("h1", reset=True).json["reset"] is False


def test_a_reset_drops_the_state_and_its_old_runners(query: QueryCalls) -> None:
    partition_id = _kept(query)
    (held,) = query.leased()
    reset = query.register("h2", reset=True).json
    assert (reset["fresh"], reset["reset"], reset["config_hash"]) == (False, True, "h2")
    late = query.cycle(partition_id, state_ops=[upsert("k", 1)], ack=ack(held))
    assert late["success"] is False
    assert "Query not found" in late["error"]
    query.id = reset["query_id"]
    assert query.values(partition_id) == {}


@pytest.mark.parametrize("missing", ["name", "source_queue", "config_hash"])
def test_a_query_needs_name_source_and_hash(api: Api, queue: str, missing: str) -> None:
    body = {"name": "n", "source_queue": queue, "config_hash": "h", missing: ""}
    for sent in (body, {**body, missing: None}):
        answer = api.call("POST", "/streams/v1/queries", sent)
        assert (answer.status, answer.json["error"]) == (400, f"{missing} is required")


@pytest.mark.parametrize("field", ["name", "source_queue", "sink_queue", "config_hash"])
def test_names_of_a_query_must_be_good(api: Api, queue: str, field: str) -> None:
    body = {"name": "n", "source_queue": queue, "config_hash": "h", field: "a\nb"}
    answer = api.call("POST", "/streams/v1/queries", body)
    assert answer.status == 400
    assert field in answer.json["error"]


# ---- cycles ----


def test_a_cycle_does_everything_at_once(query: QueryCalls) -> None:
    messages = query.leased(3)
    partition_id = messages[-1]["partitionId"]
    done = query.cycle(
        partition_id,
        state_ops=[upsert("a", {"n": 1}), upsert("b", [2]), upsert("a", {"n": 3}), delete("c")],
        push_items=query.pushed({"r": 1}, {"r": 2}),
        ack=ack(messages[-1], 3),
    )
    assert done["success"] is True
    assert (done["query_id"], done["partition_id"]) == (query.id, partition_id)
    assert (done["queueName"], done["state_ops_applied"]) == (query.queue, 4)
    assert done["ack_result"] == {
        "success": True,
        "count": 3,
        "lease_released": True,
        "dlq": False,
    }
    assert [one["status"] for one in done["push_results"]] == ["queued", "queued"]
    assert not {"error", "skipped", "repeated"} & done.keys()
    assert query.values(partition_id) == {"a": {"n": 3}, "b": [2]}
    pushed = query.api.messages(query.sink, "p", batch=9)
    assert [one["data"] for one in pushed] == [{"r": 1}, {"r": 2}]
    assert [one["id"] for one in pushed] == [one["message_id"] for one in done["push_results"]]
    assert query.again() == []


async def test_a_lost_lease_refuses_everything(
    query: QueryCalls, connection: asyncpg.Connection
) -> None:
    (message,) = query.leased()
    await let_lapse(connection, message)
    wanted: dict[str, Any] = {
        "state_ops": [upsert("a", 1)],
        "push_items": query.pushed({"r": 1}),
    }
    refused = query.cycle(message["partitionId"], ack=ack(message), **wanted)
    assert (refused["success"], refused["error"]) == (False, _STALE)
    assert (refused["state_ops_applied"], refused["push_results"]) == (0, [])
    assert refused["ack_result"] is None
    assert query.values(message["partitionId"]) == {}
    assert await stored(connection, query.sink) == 0
    (again,) = query.again(partition="Default")
    assert query.cycle(again["partitionId"], ack=ack(again), **wanted)["success"] is True
    zombie = query.cycle(message["partitionId"], ack=ack(message), **wanted)
    assert (zombie["success"], zombie["error"]) == (False, _STALE)
    assert await stored(connection, query.sink) == 1


async def test_a_result_that_cannot_be_taken_refuses_everything(
    query: QueryCalls, connection: asyncpg.Connection
) -> None:
    (message,) = query.leased()
    items = [*query.pushed({"r": 1}), {"queue": "", "payload": 2}]
    refused = query.cycle(
        message["partitionId"], state_ops=[upsert("a", 1)], push_items=items, ack=ack(message)
    )
    assert refused["success"] is False
    assert refused["error"].startswith("item 1: queue name is empty")
    assert query.values(message["partitionId"]) == {}
    assert await stored(connection, query.sink) == 0
    assert query.cycle(message["partitionId"], ack=ack(message))["success"] is True


async def test_a_repeated_cycle_is_done_once(
    query: QueryCalls, other_api: Api, connection: asyncpg.Connection
) -> None:
    query.api.configure(query.sink, dedup="off")
    first, last = query.leased(2)
    wanted: dict[str, Any] = {
        "state_ops": [upsert("a", 1)],
        "push_items": query.pushed({"r": 1}),
        "ack": ack(last, 2),
    }
    done = query.cycle(first["partitionId"], **wanted)
    (later,) = query.leased()
    assert query.cycle(first["partitionId"], state_ops=[upsert("a", 2)], ack=ack(later))["success"]
    for api in (query.api, other_api):
        query.api = api
        again = query.cycle(first["partitionId"], **wanted)
        assert (again["success"], again["repeated"]) == (True, True)
        assert again["ack_result"] == done["ack_result"]
        assert again["state_ops_applied"] == done["state_ops_applied"]
        sent = [one["transaction_id"] for one in done["push_results"]]
        assert [one["transaction_id"] for one in again["push_results"]] == sent
    assert query.values(first["partitionId"]) == {"a": 2}
    assert await stored(connection, query.sink) == 1


def test_a_repeated_cycle_names_the_same_results(query: QueryCalls) -> None:
    (message,) = query.leased()
    wanted: dict[str, Any] = {"push_items": query.pushed(1, 2), "ack": ack(message)}
    done = query.cycle(message["partitionId"], **wanted)
    again = query.cycle(message["partitionId"], **wanted)
    assert [one["status"] for one in again["push_results"]] == ["duplicate", "duplicate"]
    named = [(one["transaction_id"], one["message_id"]) for one in again["push_results"]]
    assert named == [(o["transaction_id"], o["message_id"]) for o in done["push_results"]]


def test_what_is_read_again_on_purpose_has_results_again(query: QueryCalls) -> None:
    (message,) = query.leased()
    query.cycle(message["partitionId"], push_items=query.pushed(1), ack=ack(message))
    path = f"/api/v1/consumer-groups/{query.group}/queues/{query.queue}/seek"
    assert query.api.call("POST", path, {"timestamp": "2020-01-01T00:00:00Z"}).status == 200
    (again,) = query.again()
    assert again["transactionId"] == message["transactionId"]
    query.cycle(again["partitionId"], push_items=query.pushed(1), ack=ack(again))
    assert query.results() == [1, 1]


def test_a_cycle_may_keep_the_lease(query: QueryCalls) -> None:
    messages = query.leased(5)
    partition_id = messages[0]["partitionId"]
    part = query.cycle(partition_id, ack=ack(messages[1], 2), release_lease=False)
    assert part["ack_result"] == {
        "success": True,
        "count": 2,
        "lease_released": False,
        "dlq": False,
    }
    assert query.again() == []
    wanted = {"ack": ack(messages[2], 3), "release_lease": False, "state_ops": [upsert("a", 1)]}
    assert "repeated" not in query.cycle(partition_id, **wanted)
    repeated = query.cycle(partition_id, **wanted)
    assert (repeated["repeated"], repeated["ack_result"]["lease_released"]) == (True, False)
    rest = query.cycle(partition_id, ack=ack(messages[3], 4))
    assert rest["ack_result"]["lease_released"] is True
    # The last one was given back with the lease, and nothing is held against it.
    (last,) = query.again()
    assert (last["transactionId"], last["retryCount"]) == (messages[4]["transactionId"], 0)
    again = query.cycle(partition_id, ack=ack(messages[3], 4))
    assert (again["success"], again["repeated"]) == (True, True)
    assert query.cycle(partition_id, ack=ack(last))["success"] is True


@pytest.mark.parametrize("status", ["failed", "dlq"])
async def test_a_failed_cycle_sets_its_message_aside(
    query: QueryCalls, connection: asyncpg.Connection, status: str
) -> None:
    messages = query.leased(3)
    done = query.cycle(
        messages[0]["partitionId"],
        state_ops=[upsert("a", 1)],
        ack=ack(messages[1], 2, status, error="bad" if status == "dlq" else None),
        release_lease=False,
    )
    assert done["ack_result"] == {"success": True, "count": 2, "lease_released": True, "dlq": True}
    (letter,) = await dead_letters(connection, query.queue)
    assert letter["transaction_id"] == messages[1]["transactionId"]
    assert letter["error"] == ("bad" if status == "dlq" else "Streaming cycle reported failure")
    assert letter["group"] == query.group
    assert query.values(messages[0]["partitionId"]) == {"a": 1}
    assert [one["transactionId"] for one in query.again()] == [messages[2]["transactionId"]]


def test_equal_ids_in_one_lease_are_told_apart_by_the_count(query: QueryCalls) -> None:
    query.api.configure(query.queue, leaseTime=60, dedup="off")
    items = [{"queue": query.queue, "transactionId": t, "payload": t} for t in "aba"]
    assert query.api.push(*items).status == 201
    messages = query.again(batch=9)
    query.cycle(messages[0]["partitionId"], ack=ack(messages[0], 1))
    rest = query.again(batch=9)
    assert [one["data"] for one in rest] == ["b", "a"]
    query.cycle(rest[0]["partitionId"], ack=ack(rest[1], 2))
    assert query.again() == []


def test_every_refusal_says_why(query: QueryCalls) -> None:
    (message,) = query.leased()
    partition_id = message["partitionId"]
    unknown = str(uuid.uuid4())
    good = ack(message)
    for more, error in (
        ({"query_id": None}, "query_id is required"),
        ({"query_id": ""}, "query_id is required"),
        ({"query_id": unknown}, "Query not found, or it does not read this partition"),
        ({"query_id": "x"}, "Query not found, or it does not read this partition"),
        ({"partition_id": None}, "partition_id is required"),
        ({"partition_id": unknown}, "Partition not found"),
        ({"state_ops": [{"type": "add", "key": "a"}]}, "Unknown state_op type: add"),
        ({"state_ops": [{"type": "upsert"}]}, "state_ops[0]: key is required"),
        ({"state_ops": [delete("a\0")]}, "state_ops[0]: key has a NUL character"),
        ({"state_ops": [delete("k" * 2001)]}, "state_ops[0]: key is longer than 2000 bytes"),
        ({"state_ops": [upsert("a", "\0")]}, "state_ops[0]: payload has a NUL character or a"),
        ({"ack": {**good, "status": "maybe"}}, "Unknown ack.status: maybe"),
        ({"ack": {**good, "transactionId": None}}, "ack.transactionId is required"),
        ({"ack": {**good, "transactionId": "other"}}, "Message not found"),
        ({"ack": {**good, "leaseId": unknown}}, _STALE),
        ({"ack": {**good, "leaseId": None}}, _STALE),
        ({"ack": {**good, "leaseId": "x"}}, _STALE),
        ({"ack": good, "consumer_group": "stranger"}, _STALE),
        ({"ack": good, "consumer_group": "a\nb"}, "consumer group name has a character"),
    ):
        body: dict[str, Any] = {"ack": good, "state_ops": [upsert("a", 1)], **more}
        refused = query.cycle(body.pop("partition_id", partition_id), **body)
        assert refused["success"] is False, more
        assert refused["error"].startswith(error), refused
    other = QueryCalls(query.api, f"{query.queue}.other")
    assert other.cycle(partition_id)["error"].startswith("Query not found")
    assert query.values(partition_id) == {}
    assert query.cycle(partition_id, ack=good)["success"] is True


def test_a_body_that_is_no_cycle_is_a_bad_request(api: Api) -> None:
    for path in ("queries", "cycle", "state/get"):
        for body in ("", "[]", "{", '{"query_id": 7, "name": 7}'):
            assert api.call("POST", f"/streams/v1/{path}", body).status == 400


async def test_results_for_an_encrypted_queue_and_state_of_one_are_encrypted(
    query: QueryCalls, connection: asyncpg.Connection
) -> None:
    for name in (query.queue, query.sink):
        query.api.configure(name, leaseTime=60, encryptionEnabled=True)
    (message,) = query.leased()
    query.cycle(
        message["partitionId"],
        state_ops=[upsert("a", {"secret": "plain-text"})],
        push_items=query.pushed({"secret": "plain-text"}),
        ack=ack(message),
    )
    assert query.values(message["partitionId"]) == {"a": {"secret": "plain-text"}}
    values = await connection.fetch(
        "select s.value from queen.query_state s where s.query_id = $1", uuid.UUID(query.id)
    )
    bodies = await connection.fetch(
        """select s.body from queen.segments s join queen.queues q on q.id = s.queue_id
           where q.name = $1""",
        query.sink,
    )
    assert len(values) == len(bodies) == 1
    assert all(b"plain-text" not in row[0] for row in (*values, *bodies))
    assert query.results() == [{"secret": "plain-text"}]


async def test_state_follows_the_keys_of_its_queue(
    query: QueryCalls, database: Database, connection: asyncpg.Connection
) -> None:
    partition_id = _kept(query)
    query.api.configure(query.queue, leaseTime=60, encryptionEnabled=True)
    current = bytes.fromhex(ENCRYPTION_KEY)
    for keys in ([current], [b"n" * 32, current]):
        await reencrypt(database, KeyRing(keys))
        value = await connection.fetchval(
            "select value from queen.query_state where query_id = $1", uuid.UUID(query.id)
        )
        assert key_name(value) == KeyRing(keys).current
    await reencrypt(database, KeyRing([current, b"n" * 32]))
    assert query.values(partition_id) == {_KEY: window(5)}


# ---- state ----


def test_state_is_read_by_key_prefix_and_ripeness(query: QueryCalls) -> None:
    (message,) = query.leased()
    partition_id = message["partitionId"]
    ops = [upsert(key, window(n, n * 1000)) for n, key in enumerate(("t:b", "t:a", "u:c"))]
    ops += [upsert("t:later", window(9, 2**42)), upsert("t:none", {"windowEnd": "soon"})]
    query.cycle(partition_id, state_ops=[*ops, upsert("t:list", [1])], ack=ack(message))
    found = query.state(partition_id)
    assert found["success"] is True
    keys = [row["key"] for row in found["rows"]]
    assert keys == ["t:a", "t:b", "t:later", "t:list", "t:none", "u:c"]
    assert all(row["updated_at"].endswith("Z") for row in found["rows"])
    assert query.values(partition_id, keys=["t:list", "nope"]) == {"t:list": [1]}
    assert sorted(query.values(partition_id, key_prefix="u")) == ["u:c"]
    ripe = {"key_prefix": "t:", "ripe_at_or_before": 2000}
    assert sorted(query.values(partition_id, **ripe)) == ["t:a", "t:b"]
    assert sorted(query.values(partition_id, **{**ripe, "ripe_at_or_before": 1999})) == ["t:b"]


def test_state_belongs_to_a_query_and_a_partition(query: QueryCalls) -> None:
    partition_id = _kept(query)
    other = QueryCalls(query.api, query.queue, "other")
    assert other.values(partition_id) == {}
    (elsewhere,) = query.leased(partition="p2")
    assert query.values(elsewhere["partitionId"]) == {}


def test_a_read_that_is_refused_says_why(query: QueryCalls) -> None:
    partition_id = _kept(query)
    for more, error in (
        ({"query_id": None}, "query_id is required"),
        ({"query_id": str(uuid.uuid4())}, "Query not found, or it does not read this partition"),
        ({"partition_id": ""}, "partition_id is required"),
        ({"partition_id": str(uuid.uuid4())}, "Partition not found"),
        ({"keys": ["\0"]}, "key has a NUL character"),
        ({"key_prefix": "\0"}, "key has a NUL character"),
    ):
        body: dict[str, Any] = dict(more)
        found = query.state(body.pop("partition_id", partition_id), **body)
        assert (found["success"], found["error"]) == (False, error)


async def test_state_goes_with_its_queue(query: QueryCalls, connection: asyncpg.Connection) -> None:
    _kept(query)
    assert query.api.delete_queue(query.queue).status == 200
    for table in ("query_state", "query_lanes"):
        sql = f"select count(*) from queen.{table} where query_id = $1"
        assert await connection.fetchval(sql, uuid.UUID(query.id)) == 0
    # Its runners go on when the queue comes back.
    query.api.configure(query.queue, leaseTime=60)
    assert query.values(_kept(query)) == {_KEY: window(5)}


async def test_state_goes_with_an_idle_partition(
    query: QueryCalls, connection: asyncpg.Connection
) -> None:
    (message,) = query.leased(partition="idle")
    query.cycle(message["partitionId"], state_ops=[upsert("a", 1)], ack=ack(message))
    places = await connection.fetch(
        "select partition_id from queen.query_state where query_id = $1", uuid.UUID(query.id)
    )
    (place,) = [row["partition_id"] for row in places]
    async with connection.transaction():
        await connection.execute("delete from queen.segments where partition_id = $1", place)
        await connection.execute("update queen.partitions set tail = head where id = $1", place)
        await connection.execute(
            "select * from queen.drop_idle_partitions($1, clock_timestamp(), 1)", place - 1
        )
        assert not await connection.fetch(
            "select 1 from queen.query_state where query_id = $1", uuid.UUID(query.id)
        )


# ---- flushes: cycles without an ack ----


def test_a_flush_closes_a_window_once(query: QueryCalls) -> None:
    partition_id = _kept(query)
    assert _ripe(query, partition_id) == {_KEY: window(5)}
    flush: dict[str, Any] = {
        "state_ops": [delete(_KEY)],
        "push_items": query.pushed({"n": 5}),
        "ack": None,
    }
    done = query.cycle(partition_id, **flush)
    assert (done["success"], done["state_ops_applied"], done["ack_result"]) == (True, 1, None)
    # The answer was lost, or another runner has seen the same window.
    again = query.cycle(partition_id, **flush)
    assert (again["success"], again["state_ops_applied"], again["push_results"]) == (True, 0, [])
    assert again["skipped"] == "the state was changed or removed since it was read"
    assert query.results() == [{"n": 5}]


def test_a_window_is_not_ripe_while_something_is_unread(query: QueryCalls) -> None:
    partition_id = _kept(query)
    query.api.push_many(query.queue, 1)
    assert _ripe(query, partition_id) == {}
    (message,) = query.again()
    assert _ripe(query, partition_id) == {}
    assert query.cycle(partition_id, ack=ack(message))["success"] is True
    assert _ripe(query, partition_id) == {_KEY: window(5)}


def test_a_window_is_not_ripe_before_its_end_on_the_servers_clock(query: QueryCalls) -> None:
    (message,) = query.leased()
    partition_id = message["partitionId"]
    soon = window(1, int(time.time() * 1000) + 60_000)
    query.cycle(partition_id, state_ops=[upsert(_KEY, soon)], ack=ack(message))
    assert _ripe(query, partition_id, ripe_at_or_before=2**42) == {}


def test_a_flush_waits_while_something_is_unread(query: QueryCalls) -> None:
    partition_id = _kept(query)
    assert _ripe(query, partition_id)
    flush: dict[str, Any] = {"state_ops": [delete(_KEY)], "push_items": query.pushed({"n": 5})}
    query.api.push_many(query.queue, 1)
    unread = query.cycle(partition_id, **flush)
    (message,) = query.again()
    for held in (unread, query.cycle(partition_id, **flush)):
        assert (held["success"], held["push_results"]) == (True, [])
        assert held["skipped"] == "the group has not done everything in the partition"
    # The holder closes the window itself, with what it has read.
    assert query.values(partition_id) == {_KEY: window(5)}
    query.cycle(partition_id, ack=ack(message), **flush)
    assert query.cycle(partition_id, **flush)["push_results"] == []
    assert query.results() == [{"n": 5}]


def test_a_late_flush_does_not_overwrite_what_came_since(query: QueryCalls) -> None:
    key = "sess:1\x1fopen\x1fk"
    partition_id = _kept(query, 1, key)
    # A timer reads the session, and its runner is stopped before it can close it.
    assert query.values(partition_id) == {key: window(1)}
    (message,) = query.leased()
    query.cycle(
        partition_id,
        state_ops=[upsert(key, window(2))],
        push_items=query.pushed({"n": 1}),
        ack=ack(message),
    )
    zombie = query.cycle(partition_id, state_ops=[delete(key)], push_items=query.pushed({"n": 1}))
    assert zombie["skipped"] == "the state was changed or removed since it was read"
    assert query.values(partition_id) == {key: window(2)}
    done = query.cycle(partition_id, state_ops=[delete(key)], push_items=query.pushed({"n": 2}))
    assert "skipped" not in done
    assert query.results() == [{"n": 1}, {"n": 2}]


def test_what_nobody_was_shown_is_not_closed(query: QueryCalls) -> None:
    partition_id = _kept(query)
    assert "skipped" in query.cycle(partition_id, state_ops=[delete(_KEY)])
    query.api.push_many(query.queue, 1)
    # Shown to a holder, or while something is unread, it is not for a timer.
    assert query.values(partition_id) == {_KEY: window(5)}
    assert "skipped" in query.cycle(partition_id, state_ops=[delete(_KEY)])


# ---- gates ----

_MORTAL = {"leaseTime": 60, "retryLimit": 1, "deadLetterQueue": True, "dlqAfterMaxRetries": True}


async def test_a_gate_that_lets_nothing_through_loses_nothing(
    query: QueryCalls, connection: asyncpg.Connection
) -> None:
    query.api.configure(query.queue, **_MORTAL)
    query.api.push_many(query.queue, 2)
    for _ in range(5):
        messages = query.again(partition="Default", batch=2)
        assert len(messages) == 2
        query.values(messages[0]["partitionId"])
        await let_lapse(connection, messages[0])
    assert await dead_letters(connection, query.queue) == []


async def test_a_windowed_query_that_never_comes_back_gives_a_message_up(
    query: QueryCalls, connection: asyncpg.Connection
) -> None:
    query.api.configure(query.queue, **_MORTAL)
    partition_id = _kept(query)
    poison, good = query.api.push_many(query.queue, 2)
    for _ in range(5):
        messages = query.again(partition="Default", wait="true", timeout=5000)
        if messages[0]["transactionId"] == good:
            break
        query.values(partition_id)
        await let_lapse(connection, messages[0])
    (letter,) = await dead_letters(connection, query.queue)
    assert letter["transaction_id"] == poison
