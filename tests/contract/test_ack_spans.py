"""Acks by offsets: the same rules as by transaction ids, span by span."""

from __future__ import annotations

import random
import uuid
from typing import Any

import asyncpg
import pytest

from queen.wire.answers import MAX_ACKS
from tests.api import Answer, Api
from tests.contract.leasedcalls import (
    ByIds,
    BySpans,
    Way,
    WithPop,
    ack_spans,
    messages_of,
    pop_frames,
    results,
    span_of,
    taken,
)

STALE = "Invalid or expired lease"


def refused(lost: int, *, ended: bool = True, dead: int = 0) -> dict[str, Any]:
    return {"success": False, "error": STALE, "lost": lost, "dead": dead, "ended": ended}


def pop(api: Api, queue: str, **query: Any) -> list[dict[str, Any]]:
    return messages_of(pop_frames(api, queue, **query))


def offsets(messages: list[dict[str, Any]]) -> list[int]:
    return [message["offset"] for message in messages]


async def let_lapse(connection: asyncpg.Connection, message: dict[str, Any]) -> None:
    ended = await connection.fetchval(
        "update queen.cursors set lease_until = clock_timestamp() where lease_id = $1 returning 1",
        uuid.UUID(message["leaseId"]),
    )
    assert ended == 1


@pytest.fixture(params=["granted here", "granted elsewhere"])
def acker(request: pytest.FixtureRequest, api: Api, other_api: Api) -> Api:
    """The server that granted the leases, and one that has to ask the database for them."""
    return api if request.param == "granted here" else other_api


def test_a_whole_lease(api: Api, acker: Api, queue: str) -> None:
    api.push_many(queue, 5)
    messages = pop(api, queue, batch=3)
    assert results(ack_spans(acker, span_of(messages))) == [taken()]
    assert offsets(pop(api, queue, batch=3, wait="true", timeout=20_000)) == [3, 4]


def test_a_part_leaves_the_lease(api: Api, acker: Api, queue: str) -> None:
    api.push_many(queue, 5)
    messages = pop(api, queue, batch=5)
    assert results(ack_spans(acker, span_of(messages[:2]))) == [taken(ended=False)]
    assert pop(api, queue, batch=5) == []
    assert results(ack_spans(acker, span_of(messages[2:]))) == [taken()]
    assert pop(api, queue, batch=5) == []


def test_out_of_order_and_in_several_runs(api: Api, acker: Api, queue: str) -> None:
    api.push_many(queue, 6)
    messages = pop(api, queue, batch=6)
    span = {**span_of(messages), "done": [[4, 6], [1, 2], [1, 2]]}
    assert results(ack_spans(acker, span)) == [taken(ended=False)]
    span["done"] = [[2, 4], [0, 3], [3, 3]]
    assert results(ack_spans(acker, span)) == [taken()]
    assert pop(api, queue) == []


async def test_only_what_is_not_done_comes_again(
    api: Api, acker: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 4)
    messages = pop(api, queue, batch=4)
    assert results(ack_spans(acker, span_of([messages[0], messages[2]]))) == [taken(ended=False)]
    await let_lapse(connection, messages[0])
    again = pop(api, queue, batch=4, wait="true", timeout=20_000)
    assert [(one["offset"], one["retryCount"]) for one in again] == [(1, 1), (3, 1)]


def test_what_failed_comes_again_alone(api: Api, acker: Api, queue: str) -> None:
    api.configure(queue, retryDelay=0)
    api.push_many(queue, 4)
    messages = pop(api, queue, batch=4)
    span = {**span_of(messages[:2]), "failed": span_of(messages[2:], "failed")["failed"]}
    assert results(ack_spans(acker, span)) == [taken()]
    again = pop(api, queue, batch=4, wait="true", timeout=20_000)
    assert [(one["offset"], one["retryCount"]) for one in again] == [(2, 1), (3, 1)]


def test_a_retry_does_not_count(api: Api, acker: Api, queue: str) -> None:
    api.push_many(queue, 2)
    messages = pop(api, queue, batch=2)
    assert results(ack_spans(acker, span_of(messages, "retry"))) == [taken()]
    again = pop(api, queue, batch=2, wait="true", timeout=20_000)
    assert [(one["offset"], one["retryCount"]) for one in again] == [(0, 0), (1, 0)]


async def test_what_dies_is_kept_with_its_error(
    api: Api, acker: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retryLimit=0, deadLetterQueue=True)
    api.push_many(queue, 4)
    messages = pop(api, queue, batch=4)
    span = span_of(messages[:1])
    span["failed"] = [
        {"offset": 1, "status": "failed", "error": "no\0luck"},
        {"offset": 2, "status": "dlq", "error": "bad"},
        {"offset": 3, "status": "dlq"},
    ]
    assert results(ack_spans(acker, span)) == [taken(dead=3)]
    rows = await connection.fetch(
        """
        select d.transaction_id, d.error from queen.dead_letters d
        join queen.queues q on q.id = d.queue_id where q.name = $1 order by d.message_offset
        """,
        queue,
    )
    assert [tuple(row) for row in rows] == [
        (messages[1]["transactionId"], "no\N{REPLACEMENT CHARACTER}luck"),
        (messages[2]["transactionId"], "bad"),
        (messages[3]["transactionId"], "Message processing failed"),
    ]


def test_a_repeated_ack_is_answered_as_the_first(api: Api, acker: Api, queue: str) -> None:
    api.configure(queue, deadLetterQueue=True)
    api.push_many(queue, 6)
    whole, some = pop(api, queue, batch=3), {"status": "dlq"}
    assert results(ack_spans(api, span_of(whole))) == [taken()]
    assert results(ack_spans(acker, span_of(whole))) == [taken()]
    # Somebody else reads on meanwhile.
    mixed = pop(api, queue, batch=3)
    span = {**span_of(mixed[:2]), "failed": [{"offset": 5, **some}]}
    assert results(ack_spans(acker, span_of(whole))) == [taken()]
    assert results(ack_spans(api, span)) == [taken(dead=1)]
    assert results(ack_spans(acker, span)) == [taken(dead=1)]


def test_a_failure_of_what_is_done_is_too_late(api: Api, acker: Api, queue: str) -> None:
    api.push_many(queue, 2)
    messages = pop(api, queue, batch=2)
    assert results(ack_spans(api, span_of(messages[:1]))) == [taken(ended=False)]
    (late,) = results(ack_spans(acker, span_of(messages[:1], "failed")))
    assert late["error"].startswith("Message is already completed")
    assert (late["success"], late["lost"], late["ended"]) == (False, 0, False)


async def test_a_zombie_is_refused_and_changes_nothing(
    api: Api, acker: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 3)
    zombie = pop(api, queue, batch=3)
    await let_lapse(connection, zombie[0])
    assert results(ack_spans(acker, span_of(zombie))) == [refused(3)]
    heir = pop(api, queue, batch=3, wait="true", timeout=20_000)
    assert results(ack_spans(acker, span_of(zombie))) == [refused(3)]
    assert results(ack_spans(acker, span_of(zombie, "dlq"))) == [refused(3)]
    assert results(ack_spans(acker, span_of(heir))) == [taken()]


def test_offsets_that_are_not_leased_are_never_applied(api: Api, acker: Api, queue: str) -> None:
    api.push_many(queue, 10)
    assert results(ack_spans(api, span_of(pop(api, queue, batch=2)))) == [taken()]
    messages = pop(api, queue, batch=3)
    outside = {**span_of(messages), "done": [[0, 2], [5, 10]]}
    outside["failed"] = [{"offset": 2**61, "status": "dlq"}]
    assert results(ack_spans(acker, outside)) == [refused(8, ended=False)]
    # What is of the lease is taken.
    beyond = {**span_of(messages), "done": [[0, 2**62]]}
    assert results(ack_spans(acker, beyond)) == [refused(2**62 - 3)]
    assert offsets(pop(api, queue, batch=10, wait="true", timeout=20_000)) == [5, 6, 7, 8, 9]


def test_what_was_hidden_needs_no_ack(api: Api, acker: Api, queue: str) -> None:
    api.push_many(queue, 5)
    shown = api.messages(queue, consumerGroup="look", batch=5)
    for one in (shown[0], shown[3]):
        path = f"/api/v1/messages/{one['partitionId']}/{one['transactionId']}"
        assert api.call("DELETE", path).status == 200
    messages = pop(api, queue, consumerGroup="g", batch=5)
    assert offsets(messages) == [1, 2, 4]
    first = span_of(messages[1:])
    assert results(ack_spans(acker, first, group="g")) == [taken(ended=False)]
    assert results(ack_spans(acker, span_of(messages[:1]), group="g")) == [taken()]


def test_a_tail_alone_does_not_end_a_lease(api: Api, acker: Api, queue: str) -> None:
    api.push_many(queue, 4)
    messages = pop(api, queue, batch=4)
    assert results(ack_spans(acker, span_of(messages[2:]))) == [taken(ended=False)]
    assert results(ack_spans(acker, span_of(messages[:2]))) == [taken()]


def test_each_span_is_answered_by_itself(api: Api, acker: Api, queue: str) -> None:
    for name in "ab":
        api.push_many(queue, 2, name)
    first, second = pop(api, queue, batch=2), pop(api, queue, batch=2)
    good, other = span_of(first), span_of(second)
    spans = [
        {**good, "leaseId": str(uuid.uuid4())},
        {**good, "leaseId": "x"},
        {**good, "partitionId": "0fffffff-ffff-8fff-bfff-ffffffffffff"},
        {**good, "partitionId": "p"},
        {**good, "done": [[0, 1], [3, 2]]},
        {**good, "done": [[-1, 2]]},
        {**good, "done": [[0, 2**62 + 1]]},
        {**good, "done": [], "failed": [{"offset": 0, "status": "completed"}]},
        {**good, "done": [], "failed": [{"offset": -1, "status": "dlq"}]},
        {**good, "done": [[0, 2]], "failed": [{"offset": 1, "status": "dlq"}]},
        {**good, "done": [], "failed": [{"offset": 1, "status": s} for s in ("dlq", "retry")]},
        {**good, "leaseId": other["leaseId"]},
        good,
        other,
        {**good, "done": []},
    ]
    answers = results(ack_spans(acker, *spans))
    missing = "Message not found: no such partition"
    twice = "the request says something else of it, too"
    assert [one["error"] for one in answers] == [
        STALE,
        STALE,
        missing,
        missing,
        "done[1]: [3, 2) is no run of offsets",
        "done[0]: [-1, 2) is no run of offsets",
        f"done[0]: [0, {2**62 + 1}) is no run of offsets",
        "failed[0]: status 'completed' is not known: failed, retry, dlq",
        "failed[0]: -1 is no offset",
        f"failed[0]: {twice}",
        f"failed[1]: {twice}",
        STALE,
        None,
        None,
        None,
    ]
    assert [one["success"] for one in answers] == [False] * 12 + [True] * 3
    assert pop(api, queue, batch=2) == []


@pytest.mark.parametrize(
    ("span", "place"),
    [
        ({"leaseId": "x"}, "partitionId"),
        ({"partitionId": "x"}, "leaseId"),
        ({"partitionId": "x", "leaseId": "x", "done": [[1]]}, "$.spans[1].done[0]"),
        ({"partitionId": "x", "leaseId": "x", "done": [["a", 2]]}, "$.spans[1].done[0][0]"),
        ({"partitionId": "x", "leaseId": "x", "failed": [{"offset": 1}]}, "$.spans[1].failed[0]"),
    ],
)
def test_what_is_no_span_is_named(api: Api, span: dict[str, Any], place: str) -> None:
    answer = ack_spans(api, {"partitionId": "x", "leaseId": "x"}, span)
    assert answer.status == 400
    assert place in answer.json["error"]


def test_a_request_names_only_so_much(api: Api) -> None:
    span = {"partitionId": "x", "leaseId": "x"}
    assert results(ack_spans(api)) == []
    assert ack_spans(api, {**span, "done": [[0, 1]] * (MAX_ACKS - 1)}).status == 200
    assert ack_spans(api, {**span, "done": [[0, 1]] * MAX_ACKS}).status == 400
    failed = [{"offset": 0, "status": "dlq"}] * MAX_ACKS
    assert ack_spans(api, {**span, "failed": failed}).status == 400
    assert ack_spans(api, *[span] * (MAX_ACKS + 1)).status == 400


def test_the_lease_of_another_group_does_not_count(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    messages = pop(api, queue, consumerGroup="a", batch=2)
    assert offsets(pop(api, queue, consumerGroup="b", batch=2)) == [0, 1]
    for group in ("b", None, "unknown"):
        (result,) = results(ack_spans(api, span_of(messages), group=group))
        assert (result["success"], result["error"]) == (False, STALE)
    assert results(ack_spans(api, span_of(messages), group="a")) == [taken()]


# ---- both languages for one lease ----


def completed(answer: Answer) -> list[bool]:
    assert answer.status == 200, answer.raw
    return [one["success"] for one in answer.json["results"]]


def test_a_framed_lease_is_acked_by_ids(api: Api, acker: Api, queue: str) -> None:
    api.push_many(queue, 5)
    messages = pop(api, queue, batch=5)
    assert acker.ack(messages[0]).json["success"]
    assert results(ack_spans(acker, span_of(messages[1:2]))) == [taken(ended=False)]
    assert completed(acker.ack_batch(messages[2:])) == [True] * 3
    # Repeated in the other language.
    assert results(ack_spans(acker, span_of(messages))) == [taken()]
    assert completed(acker.ack_batch(messages)) == [True] * 5


def test_a_lease_in_json_is_acked_by_offsets(api: Api, acker: Api, queue: str) -> None:
    api.push_many(queue, 4)
    messages = api.messages(queue, batch=2)
    assert results(ack_spans(acker, span_of(messages))) == [taken()]
    messages = api.messages(queue, batch=2, wait="true", timeout=20_000)
    assert completed(acker.ack_batch(messages[:1])) == [True]
    assert results(ack_spans(acker, span_of(messages[1:]))) == [taken()]
    assert completed(acker.ack_batch(messages)) == [True, True]


def test_a_framed_lease_is_prolonged_and_used_in_a_transaction(api: Api, queue: str) -> None:
    api.push_many(queue, 2)
    (first, second) = pop(api, queue, batch=2)
    assert api.extend(first["leaseId"], {"seconds": 600}).json["extended"]
    operations = [
        {"type": "ack", **{key: one[key] for key in ("transactionId", "partitionId", "leaseId")}}
        for one in (first, second)
    ]
    push = {"type": "push", "items": [{"queue": f"{queue}-out", "payload": 1}]}
    assert api.transaction(*operations, push).json["success"]
    assert results(ack_spans(api, span_of([first, second]))) == [taken()]


# ---- one model, three ways to say it ----


class Consumers:
    """Two groups that are told the same, each in its language, and must stand the same."""

    def __init__(self, servers: list[Api], queue: str, connection: asyncpg.Connection) -> None:
        self.servers = servers
        self.queue = queue
        self.connection = connection
        self.ways: dict[str, Way] = {
            "by-ids": ByIds(),
            "by-spans": BySpans(),
            "with-pop": WithPop(),
        }
        self.held: dict[str, list[dict[str, Any]]] = {way: [] for way in self.ways}

    def pop(self, server: Api, batch: int) -> None:
        for group, way in self.ways.items():
            # A partition that is named is asked for in the database.
            messages = way.pop(server, self.queue, "p", consumerGroup=group, batch=batch)
            self.held[group] = messages or self.held[group]
        self.compare_held()

    def compare_held(self) -> None:
        first, *others = (
            [(one["offset"], one["retryCount"], one["transactionId"]) for one in held]
            for held in self.held.values()
        )
        assert others == [first] * 2

    def settle(self, server: Api, chosen: list[int], statuses: list[str]) -> None:
        outcomes = []
        for group, way in self.ways.items():
            held = self.held[group]
            messages = [one for one in held if one["offset"] in chosen]
            outcomes.append(way.settle(server, group, messages, statuses[: len(messages)]))
        assert outcomes == outcomes[:1] * 3

    async def lapse(self) -> None:
        await self.connection.execute(
            """
            update queen.cursors c set lease_until = clock_timestamp()
            from queen.groups g join queen.queues q on q.id = g.queue_id
            where g.id = c.group_id and q.name = $1 and c.lease_id is not null
            """,
            self.queue,
        )

    async def compare_cursors(self) -> None:
        rows = await self.connection.fetch(
            """
            select c.committed, c.batch_start, c.batch_end, c.attempts, c.acked, c.failed,
                   c.failures, c.lease_id is null, length(c.receipts)
            from queen.cursors c join queen.groups g on g.id = c.group_id
            join queen.queues q on q.id = g.queue_id where q.name = $1 order by g.name
            """,
            self.queue,
        )
        assert len({tuple(row) for row in rows}) <= 1, rows

    async def letters(self) -> None:
        rows = await self.connection.fetch(
            """
            select g.name, d.message_offset, d.attempts, d.error from queen.dead_letters d
            join queen.groups g on g.id = d.group_id
            join queen.queues q on q.id = g.queue_id where q.name = $1 order by 2
            """,
            self.queue,
        )
        letters = {group: [row for row in rows if row[0] == group] for group in self.ways}
        first, *others = ([tuple(row)[1:] for row in some] for some in letters.values())
        assert others == [first] * 2


@pytest.mark.parametrize("seed", range(3))
async def test_groups_that_are_told_the_same_stand_the_same(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection, seed: int
) -> None:
    chance = random.Random(seed)
    api.configure(queue, retryDelay=0, retryLimit=2, deadLetterQueue=True)
    consumers = Consumers([api, other_api], queue, connection)
    for _ in range(40):
        server = chance.choice(consumers.servers)
        step = chance.choices(["push", "pop", "settle", "lapse"], [2, 4, 5, 1])[0]
        if step == "push":
            api.push_many(queue, chance.randint(1, 5), "p")
        elif step == "pop":
            consumers.pop(server, chance.randint(1, 8))
        elif step == "lapse":
            await consumers.lapse()
        elif consumers.held["by-ids"]:
            offered = offsets(consumers.held["by-ids"])
            chosen = chance.sample(offered, chance.randint(1, len(offered)))
            words = ["completed", "completed", "completed", "failed", "retry", "dlq"]
            consumers.settle(server, chosen, chance.choices(words, k=len(chosen)))
        await consumers.compare_cursors()
    await consumers.letters()
