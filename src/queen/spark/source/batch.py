"""Reading queues in a batch: a range of time, cut into tasks of about equal size.

Options choose what is fetched; filters do not. Spark 4.3 would push them down, but it keeps the
reader of a DataFrame with the filters of one query and uses it for the next, so that
`frame.where("partition = 'a'")` followed by `frame.count()` counts too few. A DataFrame stays as
it was when it was first used for the same reason: load it again to see what came since.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from queen.spark.arrow.columns import check_schema, has_windows
from queen.spark.options import EARLIEST, Use, check_options, times_of
from queen.spark.source.planning import Planner, ranges_of, selection_of
from queen.spark.source.slices import read_partition
from queen.spark.source.window_source import WindowReader

if TYPE_CHECKING:
    import pyarrow as pa


def batch_reader(options: dict[str, str], schema: StructType) -> DataSourceReader:
    """Return what reads the queues that the options name."""
    if has_windows(options) and "queue" in options:
        raise ValueError("a window knows its queues: leave option queue out")
    check_options(options, Use.WINDOW_READ if has_windows(options) else Use.BATCH_READ)
    check_schema(schema, options)
    if has_windows(options):
        return WindowReader(options, schema)
    if "sealed" in schema.names:
        raise ValueError("option markers is for streams: a batch has no sealed time to tell")
    return BatchReader(options, schema)


class BatchReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._schema = schema
        self._selection = selection_of(options, must_be_whole=False)
        self._since, self._until = times_of(options)
        # One window, by the offsets of its messages, as its lease names them.
        self._ranges = ranges_of(options["ranges"]) if "ranges" in options else None

    def partitions(self) -> list[InputPartition]:
        planner = Planner(self._selection)
        if self._ranges is not None:
            return list(planner.tasks_of_ranges(self._ranges))
        cut = planner.cut()
        sealed, queues = cut.sealed, [queue.queue for queue in cut.queues]
        until = min(_instant(self._until, sealed, sealed), sealed)
        start = _instant(self._since, EARLIEST, sealed)
        since = dict.fromkeys(queues, start)
        plan = planner.plan(since, until)
        if plan.unknown:
            names = ", ".join(repr(queue) for queue in queues)
            raise ValueError(f"option partition: {names} has no partition {plan.unknown[0]!r}")
        return list(planner.tasks(plan, since))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._schema)


def _instant(given: int | str | None, default: int, sealed: int) -> int:
    """Return what a time in the options means at this moment."""
    if isinstance(given, int):
        return given
    return {"earliest": EARLIEST, "latest": sealed}.get(given or "", default)
