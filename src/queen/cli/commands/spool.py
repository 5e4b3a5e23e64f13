"""`queen spool`: what waits in files until a broker takes it, and what one has refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from queen.cli import options as cli
from queen.cli.exits import confirm
from queen.cli.output import Output
from queen.cli.spools import SpoolSource, local_spools

spool = typer.Typer(
    help="Look at spools, send refused records again or drop them.", no_args_is_help=True
)

_STATUS = (
    ("spool", "spool"),
    ("for", "for"),
    ("in use", "inUse"),
    ("records", "records"),
    ("bytes", "bytes"),
    ("oldest", "oldestAt"),
    ("refused", "refused"),
    ("damaged", "damaged"),
)
_REFUSED = (
    ("id", "id"),
    ("queue", "queue"),
    ("partition", "partition"),
    ("transaction id", "transactionId"),
    ("refused", "refusedAt"),
    ("reason", "reason"),
)
_DATA = ("data", "data")

FolderPath = Annotated[
    Path, typer.Option("--path", help="The folder of a client's spool; those in use are left out.")
]
Payload = Annotated[bool, typer.Option("--payload", help="Show payloads too.")]
Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Only these records; all without.")
]


@contextmanager
def _source_of(path: Path) -> Iterator[SpoolSource]:
    with local_spools(path) as spools:
        yield spools


@spool.command()
def status(path: FolderPath, as_json: cli.Json = False) -> None:
    """Show what waits."""
    with _source_of(path) as source:
        Output(as_json).rows(source.status(), _STATUS)


@spool.command("list")
def list_refused(
    path: FolderPath, payload: Payload = False, limit: cli.Limit = 100, as_json: cli.Json = False
) -> None:
    """Show records that a broker has refused for what they are, with the reasons."""
    with _source_of(path) as source:
        rows = source.refused(limit, payload)
        Output(as_json).rows(rows, (*_REFUSED, _DATA) if payload else _REFUSED)


@spool.command()
def retry(path: FolderPath, ids: Ids = None, as_json: cli.Json = False) -> None:
    """Put refused records back: they are sent again by the next client with this folder."""
    with _source_of(path) as source:
        Output(as_json).record({"retried": source.retry(ids or ())})


@spool.command()
def drop(
    path: FolderPath, ids: Ids = None, yes: cli.Yes = False, as_json: cli.Json = False
) -> None:
    """Remove refused records for good."""
    which = f"{len(ids)} refused records" if ids else "all refused records"
    confirm(yes, f"Remove {which} in {path} for good?")
    with _source_of(path) as source:
        Output(as_json).record({"dropped": source.drop(ids or ())})
