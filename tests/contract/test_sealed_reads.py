"""Whole queues by sealed time: cut, plan, slice, progress."""

from __future__ import annotations

import uuid
from typing import Any

import asyncpg
import pytest

from queen.core.frame import Frame, stored_frames
from tests.api import Api
from tests.conftest import ServerProcess
from tests.contract.conftest import Park
from tests.contract.groupcalls import detail, entries, eventually

ROOT = "/api/v1/fetch"


def cut(api: Api, *queues: str, **more: Any) -> Any:
    answer = api.call("POST", f"{ROOT}/cut", {"queues": list(queues), **more})
    assert answer.status == 200, answer.raw
    return answer.json


def sealed(api: Api, *queues: str, **more: Any) -> int:
    at: int = cut(api, *queues, **more)["sealed"]
    return at


def plan(api: Api, since: dict[str, int], until: int, **more: Any) -> Any:
    sources = [{"queue": queue, "since": at} for queue, at in since.items()]
    body = {"sources": sources, "until": until, **more}
    answer = api.call("POST", f"{ROOT}/plan", body)
    assert answer.status == 200, answer.raw
    return answer.json


def frames(api: Api, part: Any) -> list[Frame]:
    answer = api.call("POST", f"{ROOT}/slice", {"ranges": part["ranges"]})
    assert answer.status == 200, answer.raw
    return list(stored_frames(answer.raw))


def read(api: Api, planned: Any) -> list[bytes]:
    """All payloads of a plan, slice by slice; each slice holds what it was planned to."""
    found = []
    for part in planned["slices"]:
        payloads = [one for frame in frames(api, part) for one in frame.segment().payloads()]
        assert len(payloads) == part["messages"]
        found += payloads
    return found


def progress(api: Api, group: str, done_until: int, moves: int = 0, *queues: str) -> Any:
    sources = [{"queue": queue, "moves": moves} for queue in queues]
    body = {"group": group, "sources": sources, "doneUntil": done_until}
    return api.call("POST", f"{ROOT}/progress", body)


def push(api: Api, queue: str, *payloads: Any, partition: str = "Default") -> None:
    items = [{"queue": queue, "partition": partition, "payload": one} for one in payloads]
    assert api.push(*items).status == 201


# ---- cuts ----


def test_two_cuts_hold_what_was_written_between_them(api: Api, queue: str) -> None:
    push(api, queue, 1)
    first = sealed(api, queue)
    push(api, queue, 2, 3)
    second = sealed(api, queue)
    push(api, queue, 4)
    assert read(api, plan(api, {queue: 0}, first)) == [b"1"]
    assert read(api, plan(api, {queue: first}, second)) == [b"2", b"3"]
    assert read(api, plan(api, {queue: second}, sealed(api, queue))) == [b"4"]


def test_a_cut_is_not_made_while_nothing_was_written(api: Api, queue: str) -> None:
    push(api, queue, 1)
    first = sealed(api, queue)
    assert sealed(api, queue, since=first) == first
    push(api, queue, 2)
    assert sealed(api, queue, since=first) > first


def test_an_instant_that_was_never_sealed_is_not_believed(api: Api, queue: str) -> None:
    push(api, queue, 1)
    future = sealed(api, queue) + 3_600_000_000
    assert sealed(api, queue, since=future) < future


def test_several_queues_are_cut_at_one_instant(api: Api, queue: str) -> None:
    other = f"{queue}-2"
    push(api, queue, 1)
    push(api, other, 2)
    answer = cut(api, other, queue)
    assert [one["queue"] for one in answer["queues"]] == [other, queue]
    assert read(api, plan(api, {queue: 0, other: 0}, answer["sealed"])) == [b"1", b"2"]
    # One of them was written to: both are sealed anew.
    push(api, other, 3)
    assert sealed(api, queue, other, since=answer["sealed"]) > answer["sealed"]


def test_a_cut_says_what_is_there(api: Api, queue: str) -> None:
    api.configure(queue)
    (empty,) = cut(api, queue)["queues"]
    assert (empty["earliest"], empty["goneUntil"], empty["group"]) == (None, None, None)
    before = sealed(api, queue)
    push(api, queue, 1)
    answer = cut(api, queue)
    assert before <= answer["queues"][0]["earliest"] < answer["sealed"]


async def test_an_append_that_is_not_committed_is_waited_for(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    push(api, queue, 1)
    queue_id = await connection.fetchval("select id from queen.queues where name = $1", queue)
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock_shared(7001, $1)", queue_id)
        api.send("POST", f"{ROOT}/cut", f'{{"queues": ["{queue}"]}}')
        assert not api.is_answered(within_s=0.3)
    assert api.receive().status == 200


# ---- plans ----


def test_slices_are_cut_by_bytes_whatever_the_partitions(api: Api, queue: str) -> None:
    items = [
        {"queue": queue, "partition": f"p{n}", "payload": {"n": n, "text": uuid.uuid4().hex * 20}}
        for n in range(400)
    ]
    assert api.push(*items).status == 201
    planned = plan(api, {queue: 0}, sealed(api, queue), slices=4)
    assert planned["messages"] == 400
    sizes = [part["bytes"] for part in planned["slices"]]
    assert len(sizes) == 4
    assert max(sizes) < 1.2 * min(sizes)
    assert len(set(read(api, planned))) == 400


def test_a_slice_is_in_order_of_each_partition(api: Api, queue: str) -> None:
    for round_ in range(5):
        for name in ("a", "b"):
            push(api, queue, [round_, 0], [round_, 1], partition=name)
    planned = plan(api, {queue: 0}, sealed(api, queue), slices=3)
    found: dict[str, list[int]] = {}
    for part in planned["slices"]:
        for frame in frames(api, part):
            found.setdefault(frame.partition, []).append(frame.base_offset)
    assert found == {"a": [0, 2, 4, 6, 8], "b": [0, 2, 4, 6, 8]}


def test_partitions_are_planned_by_offset(api: Api, queue: str) -> None:
    for name in ("a", "b", "c"):
        push(api, queue, *range(10), partition=name)
    until = sealed(api, queue)
    planned = plan(api, {queue: 0}, until, partitions=["a", "c", "none"], slices=2)
    assert planned["messages"] == 20
    assert {frame.partition for part in planned["slices"] for frame in frames(api, part)} == {
        "a",
        "c",
    }
    some = plan(api, {queue: 0}, until, partitions=["b"], fromOffset=3, toOffset=7)
    (part,) = some["slices"]
    assert part["messages"] == 4
    assert (part["ranges"][0]["fromOffset"], part["ranges"][0]["toOffset"]) == (3, 7)
    # Whole segments: the rest is for the reader to leave out.
    (frame,) = frames(api, part)
    assert (frame.base_offset, frame.count) == (0, 10)


def test_partitions_are_planned_by_time(api: Api, queue: str) -> None:
    push(api, queue, 1, partition="a")
    first = sealed(api, queue)
    push(api, queue, 2, partition="a")
    second = sealed(api, queue)
    push(api, queue, 3, partition="a")
    assert read(api, plan(api, {queue: first}, second, partitions=["a"])) == [b"2"]


def test_a_limit_ends_a_plan_earlier_and_the_next_goes_on(api: Api, queue: str) -> None:
    other = f"{queue}-2"
    for n in range(10):
        push(api, queue, *range(n, n + 3))
        push(api, other, *range(n, n + 2))
    until, since = sealed(api, queue, other), 0
    batches = []
    while since < until:
        planned = plan(api, {queue: since, other: since}, until, maxMessages=7)
        batches.append(planned["messages"])
        since = planned["until"]
    assert sum(batches) == 50
    assert max(batches) <= 7
    assert len(batches) <= 13


@pytest.mark.parametrize("partitions", [[], ["a"]])
def test_a_plan_that_ends_earlier_says_what_is_left(
    api: Api, queue: str, partitions: list[str]
) -> None:
    other = f"{queue}-2"
    for n in range(5):
        push(api, queue, *range(n, n + 3), partition="a")
        push(api, other, n, partition="a")
    push(api, queue, 7, partition="b")
    everything, until = 20 if partitions else 21, sealed(api, queue, other)
    since, counted_until, left, size = 0, 0, 0, 0
    while since < until:
        times = {queue: since, other: since}
        answer = plan(
            api, times, until, maxMessages=4, countSince=counted_until, partitions=partitions
        )
        if answer["until"] == until:
            assert "counted" not in answer
            assert left == answer["messages"]
        else:
            left += sum(count["messages"] for count in answer["counted"]) - answer["messages"]
            size += sum(count["bytes"] for count in answer["counted"]) - answer["bytes"]
            assert sum(count["messages"] for count in answer["planned"]) == answer["messages"]
            assert [count["queue"] for count in answer["counted"]] == [queue, other]
            everything -= answer["messages"]
            assert left == everything
            counted_until = until
        since = answer["until"]
    assert size >= left


def test_a_plan_always_holds_the_first_instant(api: Api, queue: str) -> None:
    push(api, queue, *range(100))
    push(api, queue, *range(50))
    until = sealed(api, queue)
    assert plan(api, {queue: 0}, until, maxMessages=1)["messages"] == 100
    assert plan(api, {queue: 0}, until, maxBytes=1)["messages"] == 100
    assert plan(api, {queue: 0}, until, maxBytes=10_000_000)["messages"] == 150


def test_nothing_is_planned_of_nothing(api: Api, queue: str) -> None:
    api.configure(queue)
    until = sealed(api, queue)
    planned = plan(api, {queue: 0}, until, slices=4, maxMessages=5)
    assert planned == {"lost": [], "until": until, "messages": 0, "bytes": 0, "slices": []}


def test_an_encrypted_queue_is_read_as_any_other(api: Api, queue: str) -> None:
    api.configure(queue, encryptionEnabled=True)
    push(api, queue, {"secret": 1})
    assert read(api, plan(api, {queue: 0}, sealed(api, queue))) == [b'{"secret": 1}']


# ---- progress ----


def test_progress_is_the_lag_of_a_group(api: Api, queue: str) -> None:
    for name in ("a", "b"):
        push(api, queue, 1, 2, partition=name)
    until = sealed(api, queue)
    push(api, queue, 3, partition="a")
    assert progress(api, "report", until, 0, queue).status == 200
    lanes = detail(api, "report", queue)
    assert {name: (one["position"], one["offsetLag"]) for name, one in lanes.items()} == {
        "a": (2, 1),
        "b": (2, 0),
    }

    def is_counted() -> bool:
        one = entries(api, queue)["report"]
        counts = (one["totalLag"], one["partitionsWithLag"], one["members"], one["state"])
        return counts == (1, 1, 0, "Stable")

    assert eventually(is_counted)


def test_a_seek_moves_a_group_that_reads_by_time(api: Api, queue: str) -> None:
    push(api, queue, 1)
    middle = sealed(api, queue)
    push(api, queue, 2, 3)
    end = sealed(api, queue)
    progress(api, "report", end, 0, queue)
    path = f"/api/v1/consumer-groups/report/queues/{queue}/seek"
    answer = api.call("POST", path, {"toBeginning": True})
    assert (answer.json["messagesAgain"], answer.json["partitionsUpdated"]) == (3, 1)
    (known,) = cut(api, queue, group="report")["queues"]
    assert known["group"] == {"doneUntil": None, "moves": 1, "paused": False}
    # Whoever has not heard of it does not move it back.
    late = progress(api, "report", end, 0, queue).json
    assert late["queues"][0]["group"] == {"doneUntil": None, "moves": 1, "paused": False}
    heard = progress(api, "report", middle, 1, queue).json
    assert heard["queues"][0]["group"]["doneUntil"] == middle
    assert detail(api, "report", queue)["Default"]["offsetLag"] == 2


def test_one_partition_of_a_group_that_reads_by_time_cannot_be_moved(api: Api, queue: str) -> None:
    push(api, queue, 1)
    progress(api, "report", sealed(api, queue), 0, queue)
    path = f"/api/v1/consumer-groups/report/queues/{queue}/partitions/Default/seek"
    assert api.call("POST", path, {"offset": 0}).status == 409


def test_a_pause_is_seen_by_the_cut(api: Api, queue: str) -> None:
    push(api, queue, 1)
    progress(api, "report", 0, 0, queue)
    assert api.call("POST", "/api/v1/consumer-groups/report/pause").status == 200
    (known,) = cut(api, queue, group="report")["queues"]
    assert known["group"]["paused"]


def test_a_group_is_of_consumers_or_of_a_query(api: Api, queue: str) -> None:
    push(api, queue, 1)
    assert api.messages(queue, consumerGroup="workers")
    refused = progress(api, "workers", 0, 0, queue)
    assert refused.status == 409
    assert "another name" in refused.json["error"]
    progress(api, "report", 0, 0, queue)
    assert api.pop(queue, consumerGroup="report").status == 409


def test_a_deleted_group_is_made_again_where_the_query_is(api: Api, queue: str) -> None:
    push(api, queue, 1)
    until = sealed(api, queue)
    progress(api, "report", 0, 0, queue)
    assert api.call("DELETE", "/api/v1/consumer-groups/report").status == 200
    again = progress(api, "report", until, 5, queue).json
    assert again["queues"][0]["group"] == {"doneUntil": until, "moves": 5, "paused": False}


async def test_retention_respects_progress_and_says_what_is_gone(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, retentionEnabled=True, completedRetentionSeconds=3600)
    push(api, queue, 1)
    middle = sealed(api, queue)
    push(api, queue, 2)
    sealed(api, queue)
    progress(api, "report", middle, 0, queue)
    queue_id = await connection.fetchval("select id from queen.queues where name = $1", queue)
    # What the clean-up does an hour later.
    removed = await connection.fetchval(
        "select messages from"
        " queen.expire_segments($1, clock_timestamp(), '-infinity', '-infinity', 100)",
        queue_id,
    )
    assert removed == 1
    answer = cut(api, queue)
    gone = answer["queues"][0]["goneUntil"]
    assert gone < middle <= answer["queues"][0]["earliest"]
    # Looked for after the plan is made, so that nothing goes unnoticed in between.
    assert plan(api, {queue: gone}, answer["sealed"])["lost"] == [queue]
    assert plan(api, {queue: middle}, answer["sealed"])["lost"] == []
    assert plan(api, {queue: 0}, answer["sealed"])["lost"] == []


# ---- who may, and what is refused ----


def test_a_long_poll_of_a_query_group_is_refused_at_once(api: Api, queue: str, park: Park) -> None:
    push(api, queue, 1)
    progress(api, "report", 0, 0, queue)
    poll = park(api, queue, wait="true", timeout=20000, consumerGroup="report")
    assert poll.answer().status == 409


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("cut", {"queues": []}, "queues"),
        ("cut", {"queues": ["a\u0000"]}, "queue"),
        ("cut", {"queues": ["q"], "since": -1}, "since"),
        ("plan", {"sources": [], "until": 1}, "sources"),
        ("plan", {"sources": [{"queue": "q"}]}, "until"),
        ("plan", {"sources": [{"queue": "q"}], "until": 1, "slices": 0}, "slices"),
        ("plan", {"sources": [{"queue": "q"}], "until": 1, "maxBytes": 2**63}, "maxBytes"),
        ("slice", {"ranges": [{"queue": "q"}]}, "start"),
        ("slice", {"ranges": [{"queue": "q", "partitionId": "x"}]}, "partitionId"),
        ("progress", {"group": "", "sources": [{"queue": "q"}], "doneUntil": 1}, "group"),
    ],
)
def test_bad_input_is_named(api: Api, path: str, body: dict[str, Any], says: str) -> None:
    answer = api.call("POST", f"{ROOT}/{path}", body)
    assert answer.status == 400
    assert says in answer.json["error"]


def test_an_unknown_queue_is_not_found(api: Api, queue: str, server: ServerProcess) -> None:
    for path, body in (
        ("cut", {"queues": [queue]}),
        ("plan", {"sources": [{"queue": queue}], "until": 1}),
        ("progress", {"group": "g", "sources": [{"queue": queue}], "doneUntil": 1}),
    ):
        answer = api.call("POST", f"{ROOT}/{path}", body)
        assert answer.status == 404
        assert queue in answer.json["error"]


def test_a_range_names_the_queue_of_its_partition(api: Api, queue: str) -> None:
    push(api, queue, 1)
    push(api, f"{queue}-2", 1)
    planned = plan(api, {queue: 0}, sealed(api, queue), partitions=["Default"])
    (one,) = planned["slices"][0]["ranges"]
    wrong = {"ranges": [{**one, "queue": f"{queue}-2"}]}
    assert api.call("POST", f"{ROOT}/slice", wrong).status == 404
