"""Settings of a session on which results depend: a pipeline has its own, whoever runs it.

Spark fixes the time zone and the rules of an expression when a DataFrame is made, and those of a
stream when it starts. So they are set for that long, and the session is as it was afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from queen.errors import BadRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIME_ZONE = "spark.sql.session.timeZone"
_FIXED = {
    # What cannot be computed is an error, and not null in one session and an error in another.
    "spark.sql.ansi.enabled": "true",
    # Windows close although nothing arrives.
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    # No side of a join is ahead of another.
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
}

# A session has one set of them, and pipelines may be started by several threads.
_turn = threading.RLock()


def check_classic(spark: SparkSession, what: str) -> None:
    """Raise `BadRequest` for a session of Spark Connect, which has no JVM of its own."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise BadRequest(
            f"{what} need a session of their own and do not work through Spark Connect: run them "
            "with queen.spark.session(…), or with spark-submit on the cluster"
        )


def use_in_this_thread(spark: SparkSession) -> None:
    """Let a writer find `queen`: it looks in the session of its thread, and a new one has none."""
    sessions = spark._get_j_spark_session_class(spark._jvm)
    sessions.setActiveSession(spark._jsparkSession)


@contextmanager
def pipeline_settings(spark: SparkSession, time_zone: str) -> Iterator[None]:
    """Let a session have the settings of a pipeline while it is made or started."""
    use_in_this_thread(spark)
    with _session_settings(spark, {**_FIXED, TIME_ZONE: time_zone}):
        yield


@contextmanager
def zone_settings(spark: SparkSession, time_zone: str) -> Iterator[None]:
    """Let a session have a zone while the columns of a DataFrame are made."""
    with _session_settings(spark, {TIME_ZONE: time_zone}):
        yield


@contextmanager
def _session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    with _turn:
        before = {name: spark.conf.get(name, None) for name in settings}
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, old)
