"""One Spark session for all tests: it takes seconds to start and nothing to share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from queen import SyncQueen
from queen.spark import session
from tests.conftest import ServerProcess
from tests.long import IS_LONG

# The most used.
_FUNCTIONS = ("coalesce", "col", "count", "count_if", "expr", "lit", "struct", "when", "window")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test waits for Spark to start, and each first query for Spark to warm up."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of all tests, as `queen.spark.session` makes it."""
    with warnings.catch_warnings():
        # Sockets of Spark's own, closed when Python gets to it.
        warnings.simplefilter("ignore", ResourceWarning)
        started = session(
            "tests",
            "local[2]",
            spark_sql_shuffle_partitions=2,
            spark_ui_enabled=False,
            # Small data: what is saved by code that is made to measure does not pay for it. The
            # sessions of users make it, and so do all drivers that tests start as users do.
            spark_sql_codegen_wholeStage=IS_LONG,
            spark_sql_codegen_factoryMode="FALLBACK" if IS_LONG else "NO_CODEGEN",
            # Which line of a test has made a column costs as many calls as the column.
            spark_python_sql_dataFrameDebugging_enabled=False,
            spark_driver_memory="1g",
            spark_sql_warehouse_dir=str(tmp_path_factory.mktemp("warehouse")),
        )
        _remember_functions(started)
        yield started
        started.stop()


def _remember_functions(spark: SparkSession) -> None:
    """Let PySpark find functions without asking the JVM for each, whenever one is used.

    Of what it takes to make a pipeline that is a quarter.
    """
    jvm: Any = spark.sparkContext._jvm
    functions = jvm.functions
    for name in _FUNCTIONS:
        setattr(functions, name, getattr(functions, name))
    for path in ("functions", "org.apache.spark.sql.functions"):
        setattr(jvm, path, functions)


@pytest.fixture
def read(spark: SparkSession, server: ServerProcess) -> Callable[..., DataFrame]:
    """Read queues of the shared server in a batch: `read(queue="orders", partition="a")`."""

    def load(schema: str | None = None, **options: str | int) -> DataFrame:
        reader: DataFrameReader = spark.read.format("queen").option("url", server.url)
        for name, value in options.items():
            reader = reader.option(name, value)
        return (reader.schema(schema) if schema else reader).load()

    return load


@pytest.fixture
def read_stream(spark: SparkSession, server: ServerProcess) -> Callable[..., DataFrame]:
    """Read queues of the shared server as a stream."""

    def load(schema: str | None = None, **options: str | int) -> DataFrame:
        reader: DataStreamReader = spark.readStream.format("queen").option("url", server.url)
        for name, value in options.items():
            reader = reader.option(name, value)
        return (reader.schema(schema) if schema else reader).load()

    return load


@pytest.fixture
def queen(server: ServerProcess) -> Iterator[SyncQueen]:
    """A client of the shared server."""
    with SyncQueen(server.url) as client:
        yield client


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A folder for the checkpoint of one query."""
    return str(tmp_path / "checkpoint")
