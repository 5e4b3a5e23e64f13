"""Small files wherever Spark can write: through Hadoop's file systems.

A file is written beside its place and then renamed, so that whoever is killed meanwhile leaves
the old one or the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BESIDE = ".new"


def opened(spark: SparkSession, place: str) -> tuple[Any, Any]:
    """Return a path of Hadoop's, and the file system that it is in."""
    context = spark.sparkContext
    jvm: Any = context._jvm
    path = jvm.org.apache.hadoop.fs.Path(place)
    system = path.getFileSystem(context._jsc.hadoopConfiguration())
    # A sum beside a file would be that of the old one while the new one gets its name.
    return path, system.getRaw() if is_local(system) else system


def is_local(system: Any) -> bool:
    return bool(system.getUri().getScheme() == "file")


def read(spark: SparkSession, place: str) -> bytes | None:
    path, system = opened(spark, place)
    if not system.exists(path):
        return None
    stream = system.open(path)
    try:
        jvm: Any = spark.sparkContext._jvm
        return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
    finally:
        stream.close()


def read_beside(spark: SparkSession, place: str) -> bytes | None:
    """Return what somebody wrote who was killed before it had its name."""
    return read(spark, place + _BESIDE)


def write(spark: SparkSession, place: str, content: bytes) -> None:
    beside, system = opened(spark, place + _BESIDE)
    stream = system.create(beside, True)
    try:
        stream.write(bytearray(content))
    finally:
        stream.close()
    give_name(spark, place)


def give_name(spark: SparkSession, place: str) -> None:
    """Put what was written beside a place there."""
    path, system = opened(spark, place)
    beside, _ = opened(spark, place + _BESIDE)
    if not is_local(system):
        # Only on a disk does a rename replace what is there.
        system.delete(path, False)
    if not system.rename(beside, path):
        raise OSError(f"{place}{_BESIDE} cannot be renamed to {place}")


def remove(spark: SparkSession, place: str) -> None:
    path, system = opened(spark, place)
    system.delete(path, False)
