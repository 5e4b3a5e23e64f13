"""One task: connections that break, windows by their offsets, and what a sample tells."""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

import queen.spark
from queen.core.frame import compress, encode_body, segment_of
from queen.errors import HistoryGone, NotFound
from queen.spark.broker import Broker, address_of
from queen.spark.options import EARLIEST
from queen.spark.source import slices
from queen.spark.source.planning import Planner, selection_of
from queen.spark.source.slices import SliceTask, WindowLabel, read_slice
from queen.wire.cuts import Range
from tests.api import Api
from tests.conftest import ServerProcess
from tests.spark.test_batch import push

Read = Callable[..., DataFrame]

PLACED = StructType([]).add("partition", "string").add("offset", "long").add("data", "string")
PLACED = PLACED.add("createdAt", "timestamp")
ROWS = StructType().add("offset", "long").add("data", "string")


class Brittle:
    """A way to a server on which every connection breaks after so many bytes of answers."""

    def __init__(self, port: int, broken_after: int) -> None:
        self._to, self._bytes = port, broken_after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            far = socket.create_connection(("127.0.0.1", self._to))
            threading.Thread(target=self._pump, args=(near, far, 2**40), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, self._bytes), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, left: int) -> None:
        with suppress(OSError):
            while left > 0 and (data := source.recv(min(left, 65536))):
                target.sendall(data)
                left -= len(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.fixture
def brittle(server: ServerProcess) -> Iterator[Brittle]:
    opened = Brittle(server.port, 300_000)
    yield opened
    opened.close()


def planned(url: str, queue: str, **options: str) -> tuple[Planner, Any, dict[str, int]]:
    chosen = selection_of({"url": url, "queue": queue, **options}, must_be_whole=True)
    planner = Planner(chosen)
    since = {queue: EARLIEST}
    return planner, planner.plan(since, planner.cut().sealed), since


@pytest.mark.parametrize("partition", [{}, {"partition": "Default"}])
def test_a_slice_goes_on_where_its_connection_broke(
    api: Api, queue: str, brittle: Brittle, partition: dict[str, str]
) -> None:
    # Of random text, so that it is as large on the wire as it is here.
    texts = ["".join(uuid.uuid4().hex for _ in range(300)) for _ in range(200)]
    for first in range(0, 200, 20):
        push(api, queue, *texts[first : first + 20])
    planner, plan, since = planned(brittle.url, queue, tasks="1", **partition)
    (task,) = planner.tasks(plan, since)
    rows = [row for batch in read_slice(task, ROWS) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(200))
    assert [json.loads(row["data"]) for row in rows] == texts
    assert brittle.connections > 2


@pytest.mark.parametrize("partition", [{}, {"partition": "b"}])
def test_a_slice_of_small_segments_goes_on_where_its_connection_broke(
    api: Api, queue: str, brittle: Brittle, partition: dict[str, str]
) -> None:
    texts: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    for number in range(900):
        name = "abcbb"[number % 5]
        texts[name].append("".join(uuid.uuid4().hex for _ in range(50)))
        push(api, queue, texts[name][-1], partition=name)
    planner, plan, since = planned(brittle.url, queue, tasks="1", **partition)
    (task,) = planner.tasks(plan, since)
    rows = [row for batch in read_slice(task, PLACED) for row in batch.to_pylist()]
    read = {name: [row for row in rows if row["partition"] == name] for name in texts}
    for name in partition.values() or texts:
        assert [row["offset"] for row in read[name]] == list(range(len(texts[name])))
        assert [json.loads(row["data"]) for row in read[name]] == texts[name]
    times = [row["createdAt"] for row in rows]
    assert times == sorted(times)
    assert len(set(times)) == len(rows) == plan.messages
    assert brittle.connections > 2


async def test_a_segment_that_was_stored_larger_than_a_frame_is_read(
    api: Api, queue: str, server: ServerProcess, connection: asyncpg.Connection
) -> None:
    push(api, queue, 1, 2)
    texts = [letter * 20_000_000 for letter in "ab"]
    body = encode_body(segment_of([b"t1", b"t2"], [f'"{text}"'.encode() for text in texts]))
    await connection.execute(
        "update queen.segments set codec = $2, body = $3"
        " where queue_id = (select id from queen.queues where name = $1)",
        queue,
        *compress(body),
    )
    planner, plan, since = planned(server.url, queue)
    (task,) = planner.tasks(plan, since)
    rows = [row for batch in read_slice(task, ROWS) for row in batch.to_pylist()]
    assert [json.loads(row["data"]) for row in rows] == texts


def test_what_was_removed_after_planning_is_noticed(
    api: Api, queue: str, server: ServerProcess
) -> None:
    push(api, queue, 1, 2, 3)
    planner, plan, since = planned(server.url, queue)
    (task,) = planner.tasks(plan, since)
    assert api.call("DELETE", f"/api/v1/queues/{queue}/clear").status == 200
    with pytest.raises(HistoryGone, match="3 messages were removed"):
        list(read_slice(task, ROWS))


def test_a_reader_that_stops_early_leaves_no_thread(
    api: Api, queue: str, server: ServerProcess
) -> None:
    push(api, queue, *range(10))
    planner, plan, since = planned(server.url, queue)
    (task,) = planner.tasks(plan, since)
    reading = read_slice(task, ROWS)
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    fetching = [one for one in threading.enumerate() if one.name == "queen-fetch"]
    for thread in fetching:
        thread.join(timeout=5)
    assert not any(thread.is_alive() for thread in fetching)


def test_a_window_is_read_by_its_offsets(api: Api, read: Read, queue: str) -> None:
    first = push(api, queue, *range(10), partition="a")[0]["partition_id"]
    second = push(api, queue, *range(10, 15), partition="b")[0]["partition_id"]
    ranges = [
        {"queue": queue, "partition": "a", "partitionId": first, "from": 2, "to": 5},
        {"queue": queue, "partition": "b", "partitionId": second, "from": 0, "to": 5},
    ]
    rows = read("data BIGINT", ranges=json.dumps(ranges)).collect()
    assert sorted(row.data for row in rows) == [2, 3, 4, *range(10, 15)]


def test_a_large_window_is_cut_into_tasks(queue: str) -> None:
    from queen.spark.source.planning import ranges_of

    text = json.dumps([{"queue": queue, "partitionId": "x", "from": 10, "to": 30_010}])
    planner = Planner(selection_of({"queue": queue, "tasks": "4"}, must_be_whole=True))
    tasks = planner.tasks_of_ranges(ranges_of(text))
    assert [task.messages for task in tasks] == [7500] * 4
    assert json.loads(tasks[1].ranges_json)[0]["fromOffset"] == 7510


def test_a_window_over_many_partitions_is_read_in_several_requests(
    api: Api, queue: str, brittle: Brittle, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    stream = Broker.stream

    def noted(self: Broker, method: str, path: str, body: bytes, accept: str) -> Iterator[bytes]:
        asked.append(len(json.loads(body)["ranges"]))
        return stream(self, method, path, body, accept)

    monkeypatch.setattr(slices, "_REQUEST_RANGES", 2)
    monkeypatch.setattr(Broker, "stream", noted)
    # Two of them are more than a connection lives for.
    texts = ["".join(uuid.uuid4().hex for _ in range(600)) for _ in range(10)]
    ranges = []
    for name in "abcde":
        found = push(api, queue, *texts, partition=name)[0]["partition_id"]
        ranges.append(Range(queue, partitionId=found, fromOffset=1, toOffset=10))
    task = SliceTask(address_of({"url": brittle.url}), ranges, 45)
    task.windows = [WindowLabel(name, 0, 1) for name in "abcde"]
    schema = StructType().add("key", "string").add("offset", "long")
    rows = [row for batch in read_slice(task, schema) for row in batch.to_pylist()]
    assert rows == [{"key": name, "offset": at} for name in "abcde" for at in range(1, 10)]
    assert max(asked) == 2
    assert len(asked) > 3


def test_queues_are_named_by_commas_or_as_json() -> None:
    def queues(text: str) -> tuple[str, ...]:
        return selection_of({"queue": text}, must_be_whole=True).queues

    assert queues(" a, b,a") == ("a", "b")
    assert queues('["a,b", " c ", "a,b"]') == ("a,b", " c ")
    with pytest.raises(ValueError, match="option queue: a name, or a list"):
        queues('["a", 1]')


# ---- a sample ----


def test_a_schema_is_proposed_that_fits(
    api: Api, read: Read, server: ServerProcess, queue: str
) -> None:
    push(
        api,
        queue,
        {"id": 1, "price": 1, "at": "2026-01-02T03:04:05Z", "day": "2026-01-02", "odd name": True,
         "items": [{"sku": "a", "n": 1}], "none": None, "mixed": 1, "empty": {}},
        {"id": 2, "price": 2.5, "at": "2026-01-02T03:04:05.5Z", "day": "2026-01-03",
         "items": [], "mixed": {"x": 1}, "name": "Ada"},
    )  # fmt: skip
    found = queen.spark.infer(queue, url=server.url)
    assert found.messages == 2
    assert found.left_out == ["data.mixed", "data.empty"]
    assert found.ddl.endswith(
        "data STRUCT<id: BIGINT, price: DOUBLE, at: TIMESTAMP, day: DATE, `odd name`: BOOLEAN, "
        "items: ARRAY<STRUCT<sku: STRING, n: BIGINT>>, none: STRING, name: STRING>, "
        "_corrupt STRING"
    )
    frame = read(found.ddl, queue=queue)
    assert frame.schema == found.schema
    rows = frame.orderBy("offset").collect()
    assert [row._corrupt for row in rows] == [None, None]
    assert (rows[0].data["odd name"], rows[1].data.price) == (True, 2.5)


@pytest.mark.parametrize(
    ("payloads", "kind"),
    [
        ([], "STRING"),
        ([1, "x"], "STRING"),
        ([1, None, 2], "BIGINT"),
        ([2**70], "DOUBLE"),
        ([[1], []], "ARRAY<BIGINT>"),
        ([{}], "STRING"),
    ],
)
def test_payloads_of_any_kind_have_a_schema(
    api: Api, server: ServerProcess, queue: str, payloads: list[Any], kind: str
) -> None:
    api.configure(queue)
    if payloads:
        push(api, queue, *payloads)
    assert f"data {kind}, _corrupt" in queen.spark.infer(queue, url=server.url).ddl


def test_an_unknown_queue_has_none(server: ServerProcess, queue: str) -> None:
    with pytest.raises(NotFound, match="queen queue list"):
        queen.spark.infer(queue, url=server.url)
