"""Transactions: acks and pushes that happen together or not at all."""

from __future__ import annotations

import uuid
from typing import Any

import asyncpg
import pytest

from tests.api import Api, ack_of, push_of
from tests.contract.conftest import Park, stored
from tests.contract.test_ack import dead_letters, let_lapse


def leased(api: Api, queue: str, count: int = 1, **query: Any) -> list[Any]:
    api.push_many(queue, count)
    return api.messages(queue, batch=count, **query)


def test_pushes_and_acks_happen_together(api: Api, queue: str) -> None:
    (message,) = leased(api, queue)
    out = f"{queue}.out"
    answer = api.transaction(
        push_of({"queue": out, "payload": 1, "transactionId": "t"}),
        ack_of(message),
        leases=[message["leaseId"]],
    )
    assert answer.status == 200
    body = answer.json
    assert body["success"] is True
    assert body["transactionId"]
    push, ack = body["results"]
    assert (push["index"], push["type"], push["success"], push["count"]) == (0, "push", True, 1)
    assert (push["transactionId"], push["queueName"]) == ("t", out)
    assert (ack["index"], ack["type"], ack["success"], ack["error"]) == (1, "ack", True, None)
    assert (ack["transactionId"], ack["dlq"]) == (message["transactionId"], False)
    (pushed,) = api.messages(out)
    assert (pushed["id"], pushed["partitionId"]) == (push["messageId"], push["partitionId"])
    assert api.pop(queue).status == 204


def test_several_queues_partitions_and_groups_take_part(api: Api, queue: str) -> None:
    api.push(*[{"queue": queue, "partition": p, "payload": p} for p in ("a", "b")])
    api.push({"queue": f"{queue}.in", "payload": "c"})
    acks = [
        ack_of(one)
        for one in (
            *api.messages(queue, batch=5, partitions=2),
            *api.messages(f"{queue}.in", consumerGroup="g"),
        )
    ]
    answer = api.transaction(
        acks[0],
        push_of(
            *[
                {"queue": f"{queue}.{n % 2}", "partition": f"p{n % 3}", "payload": n}
                for n in range(9)
            ]
        ),
        acks[1],
        push_of({"queue": f"{queue}.0", "partition": "p0", "payload": 9}),
        acks[2],
    )
    assert answer.status == 200, answer.raw
    assert [one["type"] for one in answer.json["results"]] == ["ack", "push", "ack", "push", "ack"]
    assert [one.get("count") for one in answer.json["results"]] == [None, 9, None, 1, None]
    assert [one["data"] for one in api.messages(f"{queue}.0", "p0", batch=9)] == [0, 6, 9]
    assert api.data(f"{queue}.1", "p2", batch=9) == [5]
    assert api.pop(queue).status == api.pop(f"{queue}.in", consumerGroup="g").status == 204


async def test_a_stale_lease_refuses_everything(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    good = leased(api, f"{queue}.good")[0]
    stale = leased(api, queue)[0]
    await let_lapse(connection, stale)
    push = push_of({"queue": f"{queue}.out", "payload": 1})
    answer = api.transaction(ack_of(good), push, ack_of(stale))
    assert answer.status == 409
    assert answer.json["code"] == "lease_lost"
    assert await stored(connection, f"{queue}.out") == 0
    # The good one is still leased and can still be acked.
    assert api.pop(f"{queue}.good").status == 204
    assert api.transaction(ack_of(good), push).status == 200
    assert len(api.messages(queue, "Default")) == 1


async def test_a_message_that_is_not_leased_refuses_everything(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    (message,) = leased(api, queue)
    push = push_of({"queue": f"{queue}.out", "payload": 1})
    for wrong in (
        {"transactionId": "nobody"},
        {"consumerGroup": "other"},
        {"leaseId": str(uuid.uuid4())},
        {"leaseId": "no lease"},
        {"partitionId": "nowhere"},
        {"status": "maybe"},
    ):
        answer = api.transaction(push, ack_of(message, **wrong))
        assert answer.status in (400, 404, 409), wrong
        assert answer.json["error"]
    assert await stored(connection, f"{queue}.out") == 0
    assert api.ack(message).status == 200


def test_a_duplicate_inside_is_told_and_stored_once(api: Api, queue: str) -> None:
    first = api.push({"queue": queue, "payload": 1, "transactionId": "t"}).json[0]
    answer = api.transaction(
        push_of(
            {"queue": queue, "payload": 2, "transactionId": "t"},
            {"queue": queue, "payload": 3, "transactionId": "u"},
            {"queue": queue, "payload": 4, "transactionId": "u"},
        )
    )
    assert answer.status == 200
    items = answer.json["results"][0]["items"]
    assert [one["status"] for one in items] == ["duplicate", "queued", "duplicate"]
    assert items[0]["messageId"] == first["message_id"]
    assert items[1]["messageId"] == items[2]["messageId"]
    assert api.data(queue, batch=10) == [1, 3]


def test_a_duplicate_that_another_server_wrote_is_found(
    api: Api, other_api: Api, queue: str
) -> None:
    api.push({"queue": queue, "payload": 0})
    first = other_api.push({"queue": queue, "payload": 1, "transactionId": "t"}).json[0]
    (message,) = leased(api, f"{queue}.in")
    answer = api.transaction(
        ack_of(message),
        push_of(
            {"queue": queue, "payload": 2, "transactionId": "t"},
            {"queue": queue, "payload": 3, "transactionId": "u"},
        ),
    ).json
    items = answer["results"][1]["items"]
    assert [one["status"] for one in items] == ["duplicate", "queued"]
    assert items[0]["messageId"] == first["message_id"]
    assert api.data(queue, batch=10) == [0, 1, 3]
    assert api.pop(f"{queue}.in").status == 204


def test_a_repeated_transaction_succeeds_and_changes_nothing(
    api: Api, other_api: Api, queue: str
) -> None:
    operations = [
        *[ack_of(one) for one in leased(api, queue, 2)],
        push_of({"queue": f"{queue}.out", "payload": 1, "transactionId": "t"}),
    ]
    first = api.transaction(*operations).json
    for one in (api, other_api):
        again = one.transaction(*operations)
        assert again.status == 200
        assert again.json["success"] is True
        push = again.json["results"][2]
        assert push["messageId"] == first["results"][2]["messageId"]
        assert push["status"] == "duplicate"
    assert api.data(f"{queue}.out", batch=10) == [1]


@pytest.mark.parametrize("in_acks", [True, False], ids=["named in acks", "named once"])
def test_a_repeated_transaction_stores_nothing_again_where_no_ids_are_kept(
    api: Api, other_api: Api, queue: str, in_acks: bool
) -> None:
    out = f"{queue}.out"
    api.configure(out, dedup="off")
    messages = leased(api, queue, 2)
    more: dict[str, Any] = {} if in_acks else {"leaseId": None}
    operations = [
        *[ack_of(one, **more) for one in messages],
        push_of(*[{"queue": out, "payload": n, "transactionId": f"t{n}"} for n in range(2)]),
        push_of({"queue": out, "payload": 2}),
    ]
    leases = [messages[0]["leaseId"]]
    first = api.transaction(*operations, leases=leases).json["results"]
    for one in (api, other_api):
        # Others write there too; what was pushed is found behind them.
        one.push({"queue": out, "payload": "another"})
        again = one.transaction(*operations, leases=leases)
        assert again.status == 200, again.raw
        named, unnamed = again.json["results"][2:]
        assert [item["messageId"] for item in named["items"]] == [
            item["messageId"] for item in first[2]["items"]
        ]
        # Its id was made here, so nobody can say where it is.
        assert (unnamed["count"], unnamed["messageId"]) == (1, None)
        items = [*named["items"], *unnamed["items"]]
        assert [item["status"] for item in items] == ["duplicate"] * 3
        assert {item["partitionId"] for item in items} == {first[3]["partitionId"]}
    assert api.data(out, batch=10) == [0, 1, 2, "another", "another"]


def test_a_repeated_transaction_stores_nothing_again_that_came_without_an_id(
    api: Api, other_api: Api, queue: str
) -> None:
    out = f"{queue}.out"
    (message,) = leased(api, queue)
    named = [{"queue": out, "payload": n, "transactionId": f"t{n}"} for n in range(2)]
    operations = [ack_of(message), push_of(named[0], {"queue": out, "payload": "x"}, named[1])]
    first = api.transaction(*operations).json["results"][1]["items"]
    for one in (api, other_api):
        items = one.transaction(*operations).json["results"][1]["items"]
        assert [item["status"] for item in items] == ["duplicate"] * 3
        assert [item["messageId"] for item in items] == [
            first[0]["messageId"],
            None,
            first[2]["messageId"],
        ]
    assert api.data(out, batch=10) == [0, "x", 1]


@pytest.mark.parametrize("dedup", ["off", "window"])
async def test_a_repeated_transaction_schedules_nothing_again(
    api: Api, queue: str, connection: asyncpg.Connection, dedup: str
) -> None:
    out = f"{queue}.out"
    api.configure(out, dedup=dedup)
    (message,) = leased(api, queue)
    item = {"queue": out, "payload": 1, "delay": 3600}
    if dedup == "off":
        item["transactionId"] = "t"
    for _ in range(3):
        answer = api.transaction(ack_of(message), push_of(item))
        assert answer.json["results"][1]["status"] == "scheduled"
    staged = await connection.fetchval("select count(*) from queen.staged where queue = $1", out)
    assert staged == 1


def test_a_transaction_whose_acks_are_partly_known_is_done(api: Api, queue: str) -> None:
    out = f"{queue}.out"
    api.configure(out, dedup="off")
    first, second = leased(api, queue, 2)
    api.transaction(ack_of(first), push_of({"queue": out, "payload": 1}))
    answer = api.transaction(
        ack_of(first), ack_of(second), push_of({"queue": out, "payload": 2, "transactionId": "t"})
    )
    assert answer.json["results"][2]["status"] == "queued"
    assert api.data(out, batch=10) == [1, 2]


def test_a_transaction_without_acks_cannot_be_known_again(api: Api, queue: str) -> None:
    api.configure(queue, dedup="off")
    for _ in range(2):
        api.transaction(push_of({"queue": queue, "payload": 1, "transactionId": "t"}))
    assert api.data(queue, batch=10) == [1, 1]


@pytest.mark.parametrize("in_acks", [True, False], ids=["named in acks", "named once"])
def test_a_repeated_transaction_with_required_leases_succeeds(
    api: Api, other_api: Api, queue: str, in_acks: bool
) -> None:
    # Published clients always send requiredLeases; the first try has ended them.
    messages = leased(api, queue, 2)
    more: dict[str, Any] = {} if in_acks else {"leaseId": None}
    operations = [
        *[ack_of(one, **more) for one in messages],
        push_of({"queue": f"{queue}.out", "payload": 1, "transactionId": "t"}),
    ]
    for one in (api, api, other_api):
        answer = one.transaction(*operations, leases=[messages[0]["leaseId"]])
        assert answer.status == 200, (one.url, answer.raw)
        assert answer.json["success"] is True
    assert api.data(f"{queue}.out", batch=10) == [1]


def test_a_repeated_transaction_over_a_part_of_a_lease_succeeds(
    api: Api, other_api: Api, queue: str
) -> None:
    first, second = leased(api, queue, 2)
    push = push_of({"queue": f"{queue}.out", "payload": 1, "transactionId": "t"})
    for one in (api, api, other_api):
        assert one.transaction(ack_of(first), push).status == 200, one.url
    assert api.transaction(ack_of(second)).status == 200
    assert api.data(f"{queue}.out", batch=10) == [1]


async def test_what_was_given_back_cannot_be_acked_by_a_transaction(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    # Its effects would be committed, and then it would come again.
    (message,) = leased(api, queue)
    assert api.ack(message, "failed").json["status"] == "failed_retry"
    answer = api.transaction(push_of({"queue": f"{queue}.out", "payload": 1}), ack_of(message))
    assert answer.status == 409
    assert await stored(connection, f"{queue}.out") == 0


def test_a_transaction_works_on_the_server_that_did_not_grant_the_lease(
    api: Api, other_api: Api, queue: str
) -> None:
    messages = leased(api, queue, 3)
    answer = other_api.transaction(
        *[ack_of(one) for one in messages], push_of({"queue": f"{queue}.out", "payload": 1})
    )
    assert answer.status == 200
    assert api.data(f"{queue}.out") == [1]
    assert api.pop(queue, "Default").status == 204


async def test_one_bad_item_refuses_everything(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    (message,) = leased(api, queue)
    good = {"queue": f"{queue}.out", "payload": 1}
    for bad, reason in [
        ({"queue": ""}, "queue name is empty"),
        ({"queue": queue, "partition": "\n"}, "not printable"),
        ({"queue": queue, "transactionId": "t" * 256}, "longer than 255"),
        ({"queue": queue, "traceId": "x"}, "traceId"),
        ({"queue": queue, "payload": "\0"}, "NUL"),
    ]:
        answer = api.transaction(ack_of(message), push_of(good, bad), push_of(good))
        assert answer.status == 400
        assert "item 1" in answer.json["error"]
        assert reason in answer.json["error"]
    assert await stored(connection, f"{queue}.out") == 0
    assert api.ack(message).status == 200


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"operations": []},
        {"operations": None},
        {"operations": [{}]},
        {"operations": [{"type": "dance"}]},
        {"operations": [{"type": "push"}]},
        {"operations": [{"type": "push", "items": 1}]},
        {"operations": [{"type": "push", "items": [{"queue": 1}]}]},
        {"operations": [{"type": "ack", "transactionId": "t"}]},
        {"operations": [{"type": "ack", "partitionId": "p"}]},
        {"operations": [{"type": "push", "items": []}], "requiredLeases": [1]},
    ],
)
def test_a_malformed_transaction_is_refused(api: Api, body: dict[str, Any]) -> None:
    answer = api.call("POST", "/api/v1/transaction", body)
    assert answer.status == 400
    assert answer.json["error"]


async def test_a_required_lease_must_live(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    (message,) = leased(api, queue)
    push = push_of({"queue": f"{queue}.out", "payload": 1})
    assert api.transaction(push, leases=["no lease"]).status == 409
    assert api.transaction(push, leases=[str(uuid.uuid4())]).status == 409
    await let_lapse(connection, message)
    assert api.transaction(push, leases=[message["leaseId"]]).status == 409
    assert await stored(connection, f"{queue}.out") == 0


def test_a_required_lease_that_lives_is_enough(api: Api, queue: str) -> None:
    (message,) = leased(api, queue)
    push = push_of({"queue": f"{queue}.out", "payload": 1})
    assert api.transaction(push, leases=[message["leaseId"]]).status == 200


def test_leases_may_be_named_once_for_all_acks(api: Api, queue: str) -> None:
    # The original's clients name the leases beside the operations, not in them.
    messages = [leased(api, f"{queue}.{n}")[0] for n in range(3)]
    acks = [ack_of(one, leaseId=None) for one in messages]
    answer = api.transaction(*acks, leases=[one["leaseId"] for one in messages])
    assert answer.status == 200, answer.raw
    assert [api.pop(f"{queue}.{n}").status for n in range(3)] == [204] * 3


async def test_a_stale_lease_that_is_named_once_for_all_acks_refuses_everything(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    (stale,) = leased(api, queue)
    await let_lapse(connection, stale)
    (new,) = api.messages(queue, "Default")
    answer = api.transaction(ack_of(stale, leaseId=None), leases=[stale["leaseId"]])
    assert answer.status == 409
    assert api.ack(new).status == 200


async def test_failures_inside_a_transaction_follow_the_same_rules(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryLimit=0)
    messages = leased(api, queue, 3)
    answer = api.transaction(
        ack_of(messages[0], "failed", error="boom"),
        ack_of(messages[1]),
        ack_of(messages[2], "dlq"),
    )
    assert [one["dlq"] for one in answer.json["results"]] == [True, False, True]
    rows = await dead_letters(connection, queue)
    assert [(row["message_offset"], row["error"]) for row in rows] == [
        (0, "boom"),
        (2, "Message processing failed"),
    ]


def test_a_transaction_wakes_who_waits(api: Api, other_api: Api, queue: str, park: Park) -> None:
    (message,) = leased(api, queue)
    out = f"{queue}.out"
    polls = [
        park(api, out, consumerGroup="a"),
        park(other_api, out, consumerGroup="b"),
        park(api, out, "p", consumerGroup="c"),
    ]
    api.transaction(ack_of(message), push_of({"queue": out, "partition": "p", "payload": 1}))
    assert [poll.data() for poll in polls] == [[1]] * 3


def test_ids_and_traces_of_pushes_are_kept(api: Api, queue: str) -> None:
    trace = str(uuid.uuid4())
    api.transaction(
        push_of(
            {"queue": queue, "payload": 1, "transactionId": "a"},
            {"queue": queue, "payload": 2, "transactionId": "b", "traceId": trace},
        )
    )
    messages = api.messages(queue, batch=5)
    assert [(one["transactionId"], one["traceId"]) for one in messages] == [
        ("a", None),
        ("b", trace),
    ]


def test_transactions_that_cross_each_other_all_succeed(
    api: Api, other_api: Api, queue: str
) -> None:
    # Partitions in opposite orders, on two servers, at the same time.
    names = [f"p{n}" for n in range(8)]
    for n in range(20):
        for one, order in ((api, names), (other_api, names[::-1])):
            push = push_of(*[{"queue": queue, "partition": p, "payload": n} for p in order])
            one.send("POST", "/api/v1/transaction", {"operations": [push]})
        assert [one.receive().status for one in (api, other_api)] == [200, 200]
    assert len(api.messages(queue, batch=1000, partitions=8)) == 320


@pytest.mark.parametrize("rider", ["kv", "timers"])
def test_a_condition_that_is_not_known_refuses_all_of_it(api: Api, queue: str, rider: str) -> None:
    """Newer clients send conditions beside the operations; ignored, they would not hold."""
    pushed = push_of({"queue": queue, "payload": 1})
    body = {"operations": [pushed], rider: [{"op": "putIfAbsent", "required": True}]}
    answer = api.call("POST", "/api/v1/transaction", body)
    assert answer.status == 400
    assert rider in answer.json["error"]
    assert api.pop(queue).status == 204
    assert api.call("POST", "/api/v1/transaction", {**body, rider: []}).status == 200


def test_pushed_items_are_answered_in_the_order_in_which_they_came(api: Api, queue: str) -> None:
    partitions = ["a", "c", "b", "c", "a"]
    items = [
        {"queue": queue, "partition": name, "payload": n, "transactionId": f"t{n}"}
        for n, name in enumerate(partitions)
    ]
    items[2]["delay"] = 3600
    answer = api.call(
        "POST", "/api/v1/transaction", {"operations": [{"type": "push", "items": items}]}
    )
    assert answer.status == 200, answer.raw
    (result,) = answer.json["results"]
    assert [one["transactionId"] for one in result["items"]] == ["t0", "t1", "t2", "t3", "t4"]
