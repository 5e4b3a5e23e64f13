"""Expectations hold when they should, wait when they must, and say what is there."""

from __future__ import annotations

import asyncio

import pytest

from queen import Message, Queen, SyncQueen
from queen.testing import expect


async def test_pending_counts_what_a_group_has_not_done(queen: Queen, queue_name: str) -> None:
    queue = queen.queue(queue_name)
    await queue.push([{"n": n} for n in range(3)])
    await expect(queen, queue_name).to_have(pending=3, total=3, group="billing")
    messages = await queue.group("billing").pop(wait_s=20, batch=2)
    await expect(queen, queue_name).to_have(pending=3, group="billing")
    await queen.ack(messages)
    await expect(queen, queue_name).to_have(pending=1, total=3, group="billing")
    await expect(queen, queue_name).to_have(pending=3, group="another")


async def test_a_queue_that_does_not_exist_is_empty(queen: Queen, queue_name: str) -> None:
    await expect(queen, queue_name).to_be_empty(group="billing")
    assert await expect(queen, queue_name).messages() == []


async def test_an_expectation_waits_for_what_comes_later(queen: Queen, queue_name: str) -> None:
    waiting = asyncio.create_task(expect(queen, queue_name).messages(2))
    await expect(queen, queue_name).to_have(total=0)
    assert not waiting.done()
    await queen.queue(queue_name).push(["a", "b"])
    assert await waiting == ["a", "b"]


async def test_messages_come_in_the_order_they_were_written(queen: Queen, queue_name: str) -> None:
    for n in range(6):
        await queen.queue(queue_name).partition(f"p{n % 2}").push({"n": n})
    assert await expect(queen, queue_name).messages() == [{"n": n} for n in range(6)]
    odd = await expect(queen, queue_name).messages(partition="p1")
    assert odd == [{"n": 1}, {"n": 3}, {"n": 5}]


async def test_dead_letters_are_told_apart_by_their_error(queen: Queen, queue_name: str) -> None:
    queue = queen.queue(queue_name).group("billing")
    await queue.push([{"n": 1}, {"n": 2}])
    first, second = await queue.pop(wait_s=20, batch=2)
    await first.dead_letter(ValueError("no total"))
    await second.dead_letter("no customer")
    await expect(queen, queue_name).to_have_dead_letters(2)
    (letter,) = await expect(queen, queue_name).to_have_dead_letters(
        1, error="no total", group="billing"
    )
    assert letter.data == {"n": 1}
    await expect(queen, queue_name).to_have_dead_letters(0, group="another")


async def test_a_failure_shows_what_is_there(queen: Queen, queue_name: str) -> None:
    queue = queen.queue(queue_name).group("billing")
    await queue.push([{"n": n} for n in range(12)])
    await queue.push(Message({"later": True}, delay=3600))
    first, _second = await queue.pop(wait_s=20, batch=2)
    await first.dead_letter("no total")
    with pytest.raises(AssertionError) as failed:
        await expect(queen, queue_name, timeout_s=0.1).to_be_empty(group="billing")
    text = str(failed.value)
    assert f"queue {queue_name!r}: expected pending=0 of group 'billing', found pending=11" in text
    assert "stored: 12 messages, scheduled: 1" in text
    assert "Default[0] {'n': 0}" in text
    assert "and 2 more" in text
    assert "Default: done 1 of 12, leased" in text
    assert "billing: 'no total' {'n': 0}" in text


async def test_a_failure_names_a_group_that_never_came(queen: Queen, queue_name: str) -> None:
    await queen.queue(queue_name).push({"n": 1})
    with pytest.raises(AssertionError, match="'billing': has never asked for messages"):
        await expect(queen, queue_name, timeout_s=0).to_be_empty(group="billing")
    with pytest.raises(AssertionError, match="expected 2 messages, found 1"):
        await expect(queen, queue_name, timeout_s=0).messages(2)
    with pytest.raises(AssertionError, match="expected 1 dead letters with the error 'x'"):
        await expect(queen, queue_name, timeout_s=0).to_have_dead_letters(1, error="x")


async def test_nothing_expected_is_a_mistake(queen: Queen, queue_name: str) -> None:
    with pytest.raises(TypeError):
        await expect(queen, queue_name).to_have(group="billing")


def test_expectations_without_asyncio(sync_queen: SyncQueen, queue_name: str) -> None:
    queue = sync_queen.queue(queue_name).group("billing")
    queue.push([{"n": 1}, {"n": 2}])
    expected = expect(sync_queen, queue_name, timeout_s=0.1)
    assert expected.messages(2) == [{"n": 1}, {"n": 2}]
    first, second = queue.pop(wait_s=20, batch=2)
    first.ack()
    second.dead_letter("no total")
    expected.to_be_empty(group="billing")
    assert expected.to_have_dead_letters(1, error="no total")[0].data == {"n": 2}
    with pytest.raises(AssertionError, match="expected total=3, found total=2"):
        expected.to_have(total=3)
