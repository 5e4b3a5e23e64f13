"""`queen token`: make, list and revoke tokens, directly in the database.

Whoever can open the database may do everything anyway. So this works before a server runs,
and when the last admin token is lost.
"""

from __future__ import annotations

import asyncio
import getpass
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queen.cli.exits import NOT_FOUND, fail
from queen.cli.options import DatabaseUrl, DataDir, Json
from queen.cli.output import Output
from queen.cli.serve.database import DatabaseInUse, url_from_environment
from queen.errors import QueenError

if TYPE_CHECKING:
    from queen.service.admin.tokens import NewToken, Tokens
    from queen.storage.database import Database, Record

token = typer.Typer(
    help="Make, list and revoke tokens, directly in the database.", no_args_is_help=True
)

_MAX_LISTED = 10_000
_COLUMNS = (
    ("id", "id"),
    ("name", "name"),
    ("role", "role"),
    ("namespaces", "namespaces"),
    ("created", "created_at"),
    ("expires", "expires_at"),
    ("revoked", "revoked_at"),
)

Name = Annotated[str, typer.Option(help="Whose token it is; shown as producer and in the audit.")]
RoleWord = Annotated[str, typer.Option(help="admin, read-write or read-only.")]
Namespaces = Annotated[
    list[str], typer.Option("--namespace", help="The only namespaces it may see; repeatable.")
]
Days = Annotated[float | None, typer.Option(help="After how many days it ends.")]
TokenId = Annotated[str, typer.Argument(help="The id, between the first and second underscore.")]


@token.command()
def create(
    name: Name,
    role: RoleWord = "read-write",
    namespace: Namespaces = [],  # noqa: B006 (typer reads it and nobody changes it)
    expires_in_days: Days = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Make a token and print it: this is the only time it is shown."""
    lifetime_s = None if expires_in_days is None else int(expires_in_days * 86400)

    async def work(database: Database, tokens: Tokens) -> NewToken:
        made = await tokens.create(name, role, namespace or None, lifetime_s, _actor())
        await _audit(database, "token.create", made.id, name=name, role=role)
        return made

    made = _with_tokens(database_url, data_dir, work)
    typer.echo(made.text)


@token.command("list")
def list_tokens(
    database_url: DatabaseUrl = None, data_dir: DataDir = None, as_json: Json = False
) -> None:
    """Show all tokens, without their secrets."""

    async def work(_: Database, tokens: Tokens) -> list[Record]:
        return await tokens.page(None, _MAX_LISTED)

    rows = _with_tokens(database_url, data_dir, work)
    names = [name for _, name in _COLUMNS]
    Output(as_json).rows([{name: row[name] for name in names} for row in rows], _COLUMNS)


@token.command()
def revoke(token_id: TokenId, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """End a token; every server refuses it within a few seconds."""

    async def work(database: Database, tokens: Tokens) -> bool:
        existed = await tokens.revoke(token_id, None)
        if existed:
            await _audit(database, "token.revoke", token_id)
        return existed

    if not _with_tokens(database_url, data_dir, work):
        fail(NOT_FOUND, f"there is no token {token_id}: `queen token list` shows them")
    typer.echo(f"revoked {token_id}")


def _with_tokens(
    url: str | None, data_dir: Any, work: Callable[[Database, Tokens], Awaitable[Any]]
) -> Any:
    """Do something with the tokens of the database that a server would use."""

    async def run(dsn: str) -> Any:
        import asyncpg

        from queen.service.admin.tokens import Tokens
        from queen.storage.database import Database
        from queen.storage.migrate import migrate

        connection = await asyncpg.connect(dsn, timeout=30)
        try:
            await migrate(connection)
        finally:
            await connection.close()
        database = await Database.connect(dsn, size=1)
        try:
            return await work(database, Tokens(database))
        finally:
            await database.close()

    try:
        with DatabaseInUse(url or url_from_environment(), data_dir) as dsn:
            return asyncio.run(run(dsn))
    except (QueenError, OSError) as error:
        typer.echo(f"queen: {error}", err=True)
        raise typer.Exit(1) from None


async def _audit(database: Database, act: str, target: str, **detail: Any) -> None:
    await database.execute(
        "write_audit", _actor(), "command line", "", act, target, "done", json.dumps(detail)
    )


def _actor() -> str:
    return getpass.getuser()
