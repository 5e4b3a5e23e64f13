"""Pushes of many tasks share requests, and each has its own outcome."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from queen import Message, Queen, SyncQueen
from queen.client.pushing import sharing
from queen.errors import InvalidItem, QueueFull, Unreachable
from tests.api import Api
from tests.client.brokers import ids_in, stored, stored_with_frames
from tests.client.fake import CLOSE, Fake, answer
from tests.conftest import ServerProcess


class Holding:
    """A broker that stores what it gets, and keeps its first answers back until it is told."""

    def __init__(self, held: int = 1) -> None:
        self._held = held
        self.fake = Fake(self._respond)

    def _respond(self, request: bytes) -> bytes | None:
        if len(self.fake.requests) <= self._held:
            return None
        return stored(request)


async def push_many(queen: Queen, queue: str, count: int) -> list[list[Any]]:
    tasks = [queen.queue(queue).partition(f"p{n % 3}").push({"n": n}) for n in range(count)]
    return await asyncio.gather(*tasks)


async def test_many_pushes_are_few_requests() -> None:
    fake = Fake(stored_with_frames)
    async with fake.running(), Queen(fake.url) as queen:
        for _ in range(3):
            results = await push_many(queen, "q", 64)
    assert len(fake.requests) == 3
    names = [pushed.transaction_id for (pushed,) in results]
    assert len(set(names)) == 64 and set(names) == set(ids_in(fake.requests[2]))


async def test_each_gets_the_result_of_its_own_messages(queen: Queen, queue: str) -> None:
    for count in (2, 60):
        lists = [[Message(f"{n}-{at}") for at in range(1 + n % 3)] for n in range(count)]
        results = await asyncio.gather(*(queen.queue(queue).push(many) for many in lists))
        received = await queen.queue(queue).pop(batch=200, auto_ack=True)
        by_id = {message.id: message.transaction_id for message in received}
        assert len(received) == sum(map(len, lists))
        for many, pushed in zip(lists, results, strict=True):
            names = [message.transaction_id for message in many]
            assert [one.transaction_id for one in pushed] == names
            assert [by_id[str(one.message_id)] for one in pushed] == names


async def test_a_lone_push_waits_for_nobody() -> None:
    fake = Fake(stored)
    async with fake.running(), Queen(fake.url) as queen:
        for number in range(3):
            await queen.queue("q").push(number)
            assert len(fake.requests) == number + 1


async def test_what_comes_while_requests_are_under_way_goes_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharing, "MOST_UNDER_WAY", 1)
    monkeypatch.setattr(sharing, "_SLOW_S", 3600)
    fake = Holding().fake
    async with fake.running(), Queen(fake.url) as queen:
        first = asyncio.create_task(queen.queue("q").push(0))
        await fake.asked.wait()
        later = [asyncio.create_task(queen.queue("q").push(n)) for n in range(5)]
        await asyncio.sleep(0)
        assert len(fake.requests) == 1
        first.cancel()
        await asyncio.gather(*later)
    assert [len(ids_in(request)) for request in fake.requests] == [1, 5]


async def test_a_slow_request_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_SLOW_S", 0.05)
    fake = Holding(sharing.MOST_UNDER_WAY).fake
    async with fake.running(), Queen(fake.url) as queen:
        held = []
        for number in range(sharing.MOST_UNDER_WAY):
            fake.asked.clear()
            held.append(asyncio.create_task(queen.queue("q").push(number)))
            await fake.asked.wait()
        (pushed,) = await asyncio.wait_for(queen.queue("q").push("quick"), 20)
        assert pushed.status == "queued"
        for task in held:
            task.cancel()


async def test_what_is_left_over_does_not_wait_for_a_slow_request_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharing, "_SLOW_S", 0.05)
    monkeypatch.setattr(sharing, "_MOST_MESSAGES", 1)
    fake = Holding(sharing.MOST_UNDER_WAY).fake
    async with fake.running(), Queen(fake.url) as queen:
        tasks = [asyncio.create_task(queen.queue("q").push(n)) for n in range(6)]
        for number in range(6 - sharing.MOST_UNDER_WAY):
            left = [task for task in tasks if not task.done()]
            if len(left) > sharing.MOST_UNDER_WAY:
                done, _ = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED, timeout=20)
                assert done, f"only {number} of them were sent"
        for task in tasks:
            task.cancel()
    assert all(len(ids_in(request)) == 1 for request in fake.requests)


async def test_one_that_is_refused_takes_nobody_along(queen: Queen, queue: str) -> None:
    bad = Message("bad", transaction_id="x" * 300)
    pushes = [queen.queue(queue).push(bad if n == 20 else n) for n in range(40)]
    results = await asyncio.gather(*pushes, return_exceptions=True)
    (error,) = [result for result in results if isinstance(result, BaseException)]
    assert isinstance(error, InvalidItem)
    assert (error.index, results.index(error), "results" in error.details) == (0, 20, True)
    assert error.details["results"] == []
    received = await queen.queue(queue).pop(batch=100)
    assert sorted(one.data for one in received) == [n for n in range(40) if n != 20]


async def test_a_full_queue_refuses_its_own_only(server: ServerProcess, queue: str) -> None:
    async with Queen(server.url, retry_s=0.2) as queen:
        await queen.queue(f"{queue}-full").config(max_size=1, dedup="off").create()
        await queen.queue(f"{queue}-full").push("old")
        both = [queen.queue(name).push(1) for name in (queue, f"{queue}-full", queue)]
        first, full, last = await asyncio.gather(*both, return_exceptions=True)
        assert isinstance(full, QueueFull)
        assert isinstance(first, list) and isinstance(last, list)
        # A list that is stored in part goes on with the rest, and says what is stored.
        mixed = [Message(1, partition="a"), Message(2, partition="b")]
        await queen.queue(f"{queue}-two").config(max_size=1, dedup="off").create()
        one, two = await asyncio.gather(
            queen.queue(queue).push(3),
            queen.queue(f"{queue}-two").push(mixed),
            return_exceptions=True,
        )
        assert isinstance(one, list) and isinstance(two, QueueFull)
        assert [told["index"] for told in two.details["results"]] == [0]


async def test_what_cannot_be_written_is_its_own_fault(queen: Queen, queue: str) -> None:
    pushes = [
        queen.queue(queue).push(Message(n, transaction_id=name))
        for n, name in enumerate(["a", "\ud800", "b"])
    ]
    results = await asyncio.gather(*pushes, return_exceptions=True)
    assert [isinstance(result, ValueError) for result in results] == [False, True, False]
    received = await queen.queue(queue).pop(batch=9)
    assert sorted(one.data for one in received) == [0, 2]


async def test_a_request_that_breaks_is_repeated_with_the_same_ids() -> None:
    fake = Fake(lambda request: CLOSE if len(fake.requests) == 1 else stored(request))
    async with fake.running(), Queen(fake.url) as queen:
        results = await push_many(queen, "q", 10)
    assert len(ids_in(fake.requests[0])) == 10
    again = [name for request in fake.requests[1:] for name in ids_in(request)]
    assert sorted(again) == sorted(ids_in(fake.requests[0]))
    assert sorted(pushed.transaction_id for (pushed,) in results) == sorted(again)


async def test_nobody_is_told_of_a_neighbours_deadline() -> None:
    fake = Fake(lambda _: CLOSE)
    async with fake.running(), Queen(fake.url, retry_s=0.1) as queen:
        results = await asyncio.gather(
            *(queen.queue("q").push(n) for n in range(5)), return_exceptions=True
        )
    assert all(isinstance(result, Unreachable) for result in results)
    assert len({id(result) for result in results}) == 5


async def test_a_server_that_hangs_is_not_waited_for_twice() -> None:
    fake = Fake(lambda _: None)
    async with fake.running(), Queen(fake.url, retry_s=0, timeout_s=0.3) as queen:
        results = await asyncio.gather(
            *(queen.queue("q").push(n) for n in range(3)), return_exceptions=True
        )
    assert all(isinstance(result, Unreachable) for result in results)
    assert len({id(result) for result in results}) == 3
    assert len(fake.requests) == 1


async def test_a_push_that_is_cancelled_before_it_is_sent_is_not_sent() -> None:
    fake = Fake(stored)
    async with fake.running(), Queen(fake.url) as queen:
        names = [asyncio.create_task(queen.queue("q").push(Message(n))) for n in range(3)]
        await asyncio.sleep(0)
        names[1].cancel()
        results = await asyncio.gather(*names, return_exceptions=True)
    assert isinstance(results[1], asyncio.CancelledError)
    assert [len(ids_in(request)) for request in fake.requests] == [2]


async def test_a_request_outlives_one_of_its_pushes_but_not_all() -> None:
    fake = Fake([None])
    async with fake.running(), Queen(fake.url) as queen:
        tasks = [asyncio.create_task(queen.queue("q").push(n)) for n in range(3)]
        await fake.asked.wait()
        for task in tasks[:2]:
            task.cancel()
        await asyncio.wait(tasks[:2])
        assert not fake.hung_up.is_set()
        tasks[2].cancel()
        await asyncio.wait_for(fake.hung_up.wait(), 20)


async def test_a_request_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(stored)
    monkeypatch.setattr(sharing, "_MOST_MESSAGES", 3)
    async with fake.running(), Queen(fake.url) as queen:
        await push_many(queen, "q", 10)
        assert max(len(ids_in(request)) for request in fake.requests) == 3
        monkeypatch.setattr(sharing, "_MOST_MESSAGES", 100)
        monkeypatch.setattr(sharing, "_MOST_BYTES", 100)
        fake.requests.clear()
        await asyncio.gather(*(queen.queue("q").push("x" * 40) for _ in range(6)))
        assert max(len(ids_in(request)) for request in fake.requests) == 2


async def test_who_awaits_a_push_before_the_next_sees_order(
    queen: Queen, queue: str, api: Api
) -> None:
    async def produce_pairs(name: str) -> None:
        for number in range(20):
            await queen.queue(queue).push([[name, number]])

    await asyncio.gather(*(produce_pairs(name) for name in "abcd"))
    data = api.data(queue, batch=100)
    assert len(data) == 80
    for name in "abcd":
        assert [number for who, number in data if who == name] == list(range(20))


@pytest.mark.parametrize(
    "odd", [Message("later", delay=3600), msgspec.Raw(b"1"), Message(msgspec.Raw(b"1"))]
)
async def test_what_is_not_ordinary_goes_alone(odd: Any) -> None:
    fake = Fake(stored)
    async with fake.running(), Queen(fake.url) as queen:
        await asyncio.gather(*(queen.queue("q").push(item) for item in (1, odd, 2)))
    assert sorted(len(ids_in(request)) for request in fake.requests) == [1, 2]


async def test_json_that_is_none_takes_nobody_along() -> None:
    """Somebody's own JSON inside of a payload breaks the request for all; alone, only its own."""
    bad = answer("400 Bad", b'{"error":"Invalid JSON","code":"bad_request","retryable":false}')

    def respond(request: bytes) -> bytes:
        try:
            return stored(request)
        except json.JSONDecodeError:
            return bad

    fake = Fake(respond)
    async with fake.running(), Queen(fake.url) as queen:
        payloads = [1, {"a": msgspec.Raw(b"{")}, 2]
        results = await asyncio.gather(
            *(queen.queue("q").push(payload) for payload in payloads), return_exceptions=True
        )
    assert [isinstance(result, list) for result in results] == [True, False, True]


def test_threads_share_too(sync_queen: SyncQueen, queue: str) -> None:
    ready = threading.Barrier(8)

    def push(number: int) -> str:
        ready.wait(20)
        (pushed,) = sync_queen.queue(queue).push(number)
        return str(pushed.message_id)

    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(push, range(8)))
    received = sync_queen.queue(queue).pop(batch=9)
    assert {message.id for message in received} == ids


async def test_several_servers_have_their_own() -> None:
    one, two = Fake(stored), Fake(stored)
    async with one.running(), two.running(), Queen([one.url, two.url]) as queen:
        await asyncio.gather(*(queen.queue(f"q{n}").push(n) for n in range(20)))
        for fake in (one, two):
            assert len(fake.requests) == 1
            for item in json.loads(fake.requests[0].partition(b"\r\n\r\n")[2])["items"]:
                assert queen.cluster.first_for(f"{item['queue']}:Default") == fake.url
