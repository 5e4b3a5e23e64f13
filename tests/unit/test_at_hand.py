"""Connections at hand: the last one first, none that is broken, and all to the pool when wanted."""

from __future__ import annotations

import asyncpg

from queen.storage.at_hand import AtHand


class Connection:
    def __init__(self) -> None:
        self.closed = False
        self.is_back = False
        self.was_terminated = False

    def is_closed(self) -> bool:
        if self.is_back:
            # What the driver says of one that its pool has taken back.
            raise asyncpg.InterfaceError("released back to the pool")
        return self.closed

    def terminate(self) -> None:
        self.was_terminated = True


def test_the_last_that_was_left_is_taken_first() -> None:
    at_hand: AtHand[Connection] = AtHand()
    first, last = Connection(), Connection()
    assert at_hand.keep(first) and at_hand.keep(last)
    assert at_hand.take() is last
    assert at_hand.take() is first
    assert at_hand.take() is None


def test_one_that_broke_meanwhile_is_not_given() -> None:
    at_hand: AtHand[Connection] = AtHand()
    sound, broken, gone = Connection(), Connection(), Connection()
    for connection in (sound, broken, gone):
        at_hand.keep(connection)
    broken.closed = gone.is_back = True
    assert at_hand.take() is sound
    # The pool learns of it, or would count it as in use for ever.
    assert broken.was_terminated
    assert at_hand.take() is None


def test_nothing_is_kept_while_somebody_waits_at_the_pool() -> None:
    at_hand: AtHand[Connection] = AtHand()
    at_hand.wanted = 1
    assert not at_hand.keep(Connection())
    at_hand.wanted = 0
    assert at_hand.keep(Connection())


def test_the_pool_sees_each_of_them_now_and_then() -> None:
    at_hand: AtHand[Connection] = AtHand()
    connection = Connection()
    kept = []
    for _ in range(2000):
        kept.append(at_hand.keep(connection))
        at_hand.take()
    assert kept.count(False) == 2
