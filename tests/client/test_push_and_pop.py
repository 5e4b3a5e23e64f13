"""Queues, pushes, pops and what is said about a message."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from queen import Message, Queen
from queen.core.frame import MAX_RAW_BYTES, compress, encode_body, raw_size, segment_of
from queen.errors import BadRequest, LeaseLost, NotFound, PayloadTooLarge, QueueFull
from tests.api import Api
from tests.conftest import ServerProcess

PAYLOADS: list[Any] = [
    {"a": 1},
    "text",
    "",
    None,
    True,
    0,
    -1.5,
    [],
    [1, [2, [3]]],
    {"data": {"payload": 1}},
    {"payload": {"data": 2}, "transactionId": "not an id"},
    {"é\n": "☃"},
]


async def test_what_is_pushed_is_what_comes(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push(PAYLOADS)
    received = await queen.queue(queue).pop(batch=100)
    assert [one.data for one in received] == PAYLOADS


@pytest.mark.parametrize("payload", [{"data": 1}, "text", None, 7, True])
async def test_one_payload_is_one_message(queen: Queen, queue: str, payload: Any) -> None:
    (pushed,) = await queen.queue(queue).push(payload)
    (received,) = await queen.queue(queue).pop()
    assert (received.data, received.transaction_id) == (payload, pushed.transaction_id)
    assert received.id == pushed.message_id


async def test_a_list_of_lists_is_many_lists(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push([[1, 2], [3]])
    await queen.queue(queue).push(Message([4, 5]))
    received = await queen.queue(queue).pop(batch=10)
    assert [one.data for one in received] == [[1, 2], [3], [4, 5]]


async def test_nothing_is_pushed_for_an_empty_list(queen: Queen, queue: str) -> None:
    assert await queen.queue(queue).push([]) == []
    assert await queen.queue(queue).pop(wait_s=0) == []


async def test_what_is_no_json_is_refused_before_it_is_sent(queen: Queen, queue: str) -> None:
    with pytest.raises(TypeError, match="object cannot be JSON"):
        await queen.queue(queue).push([1, object()])
    assert await queen.queue(queue).pop(wait_s=0) == []


def test_a_forked_process_makes_up_ids_of_its_own() -> None:
    """Else what it pushes would be a duplicate of what its parent pushes, and be dropped."""
    program = (
        "import os, queen\n"
        "child = os.fork()\n"
        "os.write(1, queen.Message(1).transaction_id.encode() + b'\\n')\n"
        "child and os.waitpid(child, 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert len(set(done.stdout.split())) == 2


async def test_ids_traces_and_duplicates(queen: Queen, queue: str) -> None:
    trace = "0f8fad5b-d9cb-469f-a165-70867728950e"
    message = Message({"n": 1}, transaction_id="one", trace_id=trace)
    (first,) = await queen.queue(queue).push(message)
    (second,) = await queen.queue(queue).push(message)
    assert (first.status, second.status) == ("queued", "duplicate")
    assert second.is_duplicate and not first.is_duplicate
    (received,) = await queen.queue(queue).pop(batch=10)
    assert (received.transaction_id, received.trace_id) == ("one", trace)


@pytest.mark.parametrize("later", [{"delay": 3600}, {"delay": timedelta(hours=1)}])
async def test_a_delay(queen: Queen, queue: str, later: dict[str, Any]) -> None:
    (pushed,) = await queen.queue(queue).push(Message(1, **later))
    assert pushed.status == "scheduled"
    assert await queen.queue(queue).pop(wait_s=0) == []
    listed = await queen.admin.scheduled(queue)
    assert pushed.transaction_id in str(listed)


async def test_deliver_at(queen: Queen, queue: str) -> None:
    at = datetime.now(UTC) + timedelta(seconds=1)
    await queen.queue(queue).push(Message("late", deliver_at=at))
    (received,) = await queen.queue(queue).pop(wait_s=10)
    assert received.data == "late"
    assert received.created_at >= at


async def test_options_in_both_spellings(queen: Queen, queue: str) -> None:
    builder = queen.queue(queue).namespace("shop").task("bill")
    created = await builder.config({"retryLimit": 7}, lease_time=11).create()
    shown = await queen.admin.queue(queue)
    assert (shown["namespace"], shown["task"]) == ("shop", "bill")
    assert (created["options"]["leaseTime"], created["options"]["retryLimit"]) == (11, 7)


async def test_only_options_that_are_named_change(queen: Queen, queue: str) -> None:
    orders = queen.queue(queue)
    await orders.namespace("shop").config(retry_limit=7, encryption_enabled=True).create()
    again = await orders.config(lease_time=11).create()
    assert again["created"] is False
    assert [change["name"] for change in again["changed"]] == ["leaseTime"]
    await orders.config(retry_limit=None).task("bill").alter()
    options = {option.name: option for option in await orders.options()}
    assert options["encryptionEnabled"].value is True
    assert (options["leaseTime"].value, options["leaseTime"].origin) == (11, "set")
    assert (options["retryLimit"].value, options["retryLimit"].origin) == (3, "default")
    assert options["retryLimit"].meaning
    shown = await queen.admin.queue_options(queue)
    assert (shown["namespace"], shown["task"]) == ("shop", "bill")
    with pytest.raises(BadRequest, match="say false"):
        await orders.config(encryption_enabled=None).alter()
    with pytest.raises(NotFound):
        await queen.queue(f"no-{queue}").config(lease_time=5).alter()


async def test_a_builder_can_be_kept(queen: Queen, queue: str) -> None:
    base = queen.queue(queue)
    await base.partition("a").push("in a")
    await base.push("in default")
    (received,) = await base.partition("a").pop(batch=10)
    assert (received.data, received.partition) == ("in a", "a")


async def test_delete(queen: Queen, queue: str) -> None:
    await queen.queue(queue).create()
    assert await queen.queue(queue).delete() is True
    assert await queen.queue(queue).delete() is False


async def test_a_bulk_push_goes_as_frames(queen: Queen, queue: str) -> None:
    messages = [Message(n, partition=f"p{n % 3}", transaction_id=f"t{n}") for n in range(900)]
    again = Message("again", transaction_id="t0", partition="p0")
    pushed = await queen.queue(queue).push([*messages, again])
    assert [one.transaction_id for one in pushed[:-1]] == [one.transaction_id for one in messages]
    assert [one.status for one in pushed] == ["queued"] * 900 + ["duplicate"]
    for name in ("p0", "p1", "p2"):
        received = await queen.queue(queue).partition(name).pop(batch=1000)
        assert [one.data for one in received] == [n for n in range(900) if f"p{n % 3}" == name]


async def test_the_same_message_twice_in_a_bulk_push(queen: Queen, queue: str) -> None:
    message = Message("one")
    pushed = await queen.queue(queue).push([message, message, *range(300)])
    assert [one.status for one in pushed[:3]] == ["queued", "duplicate", "queued"]


@pytest.mark.parametrize("count", [100, 300])
async def test_a_push_larger_than_a_request_is_parted(queen: Queen, queue: str, count: int) -> None:
    # Together twice what a server takes at once. Repeated text would be squeezed to nothing.
    size = 2 * 64 * 1024 * 1024 // count
    payloads = [str(n) + "x" * size for n in range(count)]
    pushed = await queen.queue(queue).push(payloads)
    assert [one.status for one in pushed] == ["queued"] * count


async def test_a_bad_item_is_named_and_the_others_are_stored(queen: Queen, queue: str) -> None:
    with pytest.raises(BadRequest) as caught:
        await queen.queue(queue).push([1, Message(2, partition="x" * 2000), 3])
    (item,) = caught.value.details["items"]
    assert item["index"] == 1
    assert len(caught.value.details["results"]) == 2
    received = await queen.queue(queue).pop(batch=10)
    assert [one.data for one in received] == [1, 3]


async def test_a_full_queue(server: ServerProcess, queue: str) -> None:
    async with Queen(server.url, retry_s=0) as queen:
        await queen.queue(queue).config(max_size=2).create()
        await queen.queue(queue).push([1, 2])
        with pytest.raises(QueueFull) as caught:
            await queen.queue(queue).push([3])
        assert (caught.value.queue, caught.value.max_size) == (queue, 2)
        assert caught.value.retryable
        assert caught.value.left == 0


async def test_a_full_queue_is_waited_for(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(max_size=1).create()
    await queen.queue(queue).push(1)
    pushing = asyncio.create_task(queen.queue(queue).push(2))
    (one,) = await queen.queue(queue).pop()
    await one.ack()
    await pushing
    (two,) = await queen.queue(queue).pop()
    assert two.data == 2


async def test_a_message_that_is_too_large(server: ServerProcess, queue: str) -> None:
    async with Queen(server.url, retry_s=0) as queen:
        with pytest.raises(PayloadTooLarge):
            await queen.queue(queue).push("x" * (65 * 1024 * 1024))


# ---- pop ----


async def test_pop_waits_for_what_comes(queen: Queen, queue: str) -> None:
    popping = asyncio.create_task(queen.queue(queue).pop(wait_s=20))
    await queen.queue(queue).push("now")
    (received,) = await popping
    assert received.data == "now"


async def test_pop_with_auto_ack_leases_nothing(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push([1, 2])
    received = await queen.queue(queue).pop(auto_ack=True, batch=2)
    assert [one.data for one in received] == [1, 2]
    assert not received[0].lease_id
    assert await queen.queue(queue).pop(wait_s=0) == []


async def test_groups_and_subscription_modes(queen: Queen, queue: str) -> None:
    base = queen.queue(queue)
    await base.push("old")
    assert await base.group("new").subscription_mode("new").pop(wait_s=0) == []
    assert await base.group("now").subscription_from("now").pop(wait_s=0) == []
    await base.push("young")
    for group in ("new", "now"):
        (received,) = await base.group(group).pop(batch=10)
        assert (received.data, received.consumer_group) == ("young", group)
    past = datetime.now(UTC) - timedelta(hours=1)
    received_all = await base.group("past").subscription_from(past).pop(batch=10)
    assert [one.data for one in received_all] == ["old", "young"]
    (first,) = await base.group("all").subscription_mode("all").pop()
    assert first.data == "old"


async def test_several_partitions_in_one_pop(queen: Queen, queue: str) -> None:
    for name in "abc":
        await queen.queue(queue).partition(name).push([name, name])
    received = await queen.queue(queue).partitions(3).pop(batch=10)
    assert sorted(one.data for one in received) == list("aabbcc")
    await queen.ack(received)
    assert await queen.queue(queue).pop(wait_s=0) == []


async def test_a_namespace_and_a_task(queen: Queen, queue: str) -> None:
    await queen.queue(queue).namespace(f"n-{queue}").task("t").create()
    await queen.queue(queue).push("x")
    (received,) = await queen.queue().namespace(f"n-{queue}").task("t").pop()
    assert (received.queue, received.data) == (queue, "x")
    with pytest.raises(ValueError, match="name of a queue"):
        await queen.queue().namespace("n").push(1)


async def test_names_that_need_quoting(queen: Queen, queue: str) -> None:
    odd = queen.queue(f"{queue}/ü ?#%").partition("a/b c").group("g&h=1")
    await odd.push("odd")
    (received,) = await odd.pop()
    assert received.queue == f"{queue}/ü ?#%"
    await received.ack()


# ---- what becomes of it ----


async def test_ack_twice_and_too_late(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(lease_time=2).create()
    await queen.queue(queue).push("x")
    (old,) = await queen.queue(queue).pop()
    (new,) = await queen.queue(queue).pop(wait_s=20)
    assert new.attempt == 2
    with pytest.raises(LeaseLost):
        await old.ack()
    with pytest.raises(LeaseLost):
        await old.renew()
    await new.ack()


async def test_nack_counts_and_give_back_does_not(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(retry_limit=5).create()
    await queen.queue(queue).push("x")
    (one,) = await queen.queue(queue).pop()
    await one.nack("bad day")
    (two,) = await queen.queue(queue).pop()
    assert two.attempt == 2
    await two.give_back()
    (three,) = await queen.queue(queue).pop()
    assert three.attempt == 2
    await three.dead_letter(ValueError("no hope"))
    page = await queen.queue(queue).dlq().get()
    assert (page.total, page.messages[0].error_message) == (1, "ValueError: no hope")


async def test_renew(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config(lease_time=30).create()
    await queen.queue(queue).push("x")
    (one,) = await queen.queue(queue).pop()
    until = await one.renew(600)
    assert until - datetime.now(UTC) > timedelta(seconds=500)
    assert await queen.renew(one.lease_id, 60) > datetime.now(UTC)
    with pytest.raises(LeaseLost):
        await queen.renew("0f8fad5b-d9cb-469f-a165-70867728950e")


async def test_trace(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push("x")
    (one,) = await queen.queue(queue).group("g").pop()
    await one.trace({"step": 1}, names=f"order-{queue}")
    await one.trace({"step": 2}, names=[f"order-{queue}", "b"], event="done")
    told = await queen.admin.traces(one.partition_id, one.transaction_id)
    assert [step["data"] for step in told["traces"]] == [{"step": 1}, {"step": 2}]
    named = await queen.admin.traces_by_name(f"order-{queue}")
    assert named["total"] == 2


# ---- dead letters ----


async def test_dead_letters(queen: Queen, queue: str) -> None:
    group = queen.queue(queue).group("g")
    await group.push([1, 2, 3])
    for error in ("a", "a", "b"):
        (one,) = await group.pop()
        await one.dead_letter(error)
    page = await group.dlq().limit(2).get()
    assert (len(page.messages), page.total) == (2, 3)
    errors = {one["error"]: one["count"] for one in await group.dlq().errors()}
    assert errors == {"a": 2, "b": 1}
    assert await group.dlq().retry([]) == 0
    (letter,) = (await group.dlq().error("b").get()).messages
    assert await group.dlq().retry([letter]) == 1
    (again,) = await group.pop(batch=10)
    assert again.data == 3
    assert await group.dlq().error("a").purge() == 2
    assert (await group.dlq().get()).total == 0


# ---- transactions ----


async def test_a_transaction(queen: Queen, queue: str, api: Api) -> None:
    await queen.queue(queue).push("in")
    (one,) = await queen.queue(queue).pop()
    async with queen.transaction() as transaction:
        transaction.ack(one).push(f"{queue}-out", ["a", "b"])
        transaction.queue(f"{queue}-out").partition("p").push({"data": 1})
    assert await queen.queue(queue).pop(wait_s=0) == []
    assert api.data(f"{queue}-out", partition="p") == [{"data": 1}]
    assert api.data(f"{queue}-out", partition="Default", batch=9) == ["a", "b"]


async def test_a_transaction_that_is_left_by_an_exception(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push("in")
    (one,) = await queen.queue(queue).pop()
    with pytest.raises(ZeroDivisionError):
        async with queen.transaction() as transaction:
            transaction.ack(one).push(f"{queue}-out", "a")
            raise ZeroDivisionError
    assert await queen.queue(f"{queue}-out").pop(wait_s=0) == []
    await one.ack()


async def test_a_transaction_whose_lease_is_lost_pushes_nothing(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push("in")
    (one,) = await queen.queue(queue).pop()
    await one.give_back()
    with pytest.raises(LeaseLost):
        await queen.transaction().ack(one).push(f"{queue}-out", "a").commit()
    assert await queen.queue(f"{queue}-out").pop(wait_s=0) == []


async def test_an_empty_transaction(queen: Queen) -> None:
    async with queen.transaction():
        pass
    with pytest.raises(ValueError, match="no operations"):
        await queen.transaction().commit()


# ---- replay ----


async def test_replay_leaves_out_what_is_deleted_and_copies(queen: Queen, queue: str) -> None:
    before = datetime.now(UTC) - timedelta(minutes=1)
    await (
        queen.queue(queue)
        .partition("a")
        .push([Message(n, transaction_id=f"t{n}") for n in (1, 2, 3)])
    )
    await queen.queue(queue).partition("b").push("b")
    (first,) = await queen.queue(queue).partition("a").group("g").pop()
    await first.dead_letter("x")
    await queen.queue(queue).group("g").dlq().retry()
    await queen.admin.delete_message(first.partition_id, "t2")
    stored = [one async for one in queen.queue(queue).partition("a").replay()]
    assert [(one.data, one.transaction_id) for one in stored] == [(1, "t1"), (3, "t3")]
    assert [(one.queue, one.partition) for one in stored] == [(queue, "a")] * 2
    assert stored[0].offset < stored[1].offset
    everything = [one.data async for one in queen.queue(queue).replay(since=before)]
    assert sorted(map(str, everything)) == ["1", "3", "b"]
    assert [one async for one in queen.queue(queue).replay(until=before)] == []


async def test_replay_can_be_left_in_the_middle(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push(list(range(5000)))
    async for one in queen.queue(queue).replay():
        if one.data == 10:
            break
    assert one.data == 10


async def test_a_push_that_is_larger_than_a_frame_is_replayed(
    api: Api, queen: Queen, queue: str, connection: asyncpg.Connection
) -> None:
    texts = [f"{n}".ljust(1_000_000, "x") for n in range(40)]
    pushed = api.push(*({"queue": queue, "payload": text} for text in texts))
    assert pushed.status == 201
    replayed = [one async for one in queen.queue(queue).replay()]
    assert [one.data for one in replayed] == texts
    assert [one.offset for one in replayed] == list(range(40))
    rows = await connection.fetch(
        "select s.codec, s.body from queen.segments s join queen.queues q on q.id = s.queue_id"
        " where q.name = $1",
        queue,
    )
    assert max(raw_size(row["codec"], row["body"]) for row in rows) <= MAX_RAW_BYTES
    assert [one.data for one in await queen.queue(queue).pop(batch=100)][:5] == texts[:5]


async def test_a_segment_that_was_stored_larger_than_a_frame_is_replayed(
    queen: Queen, queue: str, connection: asyncpg.Connection
) -> None:
    await queen.queue(queue).push([1, 2])
    texts = [letter * 20_000_000 for letter in "ab"]
    codec, body = compress(
        encode_body(segment_of([b"t1", b"t2"], [f'"{text}"'.encode() for text in texts]))
    )
    await connection.execute(
        "update queen.segments set codec = $2, body = $3"
        " where queue_id = (select id from queen.queues where name = $1)",
        queue,
        codec,
        body,
    )
    assert [one.data async for one in queen.queue(queue).replay()] == texts


async def test_replay_of_what_does_not_exist(queen: Queen, queue: str) -> None:
    with pytest.raises(NotFound):
        _ = [one async for one in queen.queue(queue).replay()]
