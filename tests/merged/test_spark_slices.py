"""Tasks of Spark read merged segments as they lie, over connections that break."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from pyspark.sql.types import StructType

from queen.core.frame import Frame
from queen.core.visibility import ONLY_GROUP
from queen.errors import Unavailable
from queen.spark.arrow.columns import RAW
from queen.spark.broker import Broker
from queen.spark.options import EARLIEST
from queen.spark.source import slices
from queen.spark.source.planning import Planner, selection_of
from queen.spark.source.slices import read_slice
from queen.wire.cuts import SliceRequest
from queen.wire.frames.joined_frame import LaidFrame
from tests.conftest import ServerProcess
from tests.merged.answers import same
from tests.merged.conftest import Merge, Write
from tests.merged.history import History

_SCHEMA = StructType([]).add("partition", "string").add("offset", "long").add(RAW, "string")
_ALL = 10**9


class Row(NamedTuple):
    partition: str
    offset: int
    payload: str


class Watched:
    """Frames of a broker, of some of which a connection breaks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rng: random.Random | None = None
        self.kinds: set[type[Frame]] = set()
        self.breaks = 0
        self._ask = slices._request_frames
        monkeypatch.setattr(slices, "_request_frames", self._request)
        # It is luck how far it comes.
        monkeypatch.setattr(slices, "_TRIES", 1000)

    def _request(self, broker: Broker, asked: SliceRequest) -> Iterator[list[Frame]]:
        left = self.rng.choice([0, 1, 2, 5, 100, 300]) if self.rng else _ALL
        for frames in self._ask(broker, asked):
            for frame in frames:
                if not left:
                    self.breaks += 1
                    raise Unavailable("the connection broke")
                left -= 1
                self.kinds.add(type(frame))
                yield [frame]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def read(server: ServerProcess, queue: str, tasks: int, **options: str) -> list[Row]:
    chosen = selection_of(
        {"url": server.url, "queue": queue, "tasks": str(tasks), **options}, must_be_whole=True
    )
    planner, since = Planner(chosen), {queue: EARLIEST}
    rows = [
        Row(*row.values())
        for task in planner.tasks(planner.plan(since, planner.cut().sealed), since)
        for batch in read_slice(task, _SCHEMA)
        for row in batch.to_pylist()
    ]
    for name in {row.partition for row in rows}:
        offsets = [row.offset for row in rows if row.partition == name]
        assert offsets == sorted(offsets), f"{name} is out of its order"
    return sorted(rows)


def shown(history: History) -> list[Row]:
    return sorted(
        Row(told.partition, told.offset, told.payload.decode().rstrip("\n"))
        for told in history.messages()
        if ONLY_GROUP not in told.extras
    )


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("options", [{}, {"partition": "p1"}], ids=["queue", "partition"])
async def test_tasks_read_what_was_written(
    server: ServerProcess,
    write: Write,
    merge: Merge,
    watched: Watched,
    rng: random.Random,
    tasks: int,
    options: dict[str, str],
) -> None:
    history = await write(partitions=3, stretches=2500, gaps_us=[900, 40_000], large=1)
    wanted = [
        row for row in shown(history) if row.partition == options.get("partition", row.partition)
    ]
    same(read(server, history.queue, tasks, **options), wanted, "before")
    await merge(history.queue)
    same(read(server, history.queue, tasks, **options), wanted, "after")
    assert LaidFrame in watched.kinds
    watched.rng = rng
    same(read(server, history.queue, tasks, **options), wanted, "over broken connections")
    assert watched.breaks > 0
