"""Small files wherever Spark can write: through Hadoop's file systems.

A file is written beside its path and then renamed, so that whoever is killed meanwhile leaves
the old one or the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BESIDE = ".new"


def resolve(spark: SparkSession, location: str) -> tuple[Any, Any]:
    """Return a path as Hadoop has it, and the file system that it is in."""
    context = spark.sparkContext
    jvm: Any = context._jvm
    path = jvm.org.apache.hadoop.fs.Path(location)
    system = path.getFileSystem(context._jsc.hadoopConfiguration())
    # A sum beside a file would be that of the old one while the new one gets its name.
    return path, system.getRaw() if is_local(system) else system


def is_local(system: Any) -> bool:
    return bool(system.getUri().getScheme() == "file")


def exists(spark: SparkSession, location: str) -> bool:
    path, system = resolve(spark, location)
    return bool(system.exists(path))


def names_in(spark: SparkSession, folder: str) -> list[str]:
    """Return the names of what is in a folder: nothing, if there is none."""
    path, system = resolve(spark, folder)
    if not system.exists(path):
        return []
    return [str(status.getPath().getName()) for status in system.listStatus(path)]


def read(spark: SparkSession, location: str) -> bytes | None:
    path, system = resolve(spark, location)
    if not system.exists(path):
        return None
    stream = system.open(path)
    try:
        jvm: Any = spark.sparkContext._jvm
        return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
    finally:
        stream.close()


def read_beside(spark: SparkSession, location: str) -> bytes | None:
    """Return what somebody wrote who was killed before it had its name."""
    return read(spark, location + _BESIDE)


def write(spark: SparkSession, location: str, content: bytes) -> None:
    beside, system = resolve(spark, location + _BESIDE)
    stream = system.create(beside, True)
    try:
        stream.write(bytearray(content))
    finally:
        stream.close()
    give_name(spark, location)


def give_name(spark: SparkSession, location: str) -> None:
    """Rename what was written beside a path to it."""
    path, system = resolve(spark, location)
    beside, _ = resolve(spark, location + _BESIDE)
    if not is_local(system):
        # Only on a disk does a rename replace what is there.
        system.delete(path, False)
    if not system.rename(beside, path):
        raise OSError(f"{location}{_BESIDE} cannot be renamed to {location}")


def remove(spark: SparkSession, location: str) -> None:
    path, system = resolve(spark, location)
    system.delete(path, False)
