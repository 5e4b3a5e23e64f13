"""Reading queues in a batch: a range of time, cut into tasks of about equal size."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType


def batch_reader(options: dict[str, str], schema: StructType) -> DataSourceReader:
    """Return what reads the queues that the options name."""
    raise NotImplementedError("reading in a batch")
