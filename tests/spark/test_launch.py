"""What Spark's processes get to see of Queen, and what is said of a Python that does not fit."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import queen.spark
from queen.errors import BadRequest
from queen.spark.launch.package import settings_for_archive, write_package
from queen.spark.launch.python import (
    PACKAGES,
    check_executors_python,
    packages_folder,
    running_version,
)


def fake_python(folder: Path, says: str) -> str:
    """A Python that answers this, whatever it is asked."""
    program = folder / "python3"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return str(program)


def test_the_folder_has_what_is_needed_and_nothing_else() -> None:
    assert {path.name for path in Path(packages_folder()).iterdir()} == set(PACKAGES)


def test_a_python_without_anything_imports_queen_from_it() -> None:
    env = {"PYTHONPATH": packages_folder()}
    code = "import queen.client, queen.spark.broker, zstandard; print('yes')"
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code], env=env, capture_output=True, check=True
    )
    assert ran.stdout == b"yes\n"


def test_the_python_that_runs_here_fits() -> None:
    check_executors_python(sys.executable)
    check_executors_python("python3")


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("3.9", rf"is 3\.9, and this is Python {running_version()}: "),
        (f"{running_version()} numpy pyarrow", "has no numpy and no pyarrow$"),
    ],
)
def test_a_python_that_does_not_fit_is_refused(tmp_path: Path, says: str, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        check_executors_python(fake_python(tmp_path, says))


def test_a_python_that_is_only_on_the_executors_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"/opt/x/python3, is not on this machine"):
        check_executors_python("/opt/x/python3")


def test_an_archive_of_this_python_is_taken(tmp_path: Path) -> None:
    archive = tmp_path / "queen.tar.gz"
    write_package(archive)
    assert settings_for_archive(str(archive))["spark.archives"] == f"{archive}#queen_archive"


def test_an_archive_of_another_python_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "queen.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.addfile(tarfile.TarInfo("msgspec/_core.cpython-39-x86_64-linux-gnu.so"))
    with pytest.raises(BadRequest, match=rf"Python 3\.9 and this is Python {running_version()}"):
        settings_for_archive(str(archive))


def test_an_archive_that_is_not_there_is_refused_and_one_elsewhere_is_not_read() -> None:
    with pytest.raises(BadRequest, match=r"there is no archive no\.tar\.gz"):
        settings_for_archive("no.tar.gz")
    with pytest.raises(BadRequest, match=r"is no archive that can be read"):
        settings_for_archive(__file__)
    assert settings_for_archive("hdfs:///no.tar.gz")


def test_a_session_of_somebody_else_is_shown_queen_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = spark.sparkContext.environment
    before = dict(environment)
    queen.spark.register(spark)
    assert environment == before, "its JVM was started with it"
    # Of another session the JVM knows no such folder.
    monkeypatch.setattr("queen.spark.launch.python.packages_folder", lambda: str(tmp_path))
    monkeypatch.setitem(environment, "PYTHONPATH", "queen_archive")
    queen.spark.register(spark)
    queen.spark.register(spark)
    assert environment["PYTHONPATH"] == f"queen_archive:{tmp_path}"
