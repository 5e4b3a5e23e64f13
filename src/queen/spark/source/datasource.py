"""`format("queen")`: what Spark asks for readers and writers.

Each of them lives in a module of its own, loaded when it is needed, because every task
unpickles one of them in a process of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


class QueenDataSource(DataSource):
    """Queues as DataFrames. The names of its methods and arguments are Spark's."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        # A plain dictionary, in lower case: Spark's own mapping does not travel well.
        self._options = {str(key).lower(): str(value) for key, value in options.items()}

    @classmethod
    def name(cls) -> str:
        return "queen"

    def schema(self) -> StructType:
        from queen.spark.arrow.columns import default_schema

        return default_schema(self._options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from queen.spark.source.batch import batch_reader

        return batch_reader(self._options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from queen.spark.source.streaming import RefusedReader, stream_reader

        try:
            return stream_reader(self._options, schema)
        except ValueError as error:
            return RefusedReader(str(error))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from queen.spark.sink.sink import batch_writer

        return batch_writer(self._options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from queen.spark.sink.sink import stream_writer

        return stream_writer(self._options, schema, overwrite)
