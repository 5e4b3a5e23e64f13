"""`queen spool`: what waits in files until a broker takes it, and what one has refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from queen.cli import options as cli
from queen.cli.exits import confirm, say
from queen.cli.output import Output
from queen.cli.spools import ServerSpool, SpoolSource, local_spools
from queen.cli.tables import Column

spool = typer.Typer(
    help="Look at spools, send refused records again or drop them.", no_args_is_help=True
)

_STATUS = (
    Column("spool", "spool"),
    Column("for", "for"),
    Column("in use", "inUse"),
    Column("records", "records", "number"),
    Column("bytes", "bytes", "bytes"),
    Column("oldest", "oldestAt", "age"),
    Column("refused", "refused", "number"),
    Column("damaged", "damaged", "number"),
)
_REFUSED = (
    Column("id", "id"),
    Column("queue", "queue"),
    Column("partition", "partition"),
    Column("transaction id", "transactionId"),
    Column("refused", "refusedAt", "age"),
    Column("reason", "reason"),
)
_DATA = Column("data", "data")

FolderPath = Annotated[
    Path | None,
    typer.Option(
        "--path",
        help="The folder of a client's spool, in place of the server's; those in use are left out.",
    ),
]
Payload = Annotated[bool, typer.Option("--payload", help="Show payloads too.")]
Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Only these records; all without.")
]


@contextmanager
def _source_of(path: Path | None, url: str | None, token: str | None) -> Iterator[SpoolSource]:
    if path is None:
        yield ServerSpool(url, token)
        return
    with local_spools(path) as spools:
        yield spools


@spool.command()
def status(
    path: FolderPath = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show what waits, and whether the database of the server is away."""
    output = Output(as_json)
    if path is None:
        output.record(ServerSpool(url, token).state())
        return
    with local_spools(path) as spools:
        output.rows(spools.status(), _STATUS)


@spool.command("list")
def list_refused(
    path: FolderPath = None,
    payload: Payload = False,
    limit: cli.Limit = 100,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show records that a broker has refused for what they are, with the reasons."""
    with _source_of(path, url, token) as source:
        rows = source.refused(limit, payload)
        Output(as_json).rows(rows, (*_REFUSED, _DATA) if payload else _REFUSED)
    if len(rows) == limit:
        say("these may not be all: --limit shows more")


@spool.command()
def retry(
    ids: Ids = None,
    path: FolderPath = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Put refused records back; those of a folder are sent by the next client that has it."""
    with _source_of(path, url, token) as source:
        Output(as_json).record({"retried": source.retry(ids or ())})


@spool.command()
def drop(
    ids: Ids = None,
    path: FolderPath = None,
    yes: cli.Yes = False,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Remove refused records for good."""
    which = f"{len(ids)} refused records" if ids else "all refused records"
    confirm(yes, f"Remove {which} in {path or 'the spool of the server'} for good?")
    with _source_of(path, url, token) as source:
        Output(as_json).record({"dropped": source.drop(ids or ())})
