"""Spools that the command line looks at: where they are, and what can be asked of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from queen.cli.connection import with_queen
from queen.cli.exits import NOT_FOUND, USAGE, explain_errors, fail

if TYPE_CHECKING:
    from queen.client.admin import Admin
    from queen.client.spooling.source import Source

Row = dict[str, Any]

# Of the messages of one record.
_SHOWN_IDS = 3


class SpoolSource(Protocol):
    """Somewhere spools are. A refused record has an id, which names its spool too."""

    def refused(self, limit: int, with_payload: bool) -> list[Row]: ...

    def retry(self, ids: Sequence[str]) -> int:
        """Let records be sent again, all without ids; return how many."""
        ...

    def drop(self, ids: Sequence[str]) -> int:
        """Forget records for good, all without ids; return how many."""
        ...


class _Opened(NamedTuple):
    owner: str
    source: Source


class LocalSpools:
    """The spools of a folder on this machine. Those that a process has are only counted."""

    def __init__(self, opened: Sequence[_Opened], held: dict[Path, str]) -> None:
        self._opened = opened
        self._held = held

    def status(self) -> list[Row]:
        return [*map(_row_of_opened, self._opened), *map(_row_of_held, self._held.items())]

    def refused(self, limit: int, with_payload: bool) -> list[Row]:
        from queen.client.spooling.refused import refused_messages

        rows: list[Row] = []
        for _, source in self._opened:
            for refused in refused_messages(source.spool, 0, limit - len(rows)):
                row = msgspec.to_builtins(refused)
                if not with_payload:
                    del row["data"]
                rows.append({"id": f"{source.spool.id}/{row.pop('seq')}", **row})
        return rows

    def retry(self, ids: Sequence[str]) -> int:
        chosen = self._chosen(ids)
        for source, seqs in chosen:
            source.spool.retry(seqs)
        return sum(len(seqs) for _, seqs in chosen)

    def drop(self, ids: Sequence[str]) -> int:
        chosen = self._chosen(ids)
        for source, seqs in chosen:
            source.spool.drop(seqs)
        return sum(len(seqs) for _, seqs in chosen)

    def _chosen(self, ids: Sequence[str]) -> list[tuple[Source, list[int]]]:
        """Return the records that are meant, by spool; every id has to be one of them."""
        unknown = set(ids)
        chosen: list[tuple[Source, list[int]]] = []
        for _, source in self._opened:
            spool = source.spool
            seqs = [refused.seq for refused in spool.quarantined(0, _count_refused(source))]
            named = {f"{spool.id}/{seq}": seq for seq in seqs}
            unknown -= set(named)
            chosen.append((source, [seq for name, seq in named.items() if not ids or name in ids]))
        if unknown:
            fail(NOT_FOUND, f"no refused record {min(unknown)}: `queen spool list` shows them")
        return chosen


def _count_refused(source: Source) -> int:
    return source.spool.statistics().quarantined


class ServerSpool:
    """The spool of a server, asked over HTTP."""

    def __init__(self, url: str | None, token: str | None) -> None:
        self._url = url
        self._token = token

    def _ask(self, question: Callable[[Admin], Awaitable[Row]]) -> Row:
        return with_queen(self._url, self._token, lambda queen: question(queen.admin))

    def state(self) -> Row:
        """All that the server says of it."""
        return self._ask(lambda admin: admin.spool())

    def refused(self, limit: int, with_payload: bool) -> list[Row]:
        page = self._ask(lambda admin: admin.spool_quarantine(limit=limit, payloads=with_payload))
        return [_row_of_refused(record, with_payload) for record in page["records"]]

    def retry(self, ids: Sequence[str]) -> int:
        return int(self._ask(lambda admin: admin.retry_spooled(list(ids) or None))["records"])

    def drop(self, ids: Sequence[str]) -> int:
        return int(self._ask(lambda admin: admin.drop_spooled(list(ids) or None))["records"])


def _row_of_refused(record: Row, with_payload: bool) -> Row:
    ids, payloads = record.pop("transactionIds"), record.pop("payloads", None)
    row = {**record, "transactionId": ", ".join(ids[:_SHOWN_IDS]) + _more_than(ids)}
    return {**row, "data": payloads} if with_payload else row


def _more_than(ids: Sequence[str]) -> str:
    return " …" if len(ids) > _SHOWN_IDS else ""


@contextmanager
def local_spools(path: Path) -> Iterator[LocalSpools]:
    """Hold all spools of a folder that nobody has, for as long as a command runs."""
    try:
        from queen.client.spooling.folders import owners
        from queen.client.spooling.source import Source
        from queen.spool import Spool, SpoolRoot
    except ModuleNotFoundError:
        fail(USAGE, "there are spools on Unix only")
    if not path.is_dir():
        fail(NOT_FOUND, f"{path} is no folder")
    named = owners(path)
    opened = [
        _Opened(owner, Source(held, Spool(held)))
        for owner in sorted(set(named.values()))
        for held in SpoolRoot(path, owner).adopt()
    ]
    ours = {each.source.path for each in opened}
    held_by_others = {
        folder: owner for folder, owner in named.items() if folder not in ours and folder.exists()
    }
    try:
        with explain_errors():
            yield LocalSpools(opened, held_by_others)
    finally:
        for each in opened:
            each.source.close()


def _row_of_opened(opened: _Opened) -> Row:
    statistics = opened.source.spool.statistics()
    oldest = statistics.oldest_at_ms
    return {
        "spool": str(statistics.id),
        "for": opened.owner,
        "inUse": False,
        "records": opened.source.count_left(),
        "bytes": statistics.bytes,
        "oldestAt": None if oldest is None else datetime.fromtimestamp(oldest // 1000, UTC),
        "refused": statistics.quarantined,
        "damaged": statistics.damaged,
    }


def _row_of_held(held: tuple[Path, str]) -> Row:
    from queen.spool.room import folder_bytes

    path, owner = held
    return {
        "spool": path.name,
        "for": owner,
        "inUse": True,
        "records": None,
        "bytes": folder_bytes(path),
        "oldestAt": None,
        "refused": None,
        "damaged": None,
    }
