"""Options of the source and the sink: each acts, or is refused with a word that helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from queen.spark.options import Use, check_options
from queen.spark.source.batch import batch_reader
from queen.spark.source.streaming import stream_reader
from tests.api import Api
from tests.conftest import ServerProcess
from tests.spark.test_batch import push


@pytest.fixture(scope="module")
def columns() -> Any:
    from queen.spark.arrow.columns import default_schema

    return default_schema({})


@pytest.mark.parametrize(
    ("given", "use", "hint"),
    [
        ("startTime", Use.BATCH_READ, "startingTime"),
        ("maxMessagePerTrigger", Use.STREAM_READ, "maxMessagesPerTrigger"),
        ("transactionNmae", Use.BATCH_WRITE, "transactionName"),
        ("queues", Use.STREAM_READ, "queue"),
        ("retrySecond", Use.STREAM_WRITE, "retrySeconds"),
        ("endingTime", Use.STREAM_READ, "reading a batch"),
        ("startingOffset", Use.STREAM_READ, "reading a batch"),
        ("maxMessagesPerTrigger", Use.BATCH_READ, "reading a stream"),
        ("group", Use.BATCH_READ, "reading a stream"),
        ("checkpointLocation", Use.STREAM_READ, "not known"),
        ("checkpointLocation", Use.BATCH_WRITE, "not known"),
        ("nothing-like-it", Use.BATCH_WRITE, "there are url, token, queue"),
    ],
)
def test_an_option_that_means_nothing_here_is_refused(given: str, use: Use, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        check_options({"queue": "q", given.lower(): "1"}, use)


def test_what_spark_hands_on_is_not_ours_to_refuse() -> None:
    check_options({"queue": "q", "checkpointlocation": "there"}, Use.STREAM_WRITE)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"startingtime": "2026-02-01", "endingtime": "2026-01-01"}, "nothing lies between"),
        ({"endingtime": "earliest"}, "nothing lies between"),
        ({"partition": "p", "startingoffset": "5", "endingoffset": "4"}, "startingOffset"),
        ({"tasks": "0"}, "less than 1"),
        ({"partition": '["a", "b"]', "startingoffset": "5"}, "with one"),
        ({"partition": ""}, "names none"),
        ({"partition": "[]"}, "names none"),
        ({"path": "orders"}, "option queue"),
        ({"failondataloss": "yes"}, "neither true nor false"),
    ],
)
def test_a_batch_refuses_what_cannot_be_meant(
    columns: Any, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        batch_reader({"queue": "q", **options}, columns)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"maxmessagespertrigger": "0"}, "less than 1"),
        ({"maxbytespertrigger": "0"}, "less than 1"),
        ({"markers": "true", "markerinterval": "0"}, "less than 1|go together"),
        ({"markerinterval": "50"}, "means nothing without markers"),
        ({"markers": "yes"}, "neither true nor false"),
        ({"maxmessagespertrigger": "-5"}, "whole number"),
    ],
)
def test_a_stream_refuses_what_cannot_be_meant(
    columns: Any, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        stream_reader({"queue": "q", **options}, columns)


def test_spark_tells_of_a_misspelled_option(
    spark: SparkSession, server: ServerProcess, api: Api, queue: str, read: Callable[..., DataFrame]
) -> None:
    push(api, queue, 1)
    with pytest.raises(PySparkException, match="did you mean startingTime"):
        read(queue=queue, startTime="2026-01-01").collect()
    rows = spark.createDataFrame([("{}",)], "data string")
    writer = rows.write.format("queen").mode("append").option("url", server.url)
    with pytest.raises(PySparkException, match="did you mean transactionName"):
        writer.option("queue", queue).option("transactionNmae", "load").save()
    assert read(queue=queue).count() == 1


def test_a_partition_that_is_not_there_is_told(
    api: Api, queue: str, read: Callable[..., DataFrame]
) -> None:
    push(api, queue, 1, partition="here")
    with pytest.raises(PySparkException, match="no partition 'elsewhere'"):
        read(queue=queue, partition="elsewhere").count()
    assert read(queue=queue, partition="here").count() == 1


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"processingTime": "1 second"}])
def test_spark_tells_of_a_bad_option_of_a_stream(
    spark: SparkSession, server: ServerProcess, queue: str, trigger: Any, checkpoint: str
) -> None:
    reader = spark.readStream.format("queen").option("url", server.url).option("queue", queue)
    writer = reader.option("maxMessagesPerTrigger", "0").load().writeStream.format("noop")
    query = writer.trigger(**trigger).option("checkpointLocation", checkpoint).start()
    with pytest.raises(PySparkException, match="maxMessagesPerTrigger: 0 is less than 1"):
        query.awaitTermination(60)
