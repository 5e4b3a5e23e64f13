"""What a checkpoint belongs to: a note beside Spark's own files.

State in a checkpoint was computed by one definition. Under another it would mean something
else, and Spark notices only some of it. So the definition is kept in the folder, and a run
whose definition differs in more than filters is refused, in words.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from queen.core.differences import differences
from queen.errors import Conflict
from queen.wire.pipelines import Definition, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE = "queen.json"
# Written first, and then renamed: whoever is killed meanwhile leaves the old note or the new one.
_BESIDE = ".new"
# These decide only which rows go in or come out, never what a row of the state means.
_FREE = ("where", "having")


class Note(msgspec.Struct):
    """What is written in the folder."""

    # Names what this checkpoint has written, over all its runs.
    transaction: str
    definition: Definition


_decoder = msgspec.json.Decoder(Note)


class Checkpoint:
    """The folder of one pipeline."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self.folder = folder.rstrip("/")
        self._place = f"{self.folder}/{_FILE}"

    def note_for(self, definition: Definition, *, accept: bool = False) -> Note:
        """Return what to note; raises `Conflict` when the folder is another definition's."""
        old = self._found()
        if old is None:
            return Note(uuid.uuid4().hex, definition)
        differs = _weighty(old.definition, definition)
        if differs and not accept:
            raise Conflict(_refusal(self.folder, old.definition, definition, differs))
        return Note(old.transaction, definition)

    @contextmanager
    def claimed(self, note: Note) -> Iterator[None]:
        """Write the note while a query is started: before it, and not if it does not start."""
        before = _read(self._spark, self._place)
        said = {"transaction": note.transaction, "definition": plain(note.definition)}
        now = msgspec.json.encode(said)
        if now != before:
            _write(self._spark, self._place, now)
        try:
            yield
        except BaseException:
            if before is None:
                _remove(self._spark, self._place)
            elif now != before:
                _write(self._spark, self._place, before)
            raise

    def _found(self) -> Note | None:
        found = _read(self._spark, self._place)
        if found is None:
            return self._left_beside()
        try:
            return _decoder.decode(found)
        except msgspec.DecodeError as error:
            raise Conflict(
                f"the checkpoint {self.folder} cannot be told whose it is, {_FILE} in it is not "
                f"as it was written ({error}): put that file back as it was, or start anew with "
                "another --checkpoint (with --from to choose from where)"
            ) from None

    def _left_beside(self) -> Note | None:
        """Return the note of somebody who was killed before it had its name."""
        found = _read(self._spark, self._place + _BESIDE)
        if found is None:
            return None
        try:
            note = _decoder.decode(found)
        except msgspec.DecodeError:
            # Half of the very first one: nothing has been started with it.
            return None
        _name(self._spark, self._place)
        return note


def _weighty(old: Definition, new: Definition) -> list[str]:
    """Return the differences that the state does not survive."""
    return differences(_bound(old), _bound(new))


def _bound(definition: Definition) -> dict[str, Any]:
    fields: dict[str, Any] = plain(definition, whole=True)
    for side in fields["reads"]:
        for name in _FREE:
            side.pop(name, None)
    return {name: value for name, value in fields.items() if name not in _FREE}


def _refusal(folder: str, old: Definition, new: Definition, differs: list[str]) -> str:
    if old.name != new.name:
        return (
            f"the checkpoint {folder} belongs to pipeline {old.name!r}, not to {new.name!r}: "
            "give --checkpoint a folder of its own"
        )
    return (
        f"the checkpoint {folder} was made by another definition of {new.name!r}: "
        f"{'; '.join(differs)}. What it holds would mean something else now. Either define the "
        "pipeline as it was, or start anew with another --checkpoint (with --from to choose from "
        "where), or give the new definition a name of its own"
    )


# Through Hadoop's file systems, so that a checkpoint may be wherever Spark can write one.


def _read(spark: SparkSession, place: str) -> bytes | None:
    path, system = _opened(spark, place)
    if not system.exists(path):
        return None
    stream = system.open(path)
    try:
        return bytes(_jvm(spark).org.apache.commons.io.IOUtils.toByteArray(stream))
    finally:
        stream.close()


def _write(spark: SparkSession, place: str, content: bytes) -> None:
    beside, system = _opened(spark, place + _BESIDE)
    stream = system.create(beside, True)
    try:
        stream.write(bytearray(content))
    finally:
        stream.close()
    _name(spark, place)


def _name(spark: SparkSession, place: str) -> None:
    """Give what was written beside a place its name."""
    path, system = _opened(spark, place)
    beside, _ = _opened(spark, place + _BESIDE)
    if not _is_local(system):
        # Only on a disk does a rename replace what is there.
        system.delete(path, False)
    if not system.rename(beside, path):
        raise OSError(f"{place}{_BESIDE} cannot be renamed to {place}")


def _remove(spark: SparkSession, place: str) -> None:
    path, system = _opened(spark, place)
    system.delete(path, False)


def _opened(spark: SparkSession, place: str) -> tuple[Any, Any]:
    path = _jvm(spark).org.apache.hadoop.fs.Path(place)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    system = path.getFileSystem(hadoop)
    # A sum beside the file would be that of the old note while the new one gets its name.
    return path, system.getRaw() if _is_local(system) else system


def _is_local(system: Any) -> bool:
    return bool(system.getUri().getScheme() == "file")


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm
