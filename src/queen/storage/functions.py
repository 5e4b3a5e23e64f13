"""Functions of the schema, made again as their files say.

`create or replace` keeps a function's rights and whatever hangs on it, but takes neither
another result nor other names of parameters. A function that changed so is dropped first;
triggers that hang on it are made again after it. With other types of parameters it becomes
another function beside the old one, which no file describes any more: that one is dropped.
Rights that somebody was given on a function pass to those of the same name.

What else hangs on a function that must go, such as a view of the user's, is not ours to drop:
it is named, and the server refuses to start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import asyncpg

from queen.errors import StartupError

_DEFINED = re.compile(r"create (?:or replace )?function queen\.(\w+)", re.IGNORECASE)

# All of the schema that no extension owns. A new version of a row has another xmin.
_FUNCTIONS = """
select p.oid, p.proname, p.xmin::text as version, p.oid::regprocedure::text as signature,
       array(select a.grantee::regrole::text from aclexplode(p.proacl) a
              where a.privilege_type = 'EXECUTE' and a.grantee not in (0, p.proowner)) as grantees
from pg_proc p
where p.pronamespace = 'queen'::regnamespace
  and not exists (select 1 from pg_depend d
                   where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')
order by p.oid
"""

_TRIGGERS = """
select pg_get_triggerdef(t.oid) as definition,
       format('drop trigger %I on %s', t.tgname, t.tgrelid::regclass) as removal
from pg_depend d join pg_trigger t on t.oid = d.objid and not t.tgisinternal
where d.classid = 'pg_trigger'::regclass and d.refclassid = 'pg_proc'::regclass
  and d.refobjid = $1
"""


async def install(
    connection: asyncpg.Connection,
    functions: list[tuple[str, str]],
    migrations: list[tuple[str, str]],
    installed: Iterable[str],
) -> None:
    """Make all functions as their files say, in the transaction that is open.

    `installed` are the names of the files that a former version has installed.
    """
    # A function may call another that comes later in the alphabet; its body is checked when
    # it is first called.
    await connection.execute("set local check_function_bodies = off")
    before = await connection.fetch(_FUNCTIONS)
    for name, text in functions:
        await _create(connection, name, text)
    ours = {defined for _, text in functions for defined in _DEFINED.findall(text)}
    ours |= {name.removesuffix(".sql") for name in installed}
    ours -= _defined_by_migrations_only(functions, migrations)
    await _drop_what_is_left(connection, before, ours)
    await _grant_again(connection, before)


def _defined_by_migrations_only(
    functions: list[tuple[str, str]], migrations: list[tuple[str, str]]
) -> set[str]:
    made = {defined for _, text in migrations for defined in _DEFINED.findall(text)}
    return made - {defined for _, text in functions for defined in _DEFINED.findall(text)}


async def _create(connection: asyncpg.Connection, name: str, text: str) -> None:
    try:
        async with connection.transaction():
            await connection.execute(text)
    except (asyncpg.InvalidFunctionDefinitionError, asyncpg.WrongObjectTypeError):
        await _create_anew(connection, name, text)


async def _create_anew(connection: asyncpg.Connection, name: str, text: str) -> None:
    names = set(_DEFINED.findall(text))
    triggers: list[str] = []
    for row in await connection.fetch(_FUNCTIONS):
        if row["proname"] in names:
            triggers += await _drop_triggers(connection, row)
            await _drop(connection, row)
    try:
        await connection.execute(text)
        for definition in triggers:
            await connection.execute(definition)
    except asyncpg.PostgresError as error:
        raise StartupError(f"the function of {name} cannot be made: {error}") from error


async def _drop_triggers(connection: asyncpg.Connection, function: asyncpg.Record) -> list[str]:
    """Drop the triggers that hang on a function; return what makes them again."""
    triggers = await connection.fetch(_TRIGGERS, function["oid"])
    for row in triggers:
        await connection.execute(row["removal"])
    return [row["definition"] for row in triggers]


async def _drop(connection: asyncpg.Connection, function: asyncpg.Record) -> None:
    try:
        await connection.execute(f"drop routine {function['signature']}")
    except asyncpg.DependentObjectsStillExistError as error:
        raise StartupError(
            f"{function['signature']} has changed and something of yours depends on it "
            f"({error.detail}); drop that, start the server, and make it again"
        ) from error


async def _drop_what_is_left(
    connection: asyncpg.Connection, before: list[asyncpg.Record], ours: set[str]
) -> None:
    """Drop functions of ours that no file has made now."""
    old = {row["oid"]: row["version"] for row in before}
    for row in await connection.fetch(_FUNCTIONS):
        if row["proname"] in ours and old.get(row["oid"]) == row["version"]:
            await _drop(connection, row)


async def _grant_again(connection: asyncpg.Connection, before: list[asyncpg.Record]) -> None:
    known = {row["oid"] for row in before}
    for row in await connection.fetch(_FUNCTIONS):
        if row["oid"] in known:
            continue
        namesakes = [old for old in before if old["proname"] == row["proname"]]
        for grantee in {grantee for old in namesakes for grantee in old["grantees"]}:
            # Both names come quoted from the catalog.
            await connection.execute(f"grant execute on routine {row['signature']} to {grantee}")
