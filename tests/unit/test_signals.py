"""What servers tell each other: all of it, in as many notifications as it takes."""

from __future__ import annotations

from typing import Any

import pytest

from queen.core.options import QueueOptions
from queen.errors import Unavailable
from queen.service.catalog import Partition, Queue
from queen.service.events import Events
from queen.service.signals import MAX_BYTES, Signals

LARGE = 2**31 - 10_000


def signals(database: Any = None, events: Events | None = None) -> Signals:
    nobody: Any = None
    return Signals(database, nobody, nobody, nobody, nobody, events or Events())


def said(sender: Signals) -> list[str]:
    """Everything it has to say, payload by payload."""
    words: list[str] = []
    while sender._wake.is_set():
        sender._wake.clear()
        payload, _ = sender._payload()
        assert len(payload.encode()) <= MAX_BYTES
        _, *some = payload.split(" ")
        words += some
    return words


def partition(number: int) -> Partition:
    queue = Queue(LARGE + number, f"q{number}", "", "", QueueOptions())
    return Partition(2**59 + number, queue, "p", 2**60)


def test_many_queues_are_told_in_several_notifications() -> None:
    sender = signals()
    sender.written([partition(number) for number in range(3000)])
    assert sorted(said(sender)) == sorted(f"l{LARGE + number}" for number in range(3000))


def test_long_numbers_leave_room_for_everything_else() -> None:
    sender = signals()
    written = [partition(number) for number in range(100)]
    sender.written(written)
    for one in written:
        sender.released(one, LARGE)
    for number in range(500):
        sender.group_moved(LARGE + number, LARGE)
    sender.options_changed()
    sender.maintenance_turned()
    words = said(sender)
    assert len([word for word in words if word.startswith("w")]) == 100
    assert len([word for word in words if word.startswith("r")]) == 100
    assert len([word for word in words if word.startswith("s")]) == 500
    assert {"c", "m"} <= set(words)


class Refusing:
    """A database that is away at first."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.told: list[str] = []

    async def fetchval(self, _name: str, payload: str, _id: int | None, _matters: bool) -> bool:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable
        self.told.append(payload.split(" ", 1)[1])
        raise _Enough


class _Enough(Exception):
    pass


async def test_what_could_not_be_sent_is_sent_later() -> None:
    database = Refusing(2)
    sender = signals(database)
    sender.group_moved(1, 2)
    sender.released(partition(0), 7)
    with pytest.raises(_Enough):
        await sender.run_sender()
    assert database.told == [f"s1:2 r{2**59}:7"]


async def test_a_word_that_cannot_be_followed_does_not_keep_the_others() -> None:
    events = Events()
    receiver = signals(events=events)
    heard: list[int] = []
    events.windows_elsewhere.subscribe(heard.append)
    await receiver._act(["w1:2", "", "sx:y", "p7", "p8"])
    assert heard == [7, 8]
