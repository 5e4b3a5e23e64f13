"""`queen token`: make, list and revoke tokens, of a server or directly in a database.

A server is asked when one is named: by --url, a context or the environment. Without one it is done
in the database. Whoever can open that may do everything anyway, so this works before a server runs,
and when the last admin token is lost.
"""

from __future__ import annotations

import asyncio
import getpass
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from queen.cli.connection import with_queen
from queen.cli.contexts import asked, is_server_named
from queen.cli.exits import NOT_FOUND, explain_errors, fail, say
from queen.cli.options import DatabaseUrl, DataDir, Json, Token, Url
from queen.cli.output import Output
from queen.cli.paging import read_pages
from queen.cli.serve.database import DatabaseInUse, url_from_environment, users_database
from queen.cli.tables import Column
from queen.client import Queen
from queen.errors import QueenError
from queen.extras import require

if TYPE_CHECKING:
    from queen.service.admin.tokens import NewToken, Tokens
    from queen.storage.database import Database

token = typer.Typer(
    help="Make, list and revoke tokens, of a server or in its database.", no_args_is_help=True
)

_MAX_LISTED = 10_000
_DAY_S = 86_400
_LONGEST_DAYS = 36_600
_COLUMNS = (
    Column("name", "name"),
    Column("role", "role"),
    Column("id", "id"),
    Column("expires", "expiresAt", "age"),
    Column("revoked", "revokedAt", "age"),
    Column("namespaces", "namespaces"),
    Column("last used", "lastUsedAt", "age"),
    Column("created", "createdAt", "age"),
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
    url: Url = None,
    token: Token = None,
) -> None:
    """Make a token and print it: this is the only time it is shown."""
    lifetime_s = _lifetime_s(expires_in_days)
    if _is_of_a_server(url, database_url, data_dir):
        answer = with_queen(
            url,
            token,
            lambda queen: queen.admin.create_token(name, role, namespace or None, lifetime_s),
        )
        typer.echo(answer["token"])
        return

    async def work(database: Database, tokens: Tokens) -> NewToken:
        made = await tokens.create(name, role, namespace or None, lifetime_s, _actor())
        await _audit(database, "token.create", made.id, name=name, role=role)
        return made

    made = _with_tokens(database_url, data_dir, work)
    typer.echo(made.text)


def _lifetime_s(days: float | None) -> int | None:
    """Return the seconds that a token is good for; None is for ever."""
    if days is None:
        return None
    if not 1 <= days * _DAY_S <= _LONGEST_DAYS * _DAY_S:
        raise typer.BadParameter(
            f"{days:g} is not between a second and {_LONGEST_DAYS:,} days",
            param_hint="--expires-in-days",
        )
    return int(days * _DAY_S)


@token.command("list")
def list_tokens(
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    url: Url = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show all tokens, without their secrets."""
    if _is_of_a_server(url, database_url, data_dir):
        rows = with_queen(url, token, _read_remote)
    else:
        rows = _with_tokens(database_url, data_dir, _read_tokens)
    Output(as_json).rows(rows, _COLUMNS)


async def _read_remote(queen: Queen) -> list[dict[str, Any]]:
    async def read(size: int, start: int) -> Any:
        return (await queen.admin.tokens(limit=size, offset=start))["tokens"]

    return await read_pages(read, None, 0)


async def _read_tokens(_: Database, tokens: Tokens) -> list[dict[str, Any]]:
    from queen.wire.admin.access import TokenRow

    rows = await tokens.page(None, _MAX_LISTED)
    return [msgspec.to_builtins(TokenRow(**dict(row))) for row in rows]


@token.command()
def revoke(
    token_id: TokenId,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """End a token; every server refuses it within a few seconds."""
    if _is_of_a_server(url, database_url, data_dir):
        with_queen(url, token, lambda queen: queen.admin.revoke_token(token_id))
        typer.echo(f"revoked {token_id}")
        return

    async def work(database: Database, tokens: Tokens) -> bool:
        existed = await tokens.revoke(token_id, None)
        if existed:
            await _audit(database, "token.revoke", token_id)
        return existed

    if not _with_tokens(database_url, data_dir, work):
        fail(NOT_FOUND, f"there is no token {token_id}: `queen token list` shows them")
    typer.echo(f"revoked {token_id}")


def _is_of_a_server(url: str | None, database_url: str | None, data_dir: Path | None) -> bool:
    """Return whether a server is asked: one that was typed goes before everything else, one that
    is only in the environment or in use stands back behind a database."""
    if "url" in asked().typed or asked().context:
        return True
    is_database = database_url or data_dir or url_from_environment()
    return not is_database and is_server_named(url)


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

    with explain_errors():
        require("server", "a command that opens the database")
    try:
        with DatabaseInUse(users_database(url), data_dir) as dsn:
            return asyncio.run(run(dsn))
    except (QueenError, OSError) as error:
        say(f"queen: {error}")
        raise typer.Exit(1) from None


async def _audit(database: Database, act: str, target: str, **detail: Any) -> None:
    await database.execute(
        "write_audit", _actor(), "command line", "", act, target, "done", json.dumps(detail)
    )


def _actor() -> str:
    return getpass.getuser()
