"""The schema, brought up to date.

Migrations go forward only, each recorded with a checksum; an old file that changed is an
error, because the database it made is not the one the file describes. Functions have one
live version each: when the text of one differs, all are made again. What a former version
left behind is dropped: functions whose file is gone, and others of the same name.

All that is missing is one transaction: every migration, then every function, and the records
of both. When one of them fails nothing has happened, and the database is as the version
before has left it. The price is that the locks of each are held until the last is done, and
that no migration can hold what must not run in a transaction, such as an index that is built
concurrently.

A server starts on a schema of its own version or an older one. Migrations that it does not
know, or functions that a newer version has installed, are a reason to refuse: it would speak
to tables that it does not understand, and would take the newer server's functions away.

Several servers may start at once: one advisory lock lets one of them work and the others
find nothing to do.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

import asyncpg

from queen import __version__
from queen.errors import StartupError
from queen.storage.database import is_passing, translate
from queen.storage.functions import install
from queen.storage.statements import sql_files

_LOCK = 7000
_MIGRATION = re.compile(r"\d{4}_\w+\.sql")

_BOOTSTRAP = """
create schema if not exists queen;
create table if not exists queen.schema_files (
    name text primary key,
    checksum text not null,
    applied_at timestamptz not null default clock_timestamp(),
    -- Which version of Queen has installed it; empty for those that did not say so yet.
    version text not null default ''
);
do $$ begin
    -- Asked first: to add nothing would wait too, for whoever reads all tables for a backup.
    if not exists (select 1 from pg_attribute
                    where attrelid = 'queen.schema_files'::regclass and attname = 'version') then
        alter table queen.schema_files add column version text not null default '';
    end if;
end $$
"""


@dataclass(frozen=True)
class Schema:
    """The files of one version: names and texts, in the order in which they are applied."""

    version: str
    migrations: list[tuple[str, str]]
    functions: list[tuple[str, str]]

    @classmethod
    def read(cls, root: Traversable, version: str) -> Schema:
        return cls(version, sql_files(root / "migrations"), sql_files(root / "functions"))

    @classmethod
    def packaged(cls) -> Schema:
        """Return the schema that this server works with."""
        return cls.read(files("queen.storage") / "sql", __version__)


@dataclass(frozen=True)
class _Installed:
    """What a file was when it was applied, and by whom."""

    checksum: str
    version: str


async def migrate(connection: asyncpg.Connection, schema: Schema | None = None) -> list[str]:
    """Apply what is missing and return the names of the files that were applied."""
    schema = schema or Schema.packaged()
    try:
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
            # What waits for a table holds up all who come for it later.
            await connection.execute("set local lock_timeout = '10s'")
            await connection.execute(_BOOTSTRAP)
            return await _bring_up_to_date(connection, schema)
    except asyncpg.PostgresError as error:
        if is_passing(error):
            raise translate(error) from error
        raise StartupError(f"the schema cannot be brought up to date: {error}") from error


async def _bring_up_to_date(connection: asyncpg.Connection, schema: Schema) -> list[str]:
    rows = await connection.fetch("select name, checksum, version from queen.schema_files")
    known = {row["name"]: _Installed(row["checksum"], row["version"]) for row in rows}
    migrations = {name: file for name, file in known.items() if _MIGRATION.fullmatch(name)}
    functions = {name: file for name, file in known.items() if name not in migrations}
    _refuse_newer_migrations(schema, migrations)
    differing = _find_differing(schema, functions)
    if differing:
        _refuse_newer_functions(schema, functions)
    applied = await _migrate(connection, schema, migrations)
    if differing:
        await install(connection, schema.functions, schema.migrations, functions.keys())
        await _record(connection, schema, schema.functions)
        await connection.execute(
            "delete from queen.schema_files where name = any ($1::text[])",
            list(functions.keys() - {name for name, _ in schema.functions}),
        )
    return applied + [name for name, _ in schema.functions if name in differing]


def _refuse_newer_migrations(schema: Schema, migrations: dict[str, _Installed]) -> None:
    unknown = sorted(migrations.keys() - {name for name, _ in schema.migrations})
    if unknown:
        raise StartupError(
            f"this database belongs to a newer Queen: version {schema.version} does not know "
            f"{', '.join(unknown)}; start the newer version"
        )


def _refuse_newer_functions(schema: Schema, functions: dict[str, _Installed]) -> None:
    newest = max((file.version for file in functions.values()), key=_version_numbers, default="")
    if _version_numbers(newest) > _version_numbers(schema.version):
        raise StartupError(
            f"this database belongs to a newer Queen: version {newest} has installed its "
            f"functions, and this is {schema.version}; start the newer version"
        )


def _find_differing(schema: Schema, functions: dict[str, _Installed]) -> set[str]:
    """Return the files that are new, changed or gone."""
    installed = {(name, file.checksum) for name, file in functions.items()}
    packaged = {(name, _checksum(text)) for name, text in schema.functions}
    return {name for name, _ in installed ^ packaged}


async def _migrate(
    connection: asyncpg.Connection, schema: Schema, known: dict[str, _Installed]
) -> list[str]:
    applied: list[str] = []
    for name, text in schema.migrations:
        if name not in known:
            await connection.execute(text)
            await _record(connection, schema, [(name, text)])
            applied.append(name)
        elif known[name].checksum != _checksum(text):
            raise StartupError(f"migration {name} differs from the one this database was made with")
    return applied


async def _record(
    connection: asyncpg.Connection, schema: Schema, done: list[tuple[str, str]]
) -> None:
    await connection.execute(
        "insert into queen.schema_files (name, checksum, version)"
        " select w.name, w.checksum, $3 from unnest($1::text[], $2::text[]) w (name, checksum)"
        " on conflict (name) do update set checksum = excluded.checksum,"
        " version = excluded.version, applied_at = clock_timestamp()",
        [name for name, _ in done],
        [_checksum(text) for _, text in done],
        schema.version,
    )


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _version_numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers that compare; one that is not said comes before all."""
    return tuple(map(int, re.findall(r"\d+", version)))
