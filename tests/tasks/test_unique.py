"""Unique jobs: of a key, one at a time is scheduled, waiting or running."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import asyncpg
import pytest

from queen import Message, Queen
from queen.errors import BadRequest, JobFailed
from queen.testing import Clock
from tests.api import Api
from tests.conftest import ServerProcess
from tests.long import IS_LONG
from tests.tasks.working import working
from tests.waiting import until_async


async def push(queen: Queen, queue: str, key: str, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await queen.post("/api/v1/jobs", {"queue": queue, "key": key, **more})
    return answer


async def stored(connection: asyncpg.Connection, queue: str) -> int:
    rows: int = await connection.fetchval(
        """
        select coalesce(sum(p.head), 0)::integer from queen.partitions p
        join queen.queues q on q.id = p.queue_id where q.name = $1
        """,
        queue,
    )
    return rows


async def test_of_a_key_one_job_at_a_time_waits_or_runs(queen: Queen, queue: str) -> None:
    go_on = asyncio.Event()

    @queen.queue(queue).task(key=lambda month: f"report-{month}")
    async def report(month: int) -> int:
        await go_on.wait()
        return month

    first, again, other = [await report.delay(month) for month in (1, 1, 2)]
    assert (first.existed, again.existed, other.existed) == (False, True, False)
    assert again.id == first.id != other.id
    assert again.partition == first.partition
    async with working(queen):
        await until_async(lambda: has_state(first, "running"))
        assert (await report.delay(1)).id == first.id
        go_on.set()
        assert await again.result(30) == 1
        fresh = await report.delay(1)
        assert (fresh.existed, fresh.id == first.id) == (False, False)
        assert await fresh.result(30) == 1


async def has_state(job: Any, wanted: str) -> bool:
    return bool((await job.status()).state == wanted)


async def test_a_key_is_free_however_its_job_has_ended(
    queen: Queen, queue: str, clock: Clock
) -> None:
    """Given up, taken back, acked by a plain consumer, lost with a group's leases, or cleared."""
    await queen.queue(queue).config(retry_limit=0).create()
    task = queen.queue(queue).task(name="boom", key="k")(lambda: 1 / 0)
    async with working(queen):
        with pytest.raises(JobFailed, match="ZeroDivisionError"):
            await (await task.delay()).result(30)
    ahead = await task.after(600)
    assert not ahead.existed
    assert (await task.delay()).id == ahead.id
    assert await ahead.cancel()
    plain = await task.delay()
    assert not plain.existed
    (message,) = await queen.queue(queue).group("workers").pop(wait_s=10)
    assert message.transaction_id == plain.id
    assert (await task.delay()).existed
    await message.ack()
    given_up = await task.delay()
    assert not given_up.existed
    (message,) = await queen.queue(queue).group("workers").pop(wait_s=10)
    await message.dead_letter("enough")
    cleared = await task.delay()
    assert not cleared.existed
    await queen.request("DELETE", f"/api/v1/queues/{queue}/clear")
    assert not (await task.delay()).existed


async def test_a_key_may_be_kept_for_a_time(queen: Queen, queue: str, clock: Clock) -> None:
    task = queen.queue(queue).task(name="t", key="k", unique_for_s=3600)(lambda: 1)
    async with working(queen):
        first = await task.delay()
        assert await first.result(30) == 1
        assert (await task.delay()).id == first.id
        await clock.advance(3601, queue=queue)
        second = await task.delay()
        assert not second.existed
        assert await second.result(30) == 1


async def test_the_same_push_sent_again_is_the_same_job(
    queen: Queen, queue: str, connection: asyncpg.Connection
) -> None:
    """Its answer was lost: it is not another job, nor one that existed."""
    answers = [await push(queen, queue, "k", transactionId="a@3") for _ in range(3)]
    assert [answer["existed"] for answer in answers] == [False] * 3
    assert {answer["partition"] for answer in answers} == {"3"}
    assert await stored(connection, queue) == 1


@pytest.mark.parametrize("scheduled", [False, True])
async def test_of_many_who_push_a_key_at_once_on_two_servers_one_does(
    queen: Queen,
    other_queen: Queen,
    queue: str,
    connection: asyncpg.Connection,
    scheduled: bool,
) -> None:
    more = {"delay": 600} if scheduled else {}
    for key in ("a", "b", "c"):
        pushing = [push(client, queue, key, **more) for client in (queen, other_queen) * 10]
        answers = await asyncio.gather(*pushing)
        assert Counter(answer["existed"] for answer in answers) == {False: 1, True: 19}
        assert len({answer["transactionId"] for answer in answers}) == 1
    counted = await connection.fetchval("select count(*) from queen.staged where queue = $1", queue)
    assert (await stored(connection, queue), counted) == ((0, 3) if scheduled else (3, 0))


async def test_no_two_jobs_of_a_key_overlap_whatever_races(
    queen: Queen, other_queen: Queen, queue: str
) -> None:
    """Pushes on two servers, jobs that end and fail meanwhile, and a watch over every overlap."""
    await queen.queue(queue).config(retry_limit=1, retry_delay=1).create()
    open_jobs: dict[str, set[str]] = {}
    seen: set[str] = set()
    overlaps: list[tuple[str, set[str]]] = []
    turn = random.Random(20)

    async def work(key: str, job_id: str) -> None:
        # Every job that was pushed is open until it has ended.
        seen.add(job_id)
        if turn.random() < 0.2:
            raise ValueError(key)

    async def produce(client: Queen, name: str, rounds: int) -> None:
        for number in range(rounds):
            key, job_id = turn.choice("abc"), f"{name}-{number}@{turn.randrange(4)}"
            before = set(open_jobs.get(key, ()))
            payload = {"task": "t", "arguments": {"key": key, "job_id": job_id}, "key": key}
            answer = await push(client, queue, key, transactionId=job_id, payload=payload)
            if answer["existed"]:
                continue
            open_jobs.setdefault(key, set()).add(job_id)
            # It was taken, so all that had this key before have ended.
            states = [(await queen.queue(queue).job(other).status()).state for other in before]
            if {"scheduled", "waiting", "running"} & set(states):
                overlaps.append((key, before))

    queen.queue(queue).task(name="t")(work)
    rounds = 200 if IS_LONG else 25
    async with working(queen, concurrency=4):
        clients = (queen, other_queen)
        producing = [produce(clients[n % 2], f"p{n}", rounds) for n in range(6)]
        await asyncio.gather(*producing)
        pushed = {job_id for ids in open_jobs.values() for job_id in ids}
        await until_async(lambda: all_ended(queen, queue, pushed))
    assert overlaps == []
    assert seen == pushed
    assert len(pushed) > 3


async def all_ended(queen: Queen, queue: str, ids: set[str]) -> bool:
    for job_id in ids:
        if not (await queen.queue(queue).job(job_id).status()).has_ended:
            return False
    return True


async def test_keys_that_were_not_given_back_are_forgotten(
    queen: Queen, queue: str, clock: Clock, connection: asyncpg.Connection
) -> None:
    """A plain consumer acks without giving a key back. Its row does not stay for ever."""
    await push(queen, queue, "done")
    (message,) = await queen.queue(queue).group("workers").pop(wait_s=10)
    await message.ack()
    await push(queen, queue, "open")
    keys = "select key from queen.job_keys where queue = $1 order by key"
    assert [row["key"] for row in await connection.fetch(keys, queue)] == ["done", "open"]
    await clock.advance(601, queue=queue)

    async def is_forgotten() -> bool:
        return [row["key"] for row in await connection.fetch(keys, queue)] == ["open"]

    await until_async(is_forgotten)


async def test_odd_keys_are_taken_or_refused_with_a_reason(queen: Queen, queue: str) -> None:
    for key in ("", "x" * 256, "a\x00b"):
        with pytest.raises(BadRequest, match="key"):
            await push(queen, queue, key)
    for more in ({"holdS": -1}, {"holdS": 1e12}, {"consumerGroup": ""}, {"delay": -1}):
        with pytest.raises(BadRequest):
            await push(queen, queue, "k", **more)
    for key in (" ", "ключ", "a/b?c#d", "x" * 255, "%00", "'; drop table"):
        answer = await push(queen, queue, key)
        assert not answer["existed"]
        assert (await push(queen, queue, key))["transactionId"] == answer["transactionId"]


async def test_a_job_has_headers_and_the_trace_of_its_request(
    other_server: ServerProcess, queen: Queen, queue: str
) -> None:
    own, other = (f"00-{digit * 32}-{digit * 16}-01" for digit in "ab")
    api = Api(other_server.url)

    def push_traced(key: str, headers: dict[str, Any] | None, **more: Any) -> int:
        job = {"queue": queue, "key": key, "partition": "0", "headers": headers, **more}
        return api.call("POST", "/api/v1/jobs", job, {"traceparent": other}).status

    assert push_traced("1", None) == 201
    assert push_traced("2", {"source": "shop"}) == 201
    assert push_traced("3", {"traceparent": own}) == 201
    assert push_traced("4", {"source": "later"}, delay=0.01) == 201
    for wrong in ({"": "x"}, {"x": 7}, {"x": "y" * 9000}):
        assert push_traced("5", wrong) == 400
    api.close()
    popped: list[dict[str, str]] = []
    while len(popped) < 4:
        for message in await queen.queue(queue).pop(wait_s=20):
            popped.append(dict(message.headers))
            await message.ack()
    assert popped == [
        {"traceparent": other},
        {"source": "shop", "traceparent": other},
        {"traceparent": own},
        {"source": "later", "traceparent": other},
    ]


async def test_a_key_counts_within_its_queue(queen: Queen, queue: str) -> None:
    assert not (await push(queen, queue, "k"))["existed"]
    assert not (await push(queen, f"{queue}-2", "k"))["existed"]
    await queen.queue(queue).push([Message({"key": "k"})])
    assert (await push(queen, queue, "k"))["existed"]
