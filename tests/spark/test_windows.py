"""Windows read in a batch: those of a stream that are closed, and one by its lease."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row

from queen import SyncQueen
from tests.conftest import ServerProcess
from tests.waiting import until

Read = Callable[..., DataFrame]


@pytest.fixture
def stream(server: ServerProcess, queue: str) -> str:
    """Windows of four numbers, a new one after every second number; one of them is done."""
    with SyncQueen(server.url) as queen:
        made = queen.stream(queue).sources(queue).count(4, 2).grace_period(0)
        made.max_in_flight(10).define()
        queen.queue(queue).push(list(range(10)))
        first = queen.consumer(queue, "g").poll_window(10)
        assert first is not None
        first.ack()
    return queue


def test_a_message_is_in_each_of_its_windows(read: Read, stream: str) -> None:
    frame = read(stream=stream)
    numbers = sorted(int(row.data) for row in frame.collect())
    expected = [n for first in range(0, 8, 2) for n in range(first, first + 4)]
    assert numbers == sorted(expected)
    assert frame.columns[-3:] == ["windowStart", "windowEnd", "key"]
    assert {row.key for row in frame.select("key").collect()} == {"__GLOBAL__"}
    assert read("key string", stream=stream).count() == 16


def test_rows_of_many_windows_say_which_one_they_are_in(
    read: Read, server: ServerProcess, queue: str
) -> None:
    """All windows of a task are read in one request, and share segments."""
    keys = [f"k{number}" for number in range(12)]
    with SyncQueen(server.url) as queen:
        made = queen.stream(queue).sources(queue).partitioned().count(2, 1).grace_period(0)
        made.define()
        for key in keys:
            queen.queue(queue).partition(key).push(list(range(5)))
        first = queen.consumer(queue, "g").poll_window(10)
        assert first is not None
        first.ack()
    columns = "data bigint, partition string, offset bigint, key string, windowEnd timestamp"

    def rows() -> list[Row] | None:
        # Windows of other keys may close a moment after the first.
        read_now = read(columns, stream=queue, tasks=2).collect()
        return read_now if len(read_now) >= 8 * len(keys) else None

    found = until(rows)
    assert found is not None
    assert all(row.key == row.partition and row.data == row.offset for row in found)
    numbers = {key: sorted(row.data for row in found if row.key == key) for key in keys}
    assert numbers == {key: [0, 1, 1, 2, 2, 3, 3, 4] for key in keys}


def test_groups_and_times_choose_windows(read: Read, stream: str) -> None:
    done = read("data bigint, windowStart timestamp, windowEnd timestamp", stream=stream, group="g")
    found = done.collect()
    assert sorted(row.data for row in found) == [0, 1, 2, 3]
    assert read(stream=stream, endingTime="2020-01-01T00:00:00Z").count() == 0
    assert read(stream=stream, startingTime="2020-01-01T00:00:00Z").count() == 16
    assert read(stream=stream, startingTime="2999-01-01T00:00:00Z").count() == 0


def test_a_lease_is_read_while_it_lives(read: Read, stream: str, server: ServerProcess) -> None:
    with SyncQueen(server.url) as queen:
        window = queen.consumer(stream, "g").poll_window(10)
        assert window is not None
        frame = read("offset bigint, windowEnd timestamp", lease=window.lease_id, tasks=3)
        assert sorted(row.offset for row in frame.collect()) == [2, 3, 4, 5]
        window.ack()
        with pytest.raises(AnalysisException, match="lease"):
            read(lease=window.lease_id).count()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"stream": "s", "lease": "l"}, "give one of them"),
        ({"stream": "s", "queue": "q"}, "leave option queue out"),
        ({"stream": "nobody"}, "Stream 'nobody' not found"),
        ({"stream": "s", "startingTime": "latest"}, "leave no window"),
    ],
)
def test_what_cannot_be_meant_is_refused(read: Read, options: dict[str, str], reason: str) -> None:
    with pytest.raises(AnalysisException, match=reason):
        read(**options).count()


def test_only_windows_have_window_columns(read: Read, queue: str) -> None:
    with pytest.raises(AnalysisException, match="has no column 'key'"):
        read("key string", queue=queue).count()
