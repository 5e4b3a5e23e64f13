"""`Queen(spool=path)`: a producer goes on while its broker is away, and loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queen import Message, Queen, SyncQueen
from queen.client.spooling import backlog, drain
from queen.client.spooling.folders import owner_of
from queen.errors import (
    InvalidFrame,
    InvalidItem,
    NotFound,
    QueueFull,
    SpoolFailed,
    SpoolFull,
    Unreachable,
)
from queen.spool import KIND_JSON, Spool, SpoolRoot
from tests.client.fake import Fake, answer
from tests.client.gate import Gate, Mode
from tests.conftest import ServerProcess
from tests.ports import free_port
from tests.waiting import until_async, until_met

LONG_MS = 3_600_000


async def stored(queen: Queen, queue: str) -> dict[str, list[Any]]:
    """Return the payloads of a queue by partition, in their order."""
    by_partition: dict[str, list[Any]] = defaultdict(list)
    # It may not be there yet.
    with contextlib.suppress(NotFound):
        async for message in queen.queue(queue).replay():
            by_partition[str(message.partition)].append(message.data)
    return by_partition


async def count_waiting(queen: Queen) -> int:
    assert queen.spool is not None
    return (await queen.spool.statistics()).records


def names_in(folder: Path) -> list[str]:
    return os.listdir(folder)  # noqa: PTH208


def statuses(pushed: Sequence[Any]) -> set[str]:
    return {result.status for result in pushed}


async def test_pushes_wait_while_the_broker_is_away(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    async with Queen(gate.url, spool=tmp_path) as producer:
        (first,) = await producer.queue(queue).push(Message(0, transaction_id="zero"))
        assert (first.status, first.transaction_id) == ("buffered", "zero")
        items = producer.queue(queue).partition("p")
        assert statuses(await items.push([1, 2, 3])) == {"buffered"}
        many = await items.push(list(range(4, 304)))
        assert statuses(many) == {"buffered"}
        assert await count_waiting(producer) == 304
        await gate.turn("open")
        await producer.flush()
        assert await count_waiting(producer) == 0
        assert statuses(await items.push(304)) == {"queued"}
    assert await stored(queen, queue) == {"Default": [0], "p": list(range(1, 305))}
    assert names_in(tmp_path) == []


async def test_without_it_nothing_is_kept(gate: Gate, queue: str) -> None:
    async with Queen(gate.url, retry_s=0.1) as producer:
        assert producer.spool is None
        with pytest.raises(Unreachable):
            await producer.queue(queue).push(1)


async def test_an_outage_is_met_once(gate: Gate, queen: Queen, queue: str, tmp_path: Path) -> None:
    async with Queen(gate.url, spool=tmp_path, spool_options={"try_s": 0.5}) as producer:
        await gate.turn("open")
        assert statuses(await producer.queue(queue).push(0)) == {"queued"}
        await gate.turn("silent")
        for number in range(1, 200):
            assert statuses(await producer.queue(queue).push(number)) == {"buffered"}
        # Only the drain has asked since, with long pauses.
        assert gate.connections < 100
        await gate.turn("open")
        await producer.flush()
    assert await stored(queen, queue) == {"Default": list(range(200))}


@pytest.mark.parametrize(
    "refusal",
    [
        answer("502 Bad Gateway", b"<html>"),
        answer("503 Service Unavailable", b'{"error":"away","code":"unavailable"}'),
        answer("503 Service Unavailable", b'{"error":"who knows","code":"outcome_unknown"}'),
        answer("504 Gateway Timeout", b""),
        answer("507 Insufficient Storage", b'{"error":"full","code":"spool_full"}'),
        answer(
            "503 Service Unavailable",
            b'{"error":"away","code":"unavailable","retryable":true,"results":[],'
            b'"items":[{"index":0,"reason":"away","code":"unavailable"}]}',
        ),
    ],
)
async def test_what_a_broker_cannot_take_waits(refusal: bytes, tmp_path: Path) -> None:
    fake = Fake(lambda _: refusal)
    async with fake.running(), Queen(fake.url, spool=tmp_path) as producer:
        assert statuses(await producer.queue("q").push(1)) == {"buffered"}
        assert await count_waiting(producer) == 1


async def test_order_is_kept_when_the_broker_comes_and_goes(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    counts: dict[str, int] = defaultdict(int)

    async def produce(producer: Queen, partition: str, count: int) -> None:
        for number in range(count):
            (pushed,) = await producer.queue(queue).partition(partition).push(number)
            counts[pushed.status] += 1

    async def disturb() -> None:
        modes: list[Mode] = ["open", "shut", "open", "silent", "open", "shut", "open"]
        for mode in modes:
            await gate.turn(mode)
            goal = min(sum(counts.values()) + 40, 1200)
            await until_met(partial(has_pushed, goal))

    def has_pushed(count: int) -> bool:
        return sum(counts.values()) >= count

    async with Queen(gate.url, spool=tmp_path, spool_options={"try_s": 0.3}) as producer:
        work = [produce(producer, f"p{number}", 400) for number in range(3)]
        await asyncio.gather(disturb(), *work)
        await producer.flush()
    assert counts["buffered"] > 0
    assert await stored(queen, queue) == {f"p{number}": list(range(400)) for number in range(3)}


async def test_a_busy_producer_gets_past_the_spool_again(
    gate: Gate, queue: str, tmp_path: Path
) -> None:
    async with Queen(gate.url, spool=tmp_path) as producer:
        await producer.queue(queue).push(0)
        await gate.turn("open")
        # It never rests, and is asked to wait for the last of those before it.
        async with asyncio.timeout(30):
            while statuses(await producer.queue(queue).push(1)) == {"buffered"}:
                pass


async def test_a_killed_broker_is_waited_for(
    dsn: str, queue: str, start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    running = start_server("--database-url", dsn)
    done = asyncio.Event()
    pushed = 0

    async def produce(producer: Queen) -> None:
        nonlocal pushed
        while not done.is_set():
            await producer.queue(queue).push([Message(pushed, transaction_id=f"id-{pushed}")])
            pushed += 1

    async with Queen(running.url, spool=tmp_path / "spool") as producer:
        producing = asyncio.create_task(produce(producer))
        await until_met(lambda: pushed >= 20)
        running.kill()
        goal = pushed + 50
        await until_met(lambda: pushed >= goal)
        again = await asyncio.to_thread(start_server, "--database-url", dsn, port=running.port)
        done.set()
        await producing
        await producer.flush()
        assert await stored(producer, queue) == {"Default": list(range(pushed))}
        assert again.url == running.url


async def test_a_client_with_the_same_folder_sends_what_another_has_left(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    async with Queen(gate.url, spool=tmp_path) as producer:
        await producer.queue(queue).push([1, 2])
    async with Queen(gate.url, spool=tmp_path) as producer:
        # Behind what is there.
        assert statuses(await producer.queue(queue).push(3)) == {"buffered"}
        await gate.turn("open")
        await producer.flush()
    assert await stored(queen, queue) == {"Default": [1, 2, 3]}
    assert names_in(tmp_path) == []


async def test_a_client_that_is_made_before_its_loop(
    server: ServerProcess, queen: Queen, queue: str, tmp_path: Path
) -> None:
    program = (
        "import asyncio, sys\n"
        "from queen import Queen\n"
        "queen = Queen(sys.argv[1], spool=sys.argv[2])\n"
        "async def main():\n"
        "    print((await queen.queue(sys.argv[3]).push(1))[0].status)\n"
        "    await queen.close()\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, server.url, str(tmp_path), queue]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("queued\n", "")


async def test_what_is_wrong_is_told_and_never_kept(gate: Gate, queue: str, tmp_path: Path) -> None:
    async with Queen(gate.url, spool=tmp_path) as producer:
        with pytest.raises(ValueError, match="NaN"):
            await producer.queue(queue).push({"x": float("nan")})
        with pytest.raises(InvalidItem) as caught:
            long = Message(2, transaction_id="i" * 300)
            await producer.queue(queue).push([1, long])
        assert caught.value.index == 1
        with pytest.raises(InvalidItem, match="queue name"):
            await producer.queue("n" * 300).push(1)
        with pytest.raises(InvalidItem, match="queue name"):
            await producer.queue("n" * 300).push(list(range(300)))
        with pytest.raises(InvalidFrame, match="queue name"):
            await producer.push_frames([("n" * 300, "p", [("name", b"1")])])
        with pytest.raises(ValueError, match="delay"):
            await producer.queue(queue).push(Message(1, delay=-1))
        assert await count_waiting(producer) == 0
        await gate.turn("open")
        with pytest.raises(InvalidItem):
            await producer.queue("n" * 300).push(1)
        assert await count_waiting(producer) == 0


async def test_what_a_broker_refuses_is_set_aside_with_its_reason(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    async with Queen(gate.url, spool=tmp_path) as producer:
        assert producer.spool is not None
        # Nobody but the broker knows that a trace id is a text.
        bad = Message("bad", transaction_id="bad", trace_id=5)  # type: ignore[arg-type]
        await producer.queue(queue).push([1, bad, 2])
        await gate.turn("open")
        await producer.flush()
        (refused,) = await producer.spool.refused()
        assert (refused.queue, refused.transaction_id) == (queue, "bad")
        assert refused.data == "bad"
        assert "traceId" in refused.reason
        assert (await producer.spool.statistics()).quarantined == 1
        assert await producer.spool.retry() == 1
        await producer.flush()
        assert (await producer.spool.statistics()).quarantined == 1
        await producer.spool.drop()
        assert (await producer.spool.statistics()).quarantined == 0
    assert await stored(queen, queue) == {"Default": [1, 2]}


async def test_a_queue_that_is_full_holds_up_no_other(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    full = f"{queue}-full"
    await queen.queue(full).config(max_size=2).create()
    await queen.queue(full).push(["old", "old"])
    async with Queen(gate.url, spool=tmp_path, retry_s=0.2) as producer:
        await producer.queue(full).push([1, 2, 3])
        await producer.queue(queue).push("through")
        await gate.turn("open")
        (through,) = await queen.queue(queue).pop(wait_s=20)
        assert through.data == "through"
        # Others are stored at once; what is for the full queue goes behind what waits.
        await until_async(lambda: is_queued(producer, queue))
        assert statuses(await producer.queue(full).push([4])) == {"buffered"}
        received: list[Any] = []
        while len(received) < 6:
            messages = await queen.queue(full).pop(wait_s=20, batch=9, auto_ack=True)
            received += [message.data for message in messages]
        await producer.flush()
    assert received == ["old", "old", 1, 2, 3, 4]


async def is_queued(producer: Queen, queue: str) -> bool:
    return statuses(await producer.queue(queue).push("more")) == {"queued"}


async def test_what_has_waited_while_others_went_past_is_known_after_a_kill(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    full = f"{queue}-full"
    await queen.queue(full).config(max_size=1, dedup="off").create()
    await queen.queue(full).push("old")
    await queen.queue(queue).config(dedup="off").create()
    async with Queen(gate.url, spool=tmp_path) as producer:
        for number in range(5):
            await producer.queue(full).push(number)
            await producer.queue(queue).push(number)
    await gate.turn("open")
    async with Queen(gate.url, spool=tmp_path, spool_options={"close_s": 0.0}) as producer:
        await until_async(lambda: has(queen, queue, 5))
        assert await count_waiting(producer) == 5
    received: list[Any] = []
    async with Queen(gate.url, spool=tmp_path) as producer:
        while len(received) < 6:
            messages = await queen.queue(full).pop(wait_s=20, batch=9, auto_ack=True)
            received += [message.data for message in messages]
        await producer.flush()
    assert received == ["old", 0, 1, 2, 3, 4]
    assert await stored(queen, queue) == {"Default": [0, 1, 2, 3, 4]}


async def has(queen: Queen, queue: str, count: int) -> bool:
    return sum(map(len, (await stored(queen, queue)).values())) >= count


async def test_a_full_queue_is_told_when_nothing_waits(
    server: ServerProcess, queue: str, tmp_path: Path
) -> None:
    async with Queen(server.url, spool=tmp_path, retry_s=0.2) as producer:
        await producer.queue(queue).config(max_size=1).create()
        await producer.queue(queue).push(1)
        with pytest.raises(QueueFull):
            await producer.queue(queue).push(2)
        assert await count_waiting(producer) == 0


async def test_a_spool_that_is_full_is_told(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    async with Queen(
        gate.url, spool=tmp_path, spool_options={"max_bytes": 20_000, "min_free_bytes": 0}
    ) as producer:
        kept = 0
        with pytest.raises(SpoolFull, match="20000 bytes"):
            while True:
                await producer.queue(queue).push(f"{kept} " + "x" * 1000)
                kept += 1
        assert await count_waiting(producer) == kept > 10
        # Lists and buffers too.
        with pytest.raises(SpoolFull):
            await producer.queue(queue).push(["x" * 100] * 300)
        await gate.turn("open")
        await producer.flush()
        assert statuses(await producer.queue(queue).push("last")) == {"queued"}
        # What was sent takes no room in the next outage.
        await gate.turn("shut")
        again = [await producer.queue(f"{queue}-2").push("x" * 1000) for _ in range(10)]
        assert set().union(*map(statuses, again)) == {"buffered"}
    payloads = (await stored(queen, queue))["Default"]
    assert [text.split()[0] for text in payloads] == [*map(str, range(kept)), "last"]


async def test_a_buffer_goes_into_the_spool(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    async with Queen(gate.url, spool=tmp_path) as producer:
        buffered = producer.queue(queue).buffer(1000, LONG_MS)
        for number in range(1500):
            await buffered.push(number)
    assert len(producer.buffers) == 0
    async with Queen(gate.url, spool=tmp_path) as producer:
        await gate.turn("open")
        await producer.flush()
    assert await stored(queen, queue) == {"Default": list(range(1500))}


async def test_a_delay_counts_from_the_push(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    async with Queen(gate.url, spool=tmp_path) as producer:
        await producer.queue(queue).push(Message("now", delay=0.001))
        await producer.queue(queue).push(Message("later", transaction_id="later", delay=3600))
        pushed_at = datetime.now(UTC)
        await gate.turn("open")
        await producer.flush()
    listed = await queen.request("GET", f"/api/v1/scheduled?queue={queue}")
    (scheduled,) = listed["scheduled"]
    due = datetime.fromisoformat(scheduled["deliverAt"])
    assert due <= pushed_at + timedelta(hours=1)
    assert (await stored(queen, queue)) == {"Default": ["now"]}


async def test_the_rest_raises_as_ever(gate: Gate, queue: str, tmp_path: Path) -> None:
    async with Queen(gate.url, spool=tmp_path, retry_s=0.1) as producer:
        with pytest.raises(Unreachable):
            async with producer.transaction() as transaction:
                transaction.push(queue, 1)
        with pytest.raises(Unreachable):
            await producer.queue(queue).pop(wait_s=0)
        assert await count_waiting(producer) == 0


async def test_another_address_of_the_broker_is_no_other_broker(
    server: ServerProcess, gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    async with Queen(gate.url, spool=tmp_path) as producer:
        await producer.queue(queue).push(1)
    async with Queen([server.url, gate.url], spool=tmp_path) as producer:
        await producer.flush()
    assert await stored(queen, queue) == {"Default": [1]}


@pytest.mark.parametrize(
    ("urls", "owner"),
    [
        (["http://user:secret@Queen"], "http://queen:6632"),
        (["https://queen/"], "https://queen:443"),
        (["http://b:1", "http://a:1", "http://b:1"], "http://a:1,http://b:1"),
        (["http://[::1]:7"], "http://[::1]:7"),
    ],
)
def test_an_address_has_one_spelling(urls: list[str], owner: str) -> None:
    assert owner_of("", urls) == owner


async def test_a_named_broker_may_move(
    server: ServerProcess, gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    async with Queen(gate.url, spool=tmp_path, spool_options={"broker": "shop"}) as producer:
        await producer.queue(queue).push(1)
    async with Queen(server.url, spool=tmp_path, spool_options={"broker": "shop"}) as producer:
        await producer.flush()
    assert await stored(queen, queue) == {"Default": [1]}


async def test_records_for_another_broker_are_left_alone_and_told(
    server: ServerProcess,
    gate: Gate,
    queen: Queen,
    queue: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Queen(gate.url, spool=tmp_path) as producer:
        await producer.queue(queue).push(1)
    with caplog.at_level(logging.WARNING, "queen.client"):
        async with Queen(server.url, spool=tmp_path) as producer:
            await producer.flush()
            assert await count_waiting(producer) == 0
    # Not `caplog.text`: PySpark formats that as JSON once a test has loaded it.
    assert f'"broker": "{gate.url}"' in " ".join(caplog.messages)
    # As the log says.
    async with Queen(server.url, spool=tmp_path, spool_options={"broker": gate.url}) as producer:
        await producer.flush()
    assert await stored(queen, queue) == {"Default": [1]}


async def test_two_clients_share_a_folder(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "_ADOPT_EVERY_S", 0.05)
    async with Queen(gate.url, spool=tmp_path) as first:
        async with Queen(gate.url, spool=tmp_path) as second:
            await first.queue(queue).partition("a").push([1, 2])
            await second.queue(queue).partition("b").push([1, 2])
        # What one has left, the other takes over.
        await gate.turn("open")
        await until_async(lambda: has(queen, queue, 4))
        await first.flush()
    assert await stored(queen, queue) == {"a": [1, 2], "b": [1, 2]}
    assert names_in(tmp_path) == []


async def test_the_same_without_asyncio(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    def produce() -> None:
        with SyncQueen(gate.url, spool=tmp_path) as producer:
            assert producer.spool is not None
            assert statuses(producer.queue(queue).push([1, 2])) == {"buffered"}
            assert producer.spool.statistics().records == 2
            assert producer.spool.refused() == []

    def drain_all() -> None:
        with SyncQueen(gate.url, spool=str(tmp_path)) as producer:
            producer.flush()

    await asyncio.to_thread(produce)
    await gate.turn("open")
    await asyncio.to_thread(drain_all)
    assert await stored(queen, queue) == {"Default": [1, 2]}


def test_an_option_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no 'size'"):
        Queen(spool=tmp_path, spool_options={"size": 1})  # type: ignore[arg-type]


def test_a_system_without_file_locks_says_so(tmp_path: Path) -> None:
    program = (
        "import sys\nsys.modules['fcntl'] = None\n"
        "import queen\nqueen.Queen()\n"
        "try:\n    queen.Queen(spool=sys.argv[1])\n"
        "except ValueError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "on Unix only" in done.stdout


def test_a_forked_process_does_not_keep_the_folder(tmp_path: Path) -> None:
    program = (
        "import os, sys, asyncio, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from queen import Queen\n"
        "queen = Queen('http://127.0.0.1:1', spool=sys.argv[1])\n"
        "if os.fork() == 0:\n"
        "    print('forked', flush=True)\n"
        "    sys.stdin.read()\n"
        "os._exit(0)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"forked\n"
        process.wait()
        (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
        queen = Queen("http://127.0.0.1:1", spool=tmp_path)
        # The same one: its owner has ended, whoever else it has started.
        assert [path for path in tmp_path.iterdir() if path.is_dir()] == [folder]
        asyncio.run(queen.close())


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    async def produce() -> None:
        async with Queen(f"http://127.0.0.1:{free_port()}", spool=tmp_path / "new") as producer:
            await producer.queue("q").push(1)

    os.umask(before := os.umask(0))
    assert before is not None
    asyncio.run(produce())
    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "new").rglob("*")}
    assert modes == {0}


async def test_an_answer_of_no_broker_is_an_outage_too(tmp_path: Path) -> None:
    fake = Fake(lambda _: answer("200 OK", b"<html>"))
    async with fake.running(), Queen(fake.url, spool=tmp_path) as producer:
        assert statuses(await producer.queue("q").push(1)) == {"buffered"}
        state = await producer.spool.statistics()  # type: ignore[union-attr]
        assert state.is_away
        assert state.error is not None


STORED = answer("201 Created", b'[{"status":"queued","transaction_id":"t"}]')


async def test_a_token_that_is_no_longer_good_waits(tmp_path: Path) -> None:
    refusal = answer("401 Unauthorized", b'{"error":"who","code":"unauthenticated"}')
    answers = [answer("503 Away", b""), refusal, refusal, STORED]
    async with Fake(answers).running() as fake, Queen(fake.url, spool=tmp_path) as producer:
        assert statuses(await producer.queue("q").push(1)) == {"buffered"}
        await asyncio.wait_for(producer.flush(), 30)
        assert producer.spool is not None
        assert await producer.spool.refused() == []
        assert len(fake.requests) == len(answers)


@pytest.mark.parametrize(
    "refusal",
    [
        answer("400 Bad", b'{"error":"no","code":"bad_request","retryable":false}'),
        answer("413 Too Large", b"<html>"),
    ],
)
async def test_a_refusal_of_all_is_about_some(refusal: bytes, tmp_path: Path) -> None:
    is_away = True
    taken: list[int] = []

    def respond(request: bytes) -> bytes:
        if is_away:
            return answer("503 Away", b"")
        if b"poison" in request:
            return refusal
        payloads = [item["payload"] for item in json.loads(request.split(b"\r\n\r\n")[1])["items"]]
        taken.extend(payloads)
        return answer("201 Created", b"[]")

    async with Fake(respond).running() as fake, Queen(fake.url, spool=tmp_path) as producer:
        await producer.queue("q").push([*range(20), "poison", *range(20, 40)])
        is_away = False
        await asyncio.wait_for(producer.flush(), 30)
        assert producer.spool is not None
        assert [refused.data for refused in await producer.spool.refused()] == ["poison"]
    assert taken == list(range(40))


async def test_an_error_of_one_partition_holds_up_no_other(tmp_path: Path) -> None:
    is_broken = is_away = True
    taken: list[Any] = []

    def respond(request: bytes) -> bytes:
        if is_away:
            return answer("503 Away", b"")
        if b"broken" in request and is_broken:
            return answer("500 Oh", b'{"error":"oh","code":"internal","retryable":false}')
        items = json.loads(request.split(b"\r\n\r\n")[1])["items"]
        taken.extend(item["payload"] for item in items)
        return answer("201 Created", b"[]")

    async with Fake(respond).running() as fake, Queen(fake.url, spool=tmp_path) as producer:
        for number in range(3):
            await producer.queue("broken").push(number)
            await producer.queue("q").push(number)
        is_away = False
        await until_met(lambda: taken == [0, 1, 2])
        taken.clear()
        is_broken = False
        await asyncio.wait_for(producer.flush(), 30)
        assert producer.spool is not None
        assert await producer.spool.refused() == []
    assert taken == [0, 1, 2]


async def test_when_too_much_is_held_back_others_wait_and_no_push_does(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "_MOST_HELD", 10)
    full = f"{queue}-full"
    await queen.queue(full).config(max_size=1).create()
    await queen.queue(full).push("old")
    async with Queen(gate.url, spool=tmp_path) as producer:
        await producer.queue(full).push(list(range(50)))
        await gate.turn("open")
        for number in range(30):
            assert statuses(await producer.queue(queue).push(number)) == {"buffered"}
        received: list[Any] = []
        while len(received) < 51:
            messages = await queen.queue(full).pop(wait_s=20, batch=9, auto_ack=True)
            received += [message.data for message in messages]
        await producer.flush()
    assert received == ["old", *range(50)]
    assert await stored(queen, queue) == {"Default": list(range(30))}


async def test_a_push_that_was_given_up_while_it_was_written_is_not_overtaken(
    gate: Gate, queen: Queen, queue: str, tmp_path: Path
) -> None:
    async with Queen(gate.url, spool=tmp_path) as producer:
        for number in range(10):
            orders = producer.queue(queue).partition(f"p{number}")
            await gate.turn("shut")
            pushing = asyncio.create_task(orders.push("first"))
            await until_met(lambda: producer.spool and producer.spool._writing, look_s=0)
            pushing.cancel()
            await gate.turn("open")
            await orders.push("second")
            await producer.flush()
    numbers = await stored(queen, queue)
    assert numbers == {f"p{number}": ["first", "second"] for number in range(10)}


async def test_a_client_that_is_closed_keeps_nobody_waiting(
    gate: Gate, queue: str, tmp_path: Path
) -> None:
    producer = Queen(gate.url, spool=tmp_path)
    await producer.queue(queue).push(1)
    flushing = asyncio.create_task(producer.flush())
    await asyncio.sleep(0)
    await producer.close()
    with pytest.raises(RuntimeError, match="is closed"):
        await asyncio.wait_for(flushing, 30)
    with pytest.raises(SpoolFailed, match="closed"):
        await asyncio.wait_for(producer.queue(queue).push(2), 30)
    await producer.close()


async def test_a_record_that_is_no_message_is_set_aside(
    server: ServerProcess, queen: Queen, queue: str, tmp_path: Path
) -> None:
    spool = Spool(SpoolRoot(tmp_path, server.url).claim())
    item = {"queue": queue, "partition": "p", "transactionId": "t", "payload": 1}
    spool.append([b"not JSON", json.dumps(item).encode()], KIND_JSON, durable=True)
    spool.close()
    async with Queen(server.url, spool=tmp_path) as producer:
        await producer.flush()
        assert producer.spool is not None
        (refused,) = await producer.spool.refused()
        assert refused.reason.startswith("not a message")
    assert await stored(queen, queue) == {"p": [1]}
