"""Windows in a batch: one that is leased, or those of a stream that are closed.

    spark.read.format("queen").option("stream", "visits").load()      all closed windows
    spark.read.format("queen").option("lease", window.lease_id).load()     one

A row stands in each window that it belongs to, and says which one it is: `windowStart`,
`windowEnd` and `key`. What lies in a closed window never changes, so it is read by offsets, in
as many tasks as its size deserves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from queen.spark.broker import Broker
from queen.spark.columns import WINDOW_COLUMNS
from queen.spark.planning import (
    EARLIEST,
    Planner,
    WindowRange,
    microseconds,
    offsets_of,
    selection_of,
    text_of,
    time_of,
)
from queen.spark.slices import SliceTask, read_slice

if TYPE_CHECKING:
    import pyarrow as pa

_PAGE = 1000
# Of small windows a task reads many.
_TASK_MESSAGES = 5000


class _Window(msgspec.Struct):
    key: str
    start: datetime
    end: datetime
    messages: int
    ranges: list[WindowRange]


class _Page(msgspec.Struct):
    windows: list[_Window]
    next: str | None = None


_window = msgspec.json.Decoder(_Window)
_page = msgspec.json.Decoder(_Page)


class Part(NamedTuple):
    """A window, or a piece of one."""

    key: str
    start_us: int
    end_us: int
    slice: SliceTask


class WindowTask(InputPartition):
    """What a task has to read."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts

    def __repr__(self) -> str:
        return f"WindowTask(windows={len(self.parts)})"


class WindowReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        if "stream" in options and "lease" in options:
            raise ValueError("option lease names one window, option stream all: give one of them")
        if "queue" in options:
            raise ValueError("a window knows its queues: leave option queue out")
        self._options = options
        self._schema = schema
        self._planner = Planner(selection_of(options, must_be_whole=False))

    def partitions(self) -> list[InputPartition]:
        planner = self._planner
        windows = list(_windows(planner.broker, self._options))
        total = sum(one.messages for one in windows)
        each = max(total // planner.selection.tasks, _TASK_MESSAGES)
        made: list[InputPartition] = []
        parts: list[Part] = []
        size = 0
        for window in windows:
            times = microseconds(window.start), microseconds(window.end)
            for slice_task in planner.parts(offsets_of(window.ranges)):
                parts.append(Part(window.key, *times, slice_task))
                size += slice_task.messages
                if size >= each:
                    made.append(WindowTask(parts))
                    parts, size = [], 0
        return [*made, WindowTask(parts)] if parts else made

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, WindowTask):
            for part in partition.parts:
                yield from _rows(part, self._schema)


def _windows(broker: Broker, options: Mapping[str, str]) -> Iterator[_Window]:
    if "lease" in options:
        query = urlencode({"leaseId": options["lease"]})
        yield _window.decode(broker.call("GET", f"/api/v1/stream/window?{query}"))
        return
    path = f"/api/v1/resources/streams/{quote(options['stream'], safe='')}/ranges"
    query_of = {"limit": str(_PAGE), **_bounds(options)}
    while True:
        page = _page.decode(broker.call("GET", f"{path}?{urlencode(query_of)}"))
        yield from page.windows
        if page.next is None:
            return
        query_of["after"] = page.next


def _bounds(options: Mapping[str, str]) -> dict[str, str]:
    bounds = {"group": options["group"]} if options.get("group") else {}
    since, until = time_of(options, "startingTime"), time_of(options, "endingTime")
    if since == "latest" or until == "earliest":
        raise ValueError("options startingTime and endingTime leave no window to read")
    if isinstance(since, int) and since > EARLIEST:
        bounds["fromTime"] = text_of(since)
    if isinstance(until, int):
        bounds["toTime"] = text_of(until)
    return bounds


def _rows(part: Part, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a window, with the window."""
    import pyarrow as pa

    inner = StructType([field for field in schema.fields if field.name not in WINDOW_COLUMNS])
    if not inner.fields:
        # Something must say how many there are.
        inner = StructType().add("offset", "long")
    wanted = to_arrow_schema(schema, timezone="UTC")
    about = {"windowStart": part.start_us, "windowEnd": part.end_us, "key": part.key}
    for batch in read_slice(part.slice, inner):
        columns = [
            pa.repeat(pa.scalar(about[field.name], field.type), batch.num_rows)
            if field.name in about
            else batch.column(field.name)
            for field in wanted
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)
