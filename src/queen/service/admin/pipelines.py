"""Pipelines: their definitions, and what the runs of them report.

The broker runs none of them. It keeps what each is to do, so that a run on any machine does
the same, and what the last run said of itself. A run that has said nothing for a while is
lost: it was killed, or cannot reach us.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from queen.core.differences import differences, fingerprint
from queen.errors import Conflict, NotFound
from queen.storage.database import Database, Record
from queen.wire.pipelines import Definition, Progress, plain

LOST_AFTER_S = 30.0
_ENDED = ("stopped", "failed")

_definition = msgspec.json.Decoder(Definition)
_progress = msgspec.json.Decoder(Progress)


class StoredPipeline(NamedTuple):
    """What became of a definition."""

    fingerprint: str
    version: int
    created: bool
    changed: bool


class Pipelines:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def define(
        self, definition: Definition, *, replace: bool, among: list[str] | None = None
    ) -> StoredPipeline:
        """Store a definition; the same one again changes nothing.

        Names are one for all namespaces. With `among`, a pipeline of another namespace is left
        as it is, and nothing is told of it but that it is there.
        """
        plain_definition = plain(definition)
        text, print_ = msgspec.json.encode(plain_definition).decode(), fingerprint(plain_definition)
        values = (definition.name, definition.namespace, text, print_)
        version = await self._database.findval("insert_pipeline", *values)
        if version is not None:
            return StoredPipeline(print_, version, created=True, changed=False)
        async with self._database.transaction() as transaction:
            stored = await transaction.findrow("lock_pipeline", definition.name)
            if stored is None:
                raise Conflict("the pipeline was deleted at the same moment; define it again")
            if among is not None and stored["namespace"] not in among:
                raise Conflict(f"the name {definition.name!r} is taken: choose another one")
            if stored["fingerprint"] == print_:
                return StoredPipeline(print_, stored["version"], created=False, changed=False)
            if not replace:
                old, new = plain(definition_of(stored), whole=True), plain(definition, whole=True)
                raise _differs(definition.name, differences(old, new))
            version = await transaction.fetchval("replace_pipeline", *values)
            return StoredPipeline(print_, version, created=False, changed=True)

    async def page(
        self, among: list[str] | None, limit: int, offset: int, name: str | None = None
    ) -> list[Record]:
        """Return pipelines by name; `among` some namespaces."""
        return await self._database.fetch("pipelines_page", name, among, limit, offset)

    async def reporting(self, limit: int) -> list[Record]:
        """Return the pipelines that have reported last."""
        return await self._database.fetch("reporting_pipelines", limit)

    async def find(self, name: str, among: list[str] | None = None) -> Record:
        """Return one pipeline, or raise `NotFound`."""
        rows = await self.page(among, 1, 0, name)
        if not rows:
            raise NotFound(f"Pipeline {name!r} not found")
        return rows[0]

    async def report(self, name: str, progress: Progress) -> bool:
        """Keep what a run says; return whether it is to stop."""
        text = msgspec.json.encode(progress).decode()
        stop = await self._database.findval("report_pipeline", name, progress.run_id, text)
        if stop is None:
            raise NotFound(f"Pipeline {name!r} not found")
        return bool(stop)

    async def stop(self, name: str) -> bool:
        """Ask the run of a pipeline to stop; return whether one seems to be there."""
        row = await self._database.findrow("stop_pipeline", name)
        if row is None:
            raise NotFound(f"Pipeline {name!r} not found")
        progress = progress_of(row)
        return progress is not None and is_alive(progress, row["silent_s"])

    async def delete(self, name: str) -> None:
        """Forget a pipeline; its queues and its checkpoint stay."""
        if await self._database.findval("delete_pipeline", name) is None:
            raise NotFound(f"Pipeline {name!r} not found")


def _differs(name: str, differs: list[str]) -> Conflict:
    error = Conflict(
        f"pipeline {name!r} is defined differently ({'; '.join(differs)}): "
        "allow it with replace=True (on the wire `replace`), or take another name"
    )
    error.details = {"differs": differs}
    return error


def definition_of(row: Record) -> Definition:
    return _definition.decode(row["definition"])


def progress_of(row: Record) -> Progress | None:
    return None if row["progress"] is None else _progress.decode(row["progress"])


def is_alive(progress: Progress, silent_s: float) -> bool:
    return progress.state not in _ENDED and silent_s < LOST_AFTER_S


def state_of(row: Record) -> str:
    """Return how a pipeline is, in one word."""
    progress = progress_of(row)
    if progress is None:
        return "new"
    if progress.state in _ENDED:
        return progress.state
    if not is_alive(progress, row["silent_s"]):
        return "lost"
    return "stopping" if row["is_stopping"] else progress.state
