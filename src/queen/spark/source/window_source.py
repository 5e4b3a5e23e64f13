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
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import msgspec
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from queen.spark.broker import Broker
from queen.spark.options import EARLIEST, microseconds, text_of, times_of
from queen.spark.source.planning import (
    Planner,
    WindowRange,
    offsets_of,
    selection_of,
    split_ranges,
)
from queen.spark.source.slices import SliceTask, WindowLabel, read_partition
from queen.wire.cuts import Range

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


class WindowReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        if "stream" in options and "lease" in options:
            raise ValueError("option lease names one window, option stream all: give one of them")
        self._options = options
        self._schema = schema
        self._planner = Planner(selection_of(options, must_be_whole=False))

    def partitions(self) -> list[InputPartition]:
        windows = list(_windows(self._planner.broker, self._options))
        total = sum(window.messages for window in windows)
        each = max(total // self._planner.selection.tasks, _TASK_MESSAGES)
        tasks: list[InputPartition] = []
        ranges: list[Range] = []
        labels: list[WindowLabel] = []
        size = 0
        for window in windows:
            label = WindowLabel(window.key, microseconds(window.start), microseconds(window.end))
            for part in split_ranges(offsets_of(window.ranges), each):
                ranges.append(part)
                labels.append(label)
                size += part.toOffset - part.fromOffset
                if size >= each:
                    tasks.append(self._task(ranges, labels, size))
                    ranges, labels, size = [], [], 0
        return [*tasks, self._task(ranges, labels, size)] if ranges else tasks

    def _task(self, ranges: list[Range], labels: list[WindowLabel], messages: int) -> SliceTask:
        task = SliceTask(self._planner.selection.address, ranges, messages)
        task.must_be_whole = self._planner.selection.must_be_whole
        task.windows = labels
        return task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._schema)


def _windows(broker: Broker, options: Mapping[str, str]) -> Iterator[_Window]:
    if "lease" in options:
        parameters = urlencode({"leaseId": options["lease"]})
        yield _window.decode(broker.call("GET", f"/api/v1/stream/window?{parameters}"))
        return
    path = f"/api/v1/resources/streams/{quote(options['stream'], safe='')}/ranges"
    page_parameters = {"limit": str(_PAGE), **_bounds(options)}
    while True:
        page = _page.decode(broker.call("GET", f"{path}?{urlencode(page_parameters)}"))
        yield from page.windows
        if page.next is None:
            return
        page_parameters["after"] = page.next


def _bounds(options: Mapping[str, str]) -> dict[str, str]:
    bounds = {"group": options["group"]} if options.get("group") else {}
    since, until = times_of(options)
    if since == "latest":
        raise ValueError("options startingTime and endingTime leave no window to read")
    if isinstance(since, int) and since > EARLIEST:
        bounds["fromTime"] = text_of(since)
    if isinstance(until, int):
        bounds["toTime"] = text_of(until)
    return bounds
