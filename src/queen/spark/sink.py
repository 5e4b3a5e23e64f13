"""Writing DataFrames into queues."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType


def batch_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return what writes a DataFrame once."""
    raise NotImplementedError("writing in a batch")


def stream_writer(
    options: dict[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """Return what writes each micro-batch of a query."""
    raise NotImplementedError("writing as a stream")
