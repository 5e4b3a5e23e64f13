"""What a checkpoint belongs to: a note beside Spark's own files.

State in a checkpoint was computed by one definition. Under another it would mean something
else, and Spark notices only some of it. So the definition is kept in the folder, and a run
whose definition differs in more than filters is refused, in words.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import msgspec

from queen.core.differences import differences
from queen.errors import Conflict
from queen.spark.pipelines import files
from queen.wire.pipelines import Definition, keeps_late, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE = "queen.json"
# Of Spark: a file for each batch that was begun.
_OFFSETS = "offsets"
_ANEW = (
    "another checkpoint (--checkpoint NEW, and --from to choose from where; in Python "
    "run(spark, checkpoint=…, starting=…))"
)
# These decide only which rows go in or come out, never what a row of the state means.
_FREE = ("where", "having", "onError", "errorsTo")


class Note(msgspec.Struct):
    """What is written in the folder."""

    # Names what this checkpoint has written, over all its runs.
    transaction: str
    definition: Definition
    # Whether its query has a branch for what is set aside: a query keeps the sources it began with.
    has_aside: bool | None = None
    # Whether its joins keep rows by buckets of time: their state has keys of another kind.
    has_buckets: bool = False

    @property
    def aside(self) -> bool:
        # Before there was more, only late messages were set aside.
        return keeps_late(self.definition) if self.has_aside is None else self.has_aside


_decoder = msgspec.json.Decoder(Note)


class Checkpoint:
    """The folder of one pipeline."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self.folder = folder.rstrip("/")
        self._note_path = f"{self.folder}/{_FILE}"

    def note_for(
        self, definition: Definition, *, accept: bool = False, aside: bool = False
    ) -> Note:
        """Return what to note; raises `Conflict` when the folder is another definition's."""
        old = self._read_note()
        if old is None:
            return new_note(definition, aside=aside)
        differs = _breaking_differences(old.definition, definition)
        if differs and not accept:
            raise Conflict(_refusal(self.folder, old.definition, definition, differs))
        return Note(old.transaction, definition, old.aside, old.has_buckets)

    @contextmanager
    def claim(self, note: Note) -> Iterator[Callable[[], None]]:
        """Write the note before a query is started, and take it back if that fails.

        Yields what takes it back later: for a query that fails before its first batch is done.
        """
        before = files.read(self._spark, self._note_path)
        fields = {
            "transaction": note.transaction,
            "definition": plain(note.definition),
            "has_aside": note.aside,
            "has_buckets": note.has_buckets,
        }
        now = msgspec.json.encode(fields)
        if now != before:
            files.write(self._spark, self._note_path, now)
        self._clear_first_offsets()

        def take_back() -> None:
            if before is not None and now != before:
                files.write(self._spark, self._note_path, before)

        try:
            yield take_back
        except BaseException:
            if before is None:
                files.remove(self._spark, self._note_path)
            take_back()
            raise

    def _clear_first_offsets(self) -> None:
        """Remove what is left of the offsets of the very first batch, if they never got their name.

        Spark makes nothing of such a file. But where it finds one and no batch, it takes the folder
        for one of which the batches were lost, and refuses it.
        """
        names = files.names_in(self._spark, f"{self.folder}/{_OFFSETS}")
        if all(name.startswith(".") for name in names):
            for name in names:
                files.remove(self._spark, f"{self.folder}/{_OFFSETS}/{name}")

    def _read_note(self) -> Note | None:
        content = files.read(self._spark, self._note_path)
        if content is None:
            return self._recover_note()
        try:
            return _decoder.decode(content)
        except msgspec.DecodeError as error:
            raise Conflict(
                f"the checkpoint {self.folder} cannot be told whose it is, {_FILE} in it is not "
                f"as it was written ({error}): put that file back as it was, or start anew with "
                + _ANEW
            ) from None

    def _recover_note(self) -> Note | None:
        """Return the note of a run that was killed before it had renamed it, and rename it."""
        content = files.read_beside(self._spark, self._note_path)
        if content is None:
            return None
        try:
            note = _decoder.decode(content)
        except msgspec.DecodeError:
            # Half of the very first note: nothing has been started with it.
            return None
        files.give_name(self._spark, self._note_path)
        return note


def new_note(definition: Definition, *, aside: bool) -> Note:
    """Return what to note in a folder that is empty."""
    return Note(uuid.uuid4().hex, definition, aside, has_buckets=True)


def _breaking_differences(old: Definition, new: Definition) -> list[str]:
    """Return the differences that the state does not survive."""
    before, now = _fields_of_state(old), _fields_of_state(new)
    if not _holds_messages(new):
        for was, side in zip(before["reads"], now["reads"], strict=False):
            if _has_grown(was["schema"], side["schema"]):
                side["schema"] = was["schema"]
    return differences(before, now)


def _holds_messages(definition: Definition) -> bool:
    """Whether whole messages wait in the state, with every field of theirs."""
    return bool(definition.joins or (definition.dedup and definition.window))


def _has_grown(before: str | None, now: str | None) -> bool:
    """Whether a schema has all that it had: what is new, no expression of before has used."""
    from pyspark.sql.types import StructType

    if not before or not now:
        return False
    was, is_now = (cast("StructType", StructType.fromDDL(text)) for text in (before, now))
    kinds = {field.name: field.dataType for field in is_now.fields}
    return all(kinds.get(field.name) == field.dataType for field in was.fields)


def _fields_of_state(definition: Definition) -> dict[str, Any]:
    fields: dict[str, Any] = plain(definition, whole=True)
    for side in fields["reads"]:
        for name in _FREE:
            side.pop(name, None)
    return {name: value for name, value in fields.items() if name not in _FREE}


def _refusal(folder: str, old: Definition, new: Definition, differs: list[str]) -> str:
    if old.name != new.name:
        return (
            f"the checkpoint {folder} belongs to pipeline {old.name!r}, not to {new.name!r}: "
            "give it a folder of its own (--checkpoint, or run(spark, checkpoint=…))"
        )
    return (
        f"the checkpoint {folder} was made by another definition of {new.name!r}: "
        f"{'; '.join(differs)}. What it holds would mean something else now. Either define the "
        f"pipeline as it was, or start anew with {_ANEW}, or give the new definition a name of its "
        "own"
    )
