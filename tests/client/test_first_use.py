"""Without asyncio: filters of dead letters, and the epoch of a lease."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from queen import SyncQueen
from tests.conftest import ServerProcess


def test_filters_without_asyncio(server: ServerProcess, queue: str) -> None:
    with SyncQueen(server.url) as queen:
        letters = queen.queue(queue).group("g")
        letters.push([1, 2, 3])
        for message, error in zip(letters.pop(batch=3), ("a", "b", "b"), strict=True):
            message.dead_letter(error)
        everything = letters.dlq()
        assert everything.error("b").get().total == 2
        assert len(everything.limit(1).get().messages) == 1
        assert [one.data for one in everything.limit(1).offset(2).get().messages] == [1]
        hour = timedelta(hours=1)
        now = datetime.now(UTC)
        assert everything.since(now + hour).get().total == 0
        assert everything.since(now - hour).until(now + hour).get().total == 3
        assert everything.error("a").purge() == 1
        assert everything.get().total == 2


def test_a_message_has_the_epoch_of_its_lease(server: ServerProcess, queue: str) -> None:
    with SyncQueen(server.url) as queen:
        reader = queen.queue(queue).group("g")
        queen.queue(queue).partition("p").push(["x", "y"])
        queen.queue(queue).partition("q").push(["x"])
        (first,) = reader.partition("p").pop()
        first.give_back()
        both = reader.partition("p").pop(batch=2)
        assert [one.epoch for one in both] == [first.epoch + 1] * 2
        (other,) = reader.partition("q").pop()
        assert other.epoch == first.epoch > 0
