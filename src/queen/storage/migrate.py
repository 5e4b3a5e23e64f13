"""The schema, brought up to date.

Migrations go forward only, each in one transaction, recorded with a checksum; an old file
that changed is an error, because the database it made is not the one the file describes.
Functions have one live version each and are replaced when their text differs.

Several servers may start at once: one advisory lock lets one of them work and the others
find nothing to do.
"""

from __future__ import annotations

import hashlib

import asyncpg

from queen.errors import StartupError
from queen.storage.statements import sql_files

_LOCK = 7000

_BOOTSTRAP = """
create schema if not exists queen;
create table if not exists queen.schema_files (
    name text primary key,
    checksum text not null,
    applied_at timestamptz not null default clock_timestamp()
)
"""


async def migrate(connection: asyncpg.Connection) -> list[str]:
    """Apply what is missing and return the names of the files that were applied."""
    applied: list[str] = []
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
        await connection.execute(_BOOTSTRAP)
        rows = await connection.fetch("select name, checksum from queen.schema_files")
        known = {row["name"]: row["checksum"] for row in rows}
        for name, text in sql_files("migrations"):
            checksum = _checksum(text)
            if name not in known:
                await _apply(connection, name, text)
                applied.append(name)
            elif known[name] != checksum:
                raise StartupError(
                    f"migration {name} differs from the one this database was made with"
                )
        # A function may call another that comes later in the alphabet; its body is checked
        # when it is first called.
        await connection.execute("set local check_function_bodies = off")
        for name, text in sql_files("functions"):
            if known.get(name) != _checksum(text):
                await _apply(connection, name, text)
                applied.append(name)
    return applied


async def _apply(connection: asyncpg.Connection, name: str, text: str) -> None:
    await connection.execute(text)
    await connection.execute(
        "insert into queen.schema_files (name, checksum) values ($1, $2) on conflict (name)"
        " do update set checksum = excluded.checksum, applied_at = clock_timestamp()",
        name,
        _checksum(text),
    )


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
