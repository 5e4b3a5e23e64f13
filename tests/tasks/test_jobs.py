"""Jobs: where they stand, what they return, and for how long that is known."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import asyncpg
import pytest

from queen import Message, Queen
from queen.client.tasks import Job, current_job
from queen.core.ids import partition_uuid
from queen.errors import BadRequest, JobFailed, NoResult
from queen.testing import Clock, eager, run_jobs
from tests.tasks.working import working
from tests.waiting import spend, spend_async, until_async, until_met


async def state(job: Job[Any]) -> str:
    return (await job.status()).state


async def test_a_job_goes_from_scheduled_to_done(queen: Queen, queue: str, clock: Clock) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @queen.queue(queue).task
    async def build(pages: int) -> dict[str, int]:
        started.set()
        await go_on.wait()
        return {"pages": pages}

    job = await build.after(600, 12)
    assert await state(job) == "scheduled"
    await clock.advance(601, queue=queue)
    assert await state(job) == "waiting"
    async with working(queen):
        await started.wait()
        assert await state(job) == "running"
        with pytest.raises(TimeoutError, match="running"):
            await job.result(timeout=0.05)
        go_on.set()
        assert await job.result(timeout=20) == {"pages": 12}
    status = await queen.queue(queue).job(job.id).status()
    assert (status.state, status.has_result) == ("done", True)
    assert status.expires_at is not None
    assert status.finished_at is not None
    assert round((status.expires_at - status.finished_at).total_seconds()) == 86_400


async def test_results_are_kept_as_long_as_it_was_said(
    queen: Queen, queue: str, clock: Clock, connection: asyncpg.Connection
) -> None:
    """Retention of results: the default, one of its own, and none."""
    jobs = queen.queue(queue)
    day = jobs.task(name="day")(lambda: 1)
    hour = jobs.task(name="hour", keep_result_s=3600)(lambda: 2)
    none = jobs.task(name="none", keep_result_s=0)(lambda: 3)
    async with working(queen):
        ended = [await task.delay() for task in (day, hour, none)]
        assert [await job.result(20) for job in ended[:2]] == [1, 2]
        await until_async(lambda: is_done(ended[2]))
    with pytest.raises(NoResult):
        await ended[2].result(timeout=1)
    await clock.advance(3601, queue=queue)
    assert await ended[0].result(1) == 1
    assert await state(ended[1]) == "done"
    with pytest.raises(NoResult):
        await ended[1].result(timeout=1)
    await clock.advance(86_400, queue=queue)
    with pytest.raises(NoResult):
        await ended[0].result(timeout=1)
    assert await count(connection, "job_results", queue) == 0


async def count(connection: asyncpg.Connection, table: str, queue: str) -> int:
    rows: int = await connection.fetchval(
        f"select count(*) from queen.{table} where queue = $1", queue
    )
    return rows


async def is_done(job: Job[Any]) -> bool:
    return await state(job) == "done"


async def test_a_job_that_fails_is_retried_and_then_failed(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(retry_limit=2, retry_delay=10).create()
    seen: list[int] = []

    @queen.queue(queue).task
    def fail(what: str) -> None:
        job = current_job()
        assert job is not None
        seen.append(job.attempt)
        raise ValueError(f"no {what}")

    async with working(queen):
        job = await fail.delay("paper")
        with pytest.raises(JobFailed, match="ValueError: no paper"):
            await job.result(timeout=30)
    assert seen == [1, 2, 3]
    status = await job.status()
    assert (status.state, status.error) == ("failed", "ValueError: no paper")
    letters = await queen.queue(queue).group("workers").dlq().get()
    assert [letter.transaction_id for letter in letters.messages] == [job.id]
    assert current_job() is None


async def test_a_dead_letter_that_comes_back_may_be_done(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(retry_limit=0).create()
    is_well = False

    @queen.queue(queue).task
    def work() -> str:
        if not is_well:
            raise OSError("away")
        return "fine"

    async with working(queen):
        job = await work.delay()
        with pytest.raises(JobFailed, match="OSError: away"):
            await job.result(timeout=30)
        is_well = True
        assert await queen.queue(queue).group("workers").dlq().retry() == 1
        await until_async(lambda: is_done(job))
        assert await job.result(1) == "fine"


async def test_a_task_that_nobody_knows_is_a_failure_and_no_crash(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(retry_limit=0).create()
    fine = queen.queue(queue).task(name="fine")(lambda n: n)
    odd: list[Any] = [
        {"task": "gone", "arguments": {}},
        {"task": 5},
        {"arguments": {}},
        "no job",
        None,
        [],
        {"task": "fine", "arguments": {"n": 1, "m": 2}},
        {"task": "fine"},
        {"task": "fine", "arguments": [1]},
    ]
    pushed = [Message(payload, transaction_id=f"odd-{n}") for n, payload in enumerate(odd)]
    await queen.queue(queue).partition("0").push(pushed)
    async with working(queen) as worker:
        job = await fine.with_options(partition="0").delay(7)
        assert await job.result(30) == 7
        (consumer,) = worker.consumers
        assert (consumer.failed, consumer.handled) == (len(odd), 1)
    letters = (await queen.queue(queue).group("workers").dlq().get()).messages
    errors = {letter.transaction_id: letter.error_message or "" for letter in letters}
    assert len(errors) == len(odd)
    assert errors["odd-0"] == "NoSuchTask: no task 'gone' is known here; known are fine"
    assert "this is no job" in errors["odd-3"]
    assert "`m`" in errors["odd-6"]


async def test_a_result_that_cannot_be_kept_does_not_undo_its_job(queen: Queen, queue: str) -> None:
    jobs, runs = queen.queue(queue), []

    def give(value: Any) -> Any:
        runs.append(value)
        return {"large": "x" * 300_000, "odd": object(), "nan": float("nan")}[value]

    task = jobs.task(name="give")(give)
    async with working(queen):
        for value, reason in (("large", "bytes"), ("odd", "JSON"), ("nan", "NaN")):
            job = await task.delay(value)
            with pytest.raises(NoResult, match=reason):
                await job.result(timeout=30)
            assert await state(job) == "done"
    assert runs == ["large", "odd", "nan"]


async def test_results_come_back_as_their_annotation_says(queen: Queen, queue: str) -> None:
    @queen.queue(queue).task
    async def count() -> set[int]:
        return {1, 2}

    async with working(queen):
        job = await count.delay()
        assert await job.result(30) == {1, 2}
        # Whoever has only the id gets JSON.
        assert sorted(await queen.queue(queue).job(job.id).result(5)) == [1, 2]


async def test_what_nobody_pushed_is_unknown(queen: Queen, queue: str) -> None:
    for job_id in ("never@3", "never", "never@", "a/b?c@d/e"):
        assert await state(queen.queue(queue).job(job_id)) == "unknown"
    with pytest.raises(NoResult, match="not known"):
        await queen.queue(queue).job("never@3").result(1)


async def test_whoever_waits_is_told_on_any_server(
    queen: Queen, other_queen: Queen, queue: str
) -> None:
    """Waiting is one request, also where its end comes to another server and another worker."""
    go_on = asyncio.Event()

    @queen.queue(queue).task
    async def work(n: int) -> int:
        await go_on.wait()
        return n

    jobs = [await work.delay(n) for n in range(8)]
    there = [other_queen.queue(queue).job(job.id) for job in jobs]
    async with working(queen):
        waiting = [asyncio.create_task(job.result(30)) for job in (*jobs, *there)]
        await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.gather(*waiting) == [*range(8), *range(8)]


async def test_the_result_of_an_encrypted_queue_is_encrypted(
    queen: Queen, queue: str, connection: asyncpg.Connection
) -> None:
    await queen.queue(queue).config(encryption_enabled=True).create()
    task = queen.queue(queue).task(name="tell")(lambda secret: secret)
    async with working(queen):
        job = await task.with_options(key="k").delay("very-secret")
        assert await job.result(30) == "very-secret"
    kept = "select result from queen.job_results where queue = $1"
    assert b"very-secret" not in await connection.fetchval(kept, queue)


async def test_results_and_keys_go_with_their_queue(
    queen: Queen, queue: str, connection: asyncpg.Connection
) -> None:
    task = queen.queue(queue).task(name="t")(lambda: 1)
    async with working(queen):
        job = await task.delay()
        assert await job.result(30) == 1
    await task.with_options(key="k").delay()
    await queen.queue(queue).delete()
    assert await state(job) == "unknown"
    for table in ("job_results", "job_keys"):
        assert await count(connection, table, queue) == 0


# ---- the route that acks and stores ----


async def finish(queen: Queen, *jobs: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await queen.post("/api/v1/jobs/finish", {"consumerGroup": "workers", "jobs": [*jobs]})
    results: list[dict[str, Any]] = answer["results"]
    return results


def finished(message: Any, **more: Any) -> dict[str, Any]:
    return {
        "transactionId": message.transaction_id,
        "partitionId": message.partition_id,
        "leaseId": message.lease_id,
        **more,
    }


async def test_a_result_is_there_exactly_when_its_ack_is(
    queen: Queen, other_queen: Queen, queue: str, clock: Clock
) -> None:
    """A worker whose lease has lapsed is refused with its result, and fails nobody beside it."""
    jobs = queen.queue(queue).group("workers")
    pushed = [Message(n, transaction_id=f"j{n}@{n}") for n in range(3)]
    for n, message in enumerate(pushed):
        await jobs.partition(str(n)).push([message])
    late = (await jobs.partition("0").pop())[0]
    await clock.advance(400, queue=queue)
    again = (await jobs.partition("0").pop())[0]
    others = [(await jobs.partition(str(n)).pop())[0] for n in (1, 2)]
    sent = [
        finished(others[0], result=1),
        finished(late, result="zombie"),
        finished(others[1], result=2),
    ]
    results = await finish(other_queen, *sent)
    assert [result["success"] for result in results] == [True, False, True]
    assert await queen.queue(queue).job("j1@1").result(5) == 1
    assert await state(queen.queue(queue).job("j0@0")) == "running"
    assert (await finish(queen, finished(again, result="mine")))[0]["success"]
    assert await queen.queue(queue).job("j0@0").result(5) == "mine"
    # Sent again, because its answer was lost: the same answer, and the same result.
    assert [r["success"] for r in await finish(queen, finished(again, result="later"))] == [True]
    assert not (await finish(queen, finished(late, result="zombie")))[0]["success"]
    assert await queen.queue(queue).job("j0@0").result(5) == "mine"


async def test_what_cannot_be_finished_is_told_for_each(queen: Queen, queue: str) -> None:
    jobs = queen.queue(queue).group("workers")
    await jobs.push([Message(1, transaction_id="a"), Message(2, transaction_id="b")])
    first, second = await jobs.pop(batch=2)
    results = await finish(
        queen,
        finished(first, result="x" * 300_000),
        finished(first, keepS=1e9),
        finished(first, status="nonsense"),
        {**finished(first), "partitionId": partition_uuid(2**31 - 1)},
        {**finished(first), "leaseId": "no lease"},
        {**finished(first), "transactionId": "another"},
        finished(second, result=[2]),
    )
    assert [result["success"] for result in results] == [*[False] * 6, True]
    assert all(result["error"] for result in results[:6])
    assert await queen.queue(queue).job("b").result(5) == [2]


async def test_jobs_run_side_by_side_over_their_partitions(queen: Queen, queue: str) -> None:
    """Jobs are spread over partitions, so that as many run at once as a worker allows."""
    running = 0
    together = asyncio.Event()

    @queen.queue(queue).task(partitions=64)
    async def work() -> None:
        nonlocal running
        running += 1
        if running >= 4:
            together.set()
        await together.wait()

    async with working(queen, concurrency=4):
        jobs = [await work.delay() for _ in range(60)]
        await asyncio.gather(*(job.result(30) for job in jobs))
    assert len({job.partition for job in jobs}) > 4


async def test_jobs_of_one_partition_run_in_order(queen: Queen, queue: str) -> None:
    seen: list[int] = []
    task = queen.queue(queue).task(name="t", partition="only")(seen.append)
    async with working(queen):
        jobs = [await task.delay(n) for n in range(30)]
        await jobs[-1].result(30)
    assert seen == [*range(30)]


async def test_a_worker_gives_back_what_takes_too_long(queen: Queen, queue: str) -> None:
    """Told to stop, it waits as long as it may; then others have its jobs at once."""
    release = asyncio.Event()

    @queen.queue(queue).task
    async def work() -> str:
        await release.wait()
        return "done"

    jobs = [await work.with_options(partition="one").delay() for _ in range(3)]
    async with working(queen, grace_s=0.1) as worker:
        await until_met(lambda: worker.running == 1)
        worker.stop()
        await until_async(lambda: is_waiting(jobs[0]))
    release.set()
    async with working(queen):
        assert [await job.result(30) for job in jobs] == ["done"] * 3


async def test_a_slow_job_holds_up_no_result_of_those_before_it(queen: Queen, queue: str) -> None:
    release = asyncio.Event()

    @queen.queue(queue).task
    async def work(number: int) -> int:
        if number == 2:
            await release.wait()
        return number

    jobs = [await work.with_options(partition="one").delay(number) for number in range(4)]
    async with working(queen, concurrency=1, ahead=10) as worker:
        assert [await job.result(20) for job in jobs[:2]] == [0, 1]
        assert worker.consumers[0].received == 4
        release.set()
        assert [await job.result(20) for job in jobs[2:]] == [2, 3]


async def test_what_has_failed_is_not_done_when_the_rest_is_given_back(
    queen: Queen, queue: str
) -> None:
    release, runs = asyncio.Event(), []
    await queen.queue(queue).config(retry_delay=0).create()

    @queen.queue(queue).task
    async def work(number: int) -> str:
        runs.append(number)
        if runs == [0]:
            raise ValueError("the first time")
        await release.wait()
        return "done"

    jobs = [await work.with_options(partition="one").delay(number) for number in range(3)]
    async with working(queen, 1, grace_s=0.1, shared=True, ahead=10) as worker:
        await until_met(lambda: worker.running and len(runs) == 2)
        worker.stop()
        await until_async(lambda: is_waiting(jobs[1]))
    release.set()
    async with working(queen):
        assert [await job.result(30) for job in jobs] == ["done"] * 3
    assert sorted(runs) == [0, 0, 1, 1, 2]


async def is_waiting(job: Job[Any]) -> bool:
    return await state(job) == "waiting"


async def test_what_the_queue_says_of_errors_and_deadlines_counts_for_its_tasks(
    queen: Queen, queue: str
) -> None:
    """As for any handler: what to give up on at once, and how long a run may take."""
    jobs, runs = queen.queue(queue).give_up_on(ValueError).handler_timeout(0.2), []
    await jobs.config(retry_limit=1, retry_delay=1).create()

    @jobs.task(name="odd")
    def odd() -> None:
        runs.append("odd")
        raise ValueError("never")

    @jobs.task(name="slow")
    async def slow() -> None:
        runs.append("slow")
        await asyncio.Event().wait()

    async with working(queen):
        failed = [await odd.delay(), await slow.delay()]
        for job, reason in zip(failed, ("ValueError: never", "HandlerTimeout"), strict=True):
            with pytest.raises(JobFailed, match=reason):
                await job.result(60)
    assert sorted(runs) == ["odd", "slow", "slow"]


async def test_a_task_has_rules_of_its_own(queen: Queen, queue: str) -> None:
    """How often it is tried again, for what, and how long it may take; what is left open, the queue
    says."""
    jobs = queen.queue(queue).give_up_on(ValueError).handler_timeout(60)
    await jobs.config(retry_limit=3, retry_delay=1).create()
    runs: list[str] = []

    def task(name: str, raised: type[Exception], **options: Any) -> Any:
        @jobs.task(name=name, **options)
        def failing() -> None:
            runs.append(name)
            raise raised(name)

        return failing

    @jobs.task(name="slow", timeout=0.1, retries=1)
    async def slow() -> None:
        runs.append("slow")
        await asyncio.Event().wait()

    @jobs.task(name="slow-in-thread", timeout=0.1, retries=0)
    def slow_in_thread() -> None:
        runs.append("slow-in-thread")
        spend(0.2)

    tasks = [
        task("as the queue", ValueError),
        task("once more", KeyError, retries=1),
        task("more than allowed", KeyError, retries=9),
        task("other kinds", ValueError, give_up_on=KeyError, retries=2),
        task("only these", KeyError, give_up_on=Exception, retry_on=OSError),
        slow,
        slow_in_thread,
    ]
    async with working(queen):
        for job in [await failing.delay() for failing in tasks]:
            with pytest.raises(JobFailed):
                await job.result(60)
    assert {name: runs.count(name) for name in runs} == {
        "as the queue": 1,
        "once more": 2,
        "more than allowed": 4,
        "other kinds": 3,
        "only these": 1,
        "slow": 2,
        "slow-in-thread": 1,
    }


@pytest.mark.parametrize(
    "option", [{"retries": -1}, {"give_up_on": "ValueError"}, {"timeout": 0}], ids=str
)
def test_rules_of_a_task_that_make_no_sense_are_refused(option: dict[str, Any]) -> None:
    queen = Queen("http://127.0.0.1:1")
    with pytest.raises((ValueError, BadRequest), match=r"retries|give_up_on|timeout"):
        queen.queue("q").task(name="t", **option)(print)


async def test_a_job_that_awaits_what_was_cancelled_has_failed(
    queen: Queen, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    await queen.queue(queue).config(retry_limit=0).create()

    @queen.queue(queue).task(name="broken")
    async def broken() -> None:
        inner = asyncio.create_task(spend_async(60))
        inner.cancel()
        await inner

    @queen.queue(queue).task(name="sound")
    async def sound() -> int:
        return 1

    with eager(queen):
        assert "CancelledError" in ((await (await broken.delay()).status()).error or "")
    failed = [await broken.delay() for _ in range(3)]
    done = await sound.delay()
    assert await run_jobs(queen, [queue]) == 1
    assert await done.result(20) == 1
    for job in failed:
        with pytest.raises(JobFailed, match="a handler raised CancelledError"):
            await job.result(20)
        assert f"job {job.id} broken failed on attempt 1" in caplog.text


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_a_job_that_exits_does_not_end_its_worker(
    queen: Queen, queue: str, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    await queen.queue(queue).config(retry_limit=0).create()

    @queen.queue(queue).task(name="in_thread")
    def in_thread() -> None:
        raise kind(3)

    @queen.queue(queue).task(name="in_loop")
    async def in_loop() -> None:
        raise SystemExit(3)

    @queen.queue(queue).task(name="sound")
    def sound() -> int:
        return 1

    failed = [await task.delay() for task in (in_thread, in_loop, in_thread, in_loop)]
    done = await sound.delay()
    assert await run_jobs(queen, [queue]) == 1
    assert await done.result(20) == 1
    for job in failed:
        with pytest.raises(JobFailed, match=r"a handler raised (SystemExit|KeyboardInt\w+): 3"):
            await job.result(20)
        assert f"job {job.id} in_" in caplog.text
    # Not `caplog.text`: PySpark formats that as JSON once a test has loaded it.
    raised = {traceback_of(record) for record in caplog.records}
    assert any("raise kind(3)" in text for text in raised)
    assert any("raise SystemExit(3)" in text for text in raised)


def traceback_of(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


async def test_in_a_shared_group_a_failing_job_holds_up_no_other(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(retry_limit=3, retry_delay=60_000).create()
    jobs = queen.queue(queue).shared()
    task = jobs.task(name="t", partitions=1)(lambda n: 1 / n)
    async with working(queen):
        bad, *good = [await task.delay(n) for n in range(8)]
        assert [await job.result(60) for job in good] == [1 / n for n in range(1, 8)]
        assert await state(bad) == "waiting"


async def test_a_scheduled_job_can_be_taken_back(queen: Queen, queue: str) -> None:
    task = queen.queue(queue).task(name="t")(lambda: 1)
    job = await task.after(600)
    assert await job.cancel()
    assert not await job.cancel()
    assert await state(job) == "unknown"
