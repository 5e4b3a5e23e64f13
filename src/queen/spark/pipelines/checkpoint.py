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
from queen.spark.pipelines import files
from queen.wire.pipelines import Definition, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE = "queen.json"
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
        before = files.read(self._spark, self._place)
        said = {"transaction": note.transaction, "definition": plain(note.definition)}
        now = msgspec.json.encode(said)
        if now != before:
            files.write(self._spark, self._place, now)
        try:
            yield
        except BaseException:
            if before is None:
                files.remove(self._spark, self._place)
            elif now != before:
                files.write(self._spark, self._place, before)
            raise

    def _found(self) -> Note | None:
        found = files.read(self._spark, self._place)
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
        found = files.read_beside(self._spark, self._place)
        if found is None:
            return None
        try:
            note = _decoder.decode(found)
        except msgspec.DecodeError:
            # Half of the very first one: nothing has been started with it.
            return None
        files.give_name(self._spark, self._place)
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
