"""Sinks: staged by many, published by one, once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import asyncpg
import pytest

from queen.core.frame import CODEC_ENCRYPTED, CODEC_RAW, Frame, encode_body, pack_frame, segment_of
from queen.service.broker import Broker
from queen.service.sinks.sinks import JOB
from tests.api import Api
from tests.conftest import ServerProcess
from tests.contract.conftest import Park, stored
from tests.contract.sinkcalls import Sink, frame


@pytest.fixture
def sink(api: Api) -> Sink:
    opened = Sink(api)
    assert opened.open().status == 200
    return opened


def numbers(api: Api, queue: str, partition: str = "p") -> list[int]:
    """Return what a partition holds, and see that its offsets are dense."""
    found, offset = [], 0
    for one in api.frames(queue, partition):
        assert one.base_offset == offset
        offset += one.count
        found += [json.loads(payload)["n"] for payload in one.segment().payloads()]
    return found


async def staged_rows(connection: asyncpg.Connection, query: str) -> int:
    count: int = await connection.fetchval(
        """
        select count(*) from queen.sink_parts p
        left join queen.sink_pieces c on c.part_id = p.id
        left join queen.segments s on s.partition_id = -p.id where p.query = $1
        """,
        query,
    )
    return count


# ---- publishing ----


def test_what_is_staged_is_seen_by_nobody_until_it_is_committed(
    api: Api, sink: Sink, queue: str
) -> None:
    assert sink.stage(frame(queue, range(3))).json == {"messages": 3}
    assert api.frames(queue) == [] and api.messages(queue) == []
    answer = sink.commit((0, 3))
    assert (answer.status, answer.json["status"]) == (200, "committed")
    assert answer.json == {"status": "committed", "batch": 0, "messages": 3, "duplicates": 0}
    assert [one["data"]["n"] for one in api.messages(queue, batch=10)] == [0, 1, 2]


def test_a_batch_that_is_committed_again_is_there_once(api: Api, sink: Sink, queue: str) -> None:
    sink.stage(frame(queue, range(3)))
    sink.commit((0, 3))
    again = sink.commit((0, 3))
    assert again.json == {"status": "already", "batch": 0, "messages": 3, "duplicates": 0}
    # A new run of the query stages the batch once more, with other ids and other rows.
    later = Sink(api, sink.query)
    assert later.open().json == {"query": sink.query, "epoch": 2, "lastBatch": 0}
    later.stage(frame(queue, range(7), prefix="other"))
    assert later.commit((0, 7)).json["status"] == "already"
    assert numbers(api, queue) == [0, 1, 2]


def test_a_batch_before_the_last_one_is_published_already(api: Api, sink: Sink, queue: str) -> None:
    sink.stage(frame(queue, range(1)), batch=5)
    sink.commit((0, 1), batch=5)
    sink.stage(frame(queue, range(9)), batch=4)
    assert sink.commit((0, 9), batch=4).json["status"] == "already"
    assert numbers(api, queue) == [0]


def test_an_older_run_is_fenced(api: Api, sink: Sink, queue: str) -> None:
    sink.stage(frame(queue, range(3)))
    later = Sink(api, sink.query)
    later.open()
    assert later.epoch == sink.epoch + 1
    for answer in (
        sink.commit((0, 3)),
        sink.stage(frame(queue, range(3)), batch=1),
        sink.abort((0, 3)),
        Sink(api, sink.query, sink.run).open(),
    ):
        assert (answer.status, answer.json["code"]) == (409, "conflict")
        assert "another run" in answer.json["error"]
    assert later.open().json["epoch"] == later.epoch
    assert api.fetch(queue).raw == b""


def test_only_the_named_attempts_are_published(api: Api, sink: Sink, queue: str) -> None:
    sink.stage(frame(queue, range(100, 103)), attempt=0)
    sink.stage(frame(queue, range(3)), attempt=1)
    sink.stage(frame(queue, range(3, 5)), task=1, attempt=2)
    assert sink.commit((1, 2, 2), (0, 3, 1)).json["messages"] == 5
    assert numbers(api, queue) == [0, 1, 2, 3, 4]


def test_a_partition_has_its_messages_in_the_order_of_tasks_and_parts(
    api: Api, sink: Sink, queue: str
) -> None:
    api.push({"queue": queue, "partition": "p", "payload": {"n": -1}})
    sink.stage(frame(queue, range(6, 8)), task=1, part=0)
    sink.stage(frame(queue, range(4, 6)), task=0, part=1)
    sink.stage(frame(queue, range(2)), frame(queue, range(2, 4)), task=0, part=0)
    sink.stage(frame(queue, range(3), "other"), task=2)
    assert sink.commit((0, 6), (1, 2), (2, 3)).status == 200
    assert numbers(api, queue) == [-1, *range(8)]
    assert numbers(api, queue, "other") == [0, 1, 2]
    api.push({"queue": queue, "partition": "p", "payload": {"n": 8}})
    assert numbers(api, queue)[-2:] == [7, 8]


def test_a_part_that_is_sent_twice_counts_once(api: Api, sink: Sink, queue: str) -> None:
    for _ in range(2):
        assert sink.stage(frame(queue, range(3)), part=0).json == {"messages": 3}
    sink.stage(frame(queue, range(3, 5)), part=1)
    assert sink.commit((0, 5)).json["messages"] == 5
    assert numbers(api, queue) == list(range(5))


@pytest.mark.parametrize("named", [2, 4])
def test_a_stage_that_does_not_hold_what_it_should_is_not_published(
    api: Api, sink: Sink, queue: str, named: int
) -> None:
    sink.stage(frame(queue, range(3)))
    answer = sink.commit((0, named))
    assert answer.status == 409
    assert f"task 0 has 3 staged messages, not {named}" in answer.json["error"]
    assert sink.commit((0, 3)).json["status"] == "committed"


def test_an_empty_batch_is_recorded(api: Api, sink: Sink) -> None:
    assert sink.commit().json["status"] == "committed"
    assert sink.commit().json["status"] == "already"


async def test_an_abort_drops_stages_and_nothing_else(
    api: Api, sink: Sink, queue: str, connection: asyncpg.Connection
) -> None:
    sink.stage(frame(queue, range(3)))
    sink.commit((0, 3))
    assert sink.abort((0, 3)).json == {"parts": 0}
    assert numbers(api, queue) == [0, 1, 2]
    sink.stage(frame(queue, range(3)), batch=1)
    assert sink.abort((0, 3), batch=1).json == {"parts": 1}
    assert await staged_rows(connection, sink.query) == 0
    assert sink.commit((0, 3), batch=1).status == 409


def test_two_queues_appear_together(api: Api, sink: Sink, queue: str) -> None:
    sink.stage(frame(queue, range(3)), frame(f"{queue}-b", range(2)))
    sink.commit((0, 5))
    assert numbers(api, queue) == [0, 1, 2]
    assert numbers(api, f"{queue}-b") == [0, 1]


def test_consumers_that_wait_are_woken(
    api: Api, other_api: Api, sink: Sink, queue: str, park: Park
) -> None:
    api.configure(queue)
    polls = [park(api, queue, "p", consumerGroup="a"), park(other_api, queue, "p")]
    sink.stage(frame(queue, range(2)))
    sink.commit((0, 2))
    for poll in polls:
        assert [one["n"] for one in poll.data()] == [0]


# ---- as every append ----


@pytest.mark.parametrize("dedup", ["window", "forever"])
def test_what_is_stored_already_is_not_stored_again(
    api: Api, other_api: Api, sink: Sink, queue: str, dedup: str
) -> None:
    api.configure(queue, dedup=dedup)
    item = {"queue": queue, "partition": "p"}
    api.push({**item, "transactionId": "t1", "payload": {"n": -1}})
    # This server does not know yet what the other one wrote.
    other_api.push({**item, "transactionId": "t3", "payload": {"n": -3}})
    sink.stage(frame(queue, range(3)), frame(queue, range(2, 5)))
    answer = sink.commit((0, 6))
    assert (answer.json["messages"], answer.json["duplicates"]) == (3, 3)
    assert numbers(api, queue) == [-1, -3, 0, 2, 4]
    # And what the sink wrote is known to those who push.
    for one in (api, other_api):
        (result,) = one.push({**item, "transactionId": "t4", "payload": {"n": 99}}).json
        assert result["status"] == "duplicate"
    assert numbers(api, queue) == [-1, -3, 0, 2, 4]


def test_a_batch_of_nothing_new_is_recorded(api: Api, sink: Sink, queue: str) -> None:
    api.push_frames(frame(queue, range(3)))
    sink.stage(frame(queue, range(3)))
    assert sink.commit((0, 3)).json["duplicates"] == 3
    assert sink.commit((0, 3)).json["status"] == "already"
    assert numbers(api, queue) == [0, 1, 2]


def test_ids_that_are_said_to_be_new_are_not_compared(api: Api, sink: Sink, queue: str) -> None:
    api.push_frames(frame(queue, range(2)))
    sink.stage(frame(queue, range(2)), unique="true")
    assert sink.commit((0, 2)).json["duplicates"] == 0
    assert numbers(api, queue) == [0, 1, 0, 1]


def test_chosen_ids_and_made_ones_go_together(api: Api, sink: Sink, queue: str) -> None:
    """As when a column of transaction ids is null here and there."""
    api.push_frames(frame(queue, range(1)))
    sink.stage(frame(queue, range(10, 13)), part=0, unique="true")
    sink.stage(frame(queue, range(3)), part=1)
    sink.stage(frame(queue, range(3, 5)), part=2)
    assert sink.commit((0, 8)).json["duplicates"] == 1
    assert numbers(api, queue) == [0, 10, 11, 12, 1, 2, 3, 4]
    (message,) = api.messages(queue, "p", consumerGroup="by-id")
    assert api.ack(message).status == 200


def test_a_queue_without_dedup_takes_everything(api: Api, sink: Sink, queue: str) -> None:
    api.configure(queue, dedup="off")
    api.push_frames(frame(queue, range(2)))
    sink.stage(frame(queue, range(2)), frame(queue, range(2)))
    assert sink.commit((0, 4)).json["duplicates"] == 0
    assert numbers(api, queue) == [0, 1] * 3


async def test_an_encrypted_queue_has_no_plain_text_at_any_time(
    api: Api, sink: Sink, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue, encryptionEnabled=True)
    sink.stage(frame(queue, range(4)))
    codecs = "select distinct codec from queen.segments s where partition_id "
    staged = "in (select -p.id from queen.sink_parts p where p.query = $1)"
    assert await connection.fetchval(codecs + staged, sink.query) == CODEC_ENCRYPTED
    # One of them is stored already, so the segment is written anew.
    api.push({"queue": queue, "partition": "p", "transactionId": "t2", "payload": {"n": -2}})
    sink.commit((0, 4))
    kept = "> 0 and queue_id in (select id from queen.queues where name = $1)"
    assert [row[0] for row in await connection.fetch(codecs + kept, queue)] == [CODEC_ENCRYPTED]
    assert numbers(api, queue) == [-2, 0, 1, 3]


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_queue_that_is_deleted_meanwhile_is_made_anew(
    api: Api, other_api: Api, sink: Sink, queue: str, encrypted: bool
) -> None:
    api.configure(queue, encryptionEnabled=encrypted)
    sink.stage(frame(queue, range(3)))
    other_api.delete_queue(queue)
    other_api.configure(queue, encryptionEnabled=encrypted)
    assert sink.commit((0, 3)).json["status"] == "committed"
    assert numbers(api, queue) == [0, 1, 2]


def test_a_full_queue_takes_nothing_of_the_batch(api: Api, sink: Sink, queue: str) -> None:
    api.configure(queue, maxSize=4)
    api.push({"queue": queue, "partition": "p", "payload": {"n": 7}})
    sink.stage(frame(queue, range(4)), frame(f"{queue}-b", range(2)))
    answer = sink.commit((0, 6))
    assert (answer.status, answer.json["code"], answer.json["left"]) == (429, "queue_full", 3)
    assert numbers(api, queue) == [7] and api.frames(f"{queue}-b") == []
    (message,) = api.messages(queue)
    api.ack(message)
    assert sink.commit((0, 6)).json["status"] == "committed"
    assert numbers(api, queue) == [7, 0, 1, 2, 3]


def test_maintenance_holds_sinks_back(own_server: ServerProcess, queue: str) -> None:
    api = own_server.api()
    sink = Sink(api)
    sink.open()
    sink.stage(frame(queue, range(3)))
    api.call("POST", "/api/v1/system/maintenance", {"enabled": True})
    for answer in (sink.commit((0, 3)), sink.stage(frame(queue, range(3)), batch=1)):
        assert (answer.status, answer.json["code"]) == (503, "maintenance")
    api.call("POST", "/api/v1/system/maintenance", {"enabled": False})
    assert sink.commit((0, 3)).json["status"] == "committed"


# ---- what is refused ----


def test_a_bad_message_is_named_and_nothing_of_its_request_is_staged(
    api: Api, sink: Sink, queue: str
) -> None:
    sink.stage(frame(queue, range(2)), part=0)
    body = encode_body(segment_of([b"a", b"b"], [b"{}", b'{"n":']))
    bad = pack_frame(Frame(queue, "p", 2, CODEC_RAW, len(body), body))
    answer = sink.stage(frame(queue, range(5)), bad, part=1)
    assert (answer.status, answer.json["code"]) == (400, "invalid_frame")
    assert "frame 1: message 1: payload is not valid JSON" in answer.json["error"]
    assert sink.commit((0, 2)).json["messages"] == 2


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "run"),
        ({"run": ""}, "run"),
        ({"run": "a\nb"}, "run"),
        ({"run": 7}, "run"),
        ({"run": "r", "once": "x"}, "once"),
    ],
)
def test_a_run_needs_a_name(api: Api, body: dict[str, Any], named: str) -> None:
    answer = Sink(api).call("open", body)
    assert answer.status == 400 and named in answer.json["error"]


@pytest.mark.parametrize("field", ["batch", "task", "attempt", "part", "epoch"])
def test_a_number_that_is_none_is_named(sink: Sink, queue: str, field: str) -> None:
    for value in ("x", "-1", str(2**80)):
        wrong: dict[str, Any] = {field: value}
        answer = sink.stage(frame(queue, range(1)), **wrong)
        assert answer.status == 400 and field in answer.json["error"]


def test_a_query_that_was_never_opened_is_not_found(api: Api, queue: str) -> None:
    unopened = Sink(api)
    for answer in (unopened.stage(frame(queue, range(1))), unopened.commit(), unopened.abort()):
        assert (answer.status, answer.json["code"]) == (404, "not_found")


def test_a_task_is_named_once(sink: Sink) -> None:
    answer = sink.commit((0, 1, 0), (0, 1, 1))
    assert answer.status == 400 and "twice" in answer.json["error"]


# ---- at the same time ----


def test_of_many_commits_at_once_one_publishes(
    api: Api, other_api: Api, sink: Sink, queue: str
) -> None:
    sink.stage(*(frame(queue, range(100), f"p{n}") for n in range(20)))
    told: list[str] = []

    def commit(through: Api) -> None:
        with closing(through.twin()) as connected:
            own = Sink(connected, sink.query, sink.run)
            told.append(own.commit((0, 2000)).json["status"])

    threads = [threading.Thread(target=commit, args=(one,)) for one in (api, other_api) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["already"] * 5 + ["committed"]
    assert all(numbers(api, queue, f"p{n}") == list(range(100)) for n in range(20))


def test_pushes_and_commits_to_the_same_partitions_keep_offsets_dense(
    api: Api, other_api: Api, queue: str
) -> None:
    lanes = [f"p{n}" for n in range(8)]

    def publish(through: Api, name: str) -> None:
        own = Sink(through)
        own.open()
        for batch in range(10):
            frames = [frame(queue, range(20), one, f"{name}-{batch}-") for one in lanes]
            own.stage(*frames, batch=batch)
            assert own.commit((0, 160), batch=batch).json["messages"] == 160

    def push(own: Api, name: str) -> None:
        for turn in range(40):
            frames = [frame(queue, range(5), one, f"{name}-{turn}-") for one in reversed(lanes)]
            assert own.push_frames(b"".join(frames)).status == 201

    work: list[tuple[Callable[[Api, str], None], Api]] = [
        (publish, api),
        (publish, other_api),
        (push, api),
        (push, other_api),
    ]
    failed: list[BaseException] = []

    def run(one: Callable[[Api, str], None], through: Api, name: str) -> None:
        try:
            with closing(through.twin()) as own:
                one(own, name)
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=run, args=(one, through, str(n)))
        for n, (one, through) in enumerate(work)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for lane in lanes:
        assert len(numbers(api, queue, lane)) == 2 * 200 + 2 * 200


# ---- what nobody wants ----


async def test_what_nobody_will_publish_is_removed(
    api: Api, queue: str, dsn: str, connection: asyncpg.Connection
) -> None:
    over, old, done, live = (Sink(api) for _ in range(4))
    for one in (over, old, done, live):
        one.open()
        one.stage(frame(queue, range(3)))
    Sink(api, over.query).open()
    await connection.execute(
        "update queen.sink_parts set staged_at = staged_at - interval '25 hours' where query = $1",
        old.query,
    )
    done.stage(frame(queue, range(3)), attempt=1)
    done.commit((0, 3))
    broker = await Broker.start(dsn)
    try:
        async with asyncio.timeout(20):
            while await staged_rows(connection, done.query):
                await broker.jobs.run_once(JOB)
        for one, rows in ((over, 0), (old, 0), (done, 0), (live, 1)):
            assert await staged_rows(connection, one.query) == rows
        assert await stored(connection, queue) == 3
    finally:
        await broker.stop()


async def test_a_query_that_publishes_once_is_forgotten_after_a_week(
    api: Api, dsn: str, connection: asyncpg.Connection
) -> None:
    once, kept = Sink(api), Sink(api)
    once.open(once=True)
    kept.open()
    await connection.execute(
        "update queen.sinks set used_at = used_at - interval '8 days' where query = any ($1)",
        [once.query, kept.query],
    )
    broker = await Broker.start(dsn)
    try:
        async with asyncio.timeout(20):
            while await connection.fetch("select from queen.sinks where query = $1", once.query):
                await broker.jobs.run_once(JOB)
    finally:
        await broker.stop()
    assert once.commit().status == 404
    assert kept.commit().json["status"] == "committed"


@pytest.mark.parametrize("count", [1, 32, 33, 9000])
async def test_hashes_that_both_have_are_found_whichever_side_is_short(
    connection: asyncpg.Connection, count: int
) -> None:
    many = bytes(range(256)) * 300 + b"the last"
    share = "select queen.share_a_hash($1, $2)"
    for hashes, shared in (
        (b"no hash." * count, False),
        (b"no hash." * (count - 1) + b"the last", True),
    ):
        assert await connection.fetchval(share, hashes, many) is shared
        assert await connection.fetchval(share, many, hashes) is shared
    assert await connection.fetchval(share, None, many) is False
