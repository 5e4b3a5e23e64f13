"""Reading queues as a stream: the offset of a query is the sealed time."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType


def stream_reader(options: dict[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return what reads the queues that the options name."""
    raise NotImplementedError("reading as a stream")
