"""Migrations run once, notice tampering, and survive several servers starting together."""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.resources import files

import asyncpg
import pytest

from queen.errors import StartupError
from queen.storage.embedded import EmbeddedPostgres
from queen.storage.migrate import Schema, migrate


@pytest.fixture
async def empty(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """The name of an empty database."""
    name = f"empty_{uuid.uuid4().hex[:8]}"
    admin = await asyncpg.connect(postgres.dsn)
    await admin.execute(f"create database {name}")
    yield name
    await admin.execute(f"drop database {name} with (force)")
    await admin.close()


async def test_a_second_run_has_nothing_to_do(postgres: EmbeddedPostgres, empty: str) -> None:
    connection = await asyncpg.connect(postgres.dsn, database=empty)
    assert "0001_log.sql" in await migrate(connection)
    assert await migrate(connection) == []
    await connection.close()


async def test_servers_that_start_together_migrate_once(
    postgres: EmbeddedPostgres, empty: str
) -> None:
    connections = [await asyncpg.connect(postgres.dsn, database=empty) for _ in range(4)]
    applied = await asyncio.gather(*(migrate(one) for one in connections))
    assert sorted(map(bool, applied)) == [False, False, False, True]
    for connection in connections:
        await connection.close()


async def test_a_changed_old_migration_is_refused(postgres: EmbeddedPostgres, empty: str) -> None:
    connection = await asyncpg.connect(postgres.dsn, database=empty)
    await migrate(connection)
    await connection.execute(
        "update queen.schema_files set checksum = 'x' where name = '0001_log.sql'"
    )
    with pytest.raises(StartupError, match="0001_log"):
        await migrate(connection)
    await connection.close()


# ---- versions ----

_OLDER, _NEWER = "0.0.1", "1000.0.0"
# Functions as a former version may have had them: another result, other parameters, a name
# that is not used any more, and a trigger that asks one of them.
_OLD_FUNCTIONS = {
    "is_done.sql": (
        "create or replace function queen.is_done(p_group integer, p_window bigint)"
        " returns text language sql immutable as $$ select 'yes' $$;"
    ),
    "seal.sql": (
        "create or replace function queen.seal(p_queue integer, p_why text)"
        " returns integer language sql as $$ select 1 $$;"
    ),
    "given_up.sql": (
        "create or replace function queen.given_up() returns integer"
        " language sql as $$ select 1 $$;"
    ),
}
_SIGNATURES = """
select p.oid::regprocedure::text || ' ' || pg_get_function_result(p.oid)
from pg_proc p where p.pronamespace = 'queen'::regnamespace order by 1
"""


def _with_functions(version: str, **texts: str) -> Schema:
    """The schema of today with some other functions, as another version."""
    packaged = Schema.packaged()
    functions = dict(packaged.functions) | {f"{name}.sql": text for name, text in texts.items()}
    return replace(packaged, version=version, functions=sorted(functions.items()))


@pytest.fixture
async def inside(postgres: EmbeddedPostgres, empty: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the empty database."""
    connection = await asyncpg.connect(postgres.dsn, database=empty)
    yield connection
    await connection.close()


async def _signatures(connection: asyncpg.Connection) -> list[str]:
    return [row[0] for row in await connection.fetch(_SIGNATURES)]


async def test_functions_of_an_older_version_are_replaced_whatever_they_were(
    postgres: EmbeddedPostgres, inside: asyncpg.Connection
) -> None:
    old = {name.removesuffix(".sql"): text for name, text in _OLD_FUNCTIONS.items()}
    await migrate(inside, _with_functions(_OLDER, **old))
    assert "queen.given_up() integer" in await _signatures(inside)
    assert set(await migrate(inside)) == set(_OLD_FUNCTIONS) - {"given_up.sql"}
    found = await _signatures(inside)

    fresh = f"fresh_{uuid.uuid4().hex[:8]}"
    await inside.execute(f"create database {fresh}")
    connection = await asyncpg.connect(postgres.dsn, database=fresh)
    await migrate(connection)
    assert found == await _signatures(connection)
    await connection.close()
    await inside.execute(f"drop database {fresh}")
    assert await migrate(inside) == []


async def test_triggers_and_rights_outlive_a_function_that_is_made_anew(
    inside: asyncpg.Connection,
) -> None:
    await migrate(inside, _with_functions(_OLDER, is_done=_OLD_FUNCTIONS["is_done.sql"]))
    role = f"reader_{uuid.uuid4().hex[:8]}"
    await inside.execute(
        f"""
        create role {role};
        grant execute on function queen.is_done(integer, bigint) to {role};
        create table public.orders (id bigint);
        create function public.note() returns trigger language plpgsql as 'begin return new; end';
        create trigger noted after insert on public.orders for each row
            when (queen.is_done(1, new.id) is not null) execute function public.note()
        """
    )
    try:
        await migrate(inside)
        signature = next(one for one in await _signatures(inside) if "is_done" in one)
        assert not signature.endswith(" text")
        assert await inside.fetchval("select tgname from pg_trigger where tgname = 'noted'")
        assert await inside.fetchval(
            "select has_function_privilege($1, p.oid, 'execute') from pg_proc p"
            " where p.oid::regprocedure::text like 'queen.is_done%'",
            role,
        )
    finally:
        await inside.execute(f"drop owned by {role}; drop role {role}")


async def test_what_else_hangs_on_a_changed_function_is_named(inside: asyncpg.Connection) -> None:
    await migrate(inside, _with_functions(_OLDER, is_done=_OLD_FUNCTIONS["is_done.sql"]))
    await inside.execute("create view public.theirs as select queen.is_done(1, 2) as done")
    with pytest.raises(StartupError, match="view theirs"):
        await migrate(inside)
    await inside.execute("drop view public.theirs")
    await migrate(inside)


async def test_a_function_whose_file_is_gone_is_dropped_with_its_record(
    inside: asyncpg.Connection,
) -> None:
    await migrate(inside, _with_functions(_OLDER, given_up=_OLD_FUNCTIONS["given_up.sql"]))
    recorded = "select count(*) from queen.schema_files where name = 'given_up.sql'"
    assert "queen.given_up() integer" in await _signatures(inside)
    assert await inside.fetchval(recorded) == 1
    # Nothing is applied: all other files are what they were.
    assert await migrate(inside) == []
    assert "queen.given_up() integer" not in await _signatures(inside)
    assert await inside.fetchval(recorded) == 0


def test_a_file_makes_the_function_that_it_is_named_after() -> None:
    """By its file a former version's function is known, and dropped when the file is gone."""
    for name, text in Schema.packaged().functions:
        made = set(re.findall(r"create or replace function queen\.(\w+)", text))
        assert made == {name.removesuffix(".sql")}, name


async def test_a_function_of_somebody_else_in_our_schema_stays(inside: asyncpg.Connection) -> None:
    await migrate(inside, _with_functions(_OLDER, given_up=_OLD_FUNCTIONS["given_up.sql"]))
    await inside.execute(
        "create function queen.theirs() returns integer language sql as $$ select 1 $$"
    )
    await migrate(inside)
    found = await _signatures(inside)
    assert "queen.theirs() integer" in found and "queen.given_up() integer" not in found


async def test_a_migration_that_is_not_known_is_refused(inside: asyncpg.Connection) -> None:
    packaged = Schema.packaged()
    extra = ("9000_later.sql", "create table queen.later (id integer)")
    await migrate(inside, replace(packaged, migrations=[*packaged.migrations, extra]))
    with pytest.raises(StartupError, match=r"newer Queen.*9000_later\.sql"):
        await migrate(inside)


async def test_functions_of_a_newer_version_are_not_overwritten(
    inside: asyncpg.Connection,
) -> None:
    newer = _with_functions(
        _NEWER,
        is_done=dict(Schema.packaged().functions)["is_done.sql"] + "\n-- Better than before.\n",
    )
    await migrate(inside)
    assert await migrate(inside, newer) == ["is_done.sql"]
    with pytest.raises(StartupError, match=f"newer Queen.*{_NEWER}"):
        await migrate(inside)
    assert await migrate(inside, newer) == []


async def test_a_newer_version_with_the_same_functions_is_no_reason_to_refuse(
    inside: asyncpg.Connection,
) -> None:
    await migrate(inside, replace(Schema.packaged(), version=_NEWER))
    assert await migrate(inside) == []


async def test_a_migration_that_fails_is_told_plainly(inside: asyncpg.Connection) -> None:
    packaged = Schema.packaged()
    broken = [*packaged.migrations, ("9000_broken.sql", "create table queen.queues (id integer)")]
    with pytest.raises(StartupError, match="cannot be brought up to date"):
        await migrate(inside, replace(packaged, migrations=broken))
    assert await inside.fetchval("select to_regclass('queen.queues')") is None


async def test_migrations_and_functions_are_one_transaction(inside: asyncpg.Connection) -> None:
    packaged = Schema.packaged()
    extra = [
        ("9000_first.sql", "create table queen.first (id integer)"),
        ("9001_second.sql", "insert into queen.first default values"),
    ]
    later = replace(packaged, migrations=[*packaged.migrations, *extra])
    broken = replace(later, functions=[*packaged.functions, ("broken.sql", "select 1 / 0")])
    with pytest.raises(StartupError, match="cannot be brought up to date"):
        await migrate(inside, broken)
    assert await inside.fetchval("select to_regclass('queen.first')") is None
    await migrate(inside, later)
    written = "select count(distinct xmin::text) from queen.schema_files"
    assert await inside.fetchval(written) == 1


async def test_a_schema_from_before_versions_were_noted_is_taken_over(
    inside: asyncpg.Connection,
) -> None:
    await migrate(inside)
    await inside.execute("alter table queen.schema_files drop column version")
    assert await migrate(inside) == []


async def test_a_backup_under_way_holds_up_no_start(
    postgres: EmbeddedPostgres, empty: str, inside: asyncpg.Connection
) -> None:
    await migrate(inside)
    backup = await asyncpg.connect(postgres.dsn, database=empty)
    async with backup.transaction():
        await backup.execute("lock table queen.schema_files, queen.api_tokens in access share mode")
        assert await migrate(inside) == []
    await backup.close()


# What databases out there were made with. A new migration gets a line; no line ever changes.
RELEASED = {
    "0001_log.sql": "6ac7910d529b",
    "0002_contract.sql": "b9e2958ae159",
    "0003_staging.sql": "24878b210fac",
    "0004_statistics.sql": "c74c8484d732",
    "0005_traces.sql": "4134e263fc0e",
    "0006_access.sql": "3626c4b9976f",
    "0007_lagging.sql": "cb13f72cbdf5",
    "0008_streams.sql": "71d41abe8c23",
    "0009_queries.sql": "bf5670b92ad8",
    "0010_sealed_reading.sql": "16cfe07016d7",
    "0011_sinks.sql": "e748b26b89e2",
    "0012_pipelines.sql": "386cce56b17a",
    "0013_token_changes.sql": "7206c8547b18",
    "0014_revisions.sql": "56cea33f40aa",
    "0015_horizon.sql": "bb355e8c9cdf",
    "0016_spools.sql": "95c90ad2dee5",
    "0017_entry_streams.sql": "641f92bb2c8e",
    "0018_named_options.sql": "af01ee00fe89",
    "0019_flows.sql": "80468dfddf06",
    "0020_consumers.sql": "91bb392b45d1",
    "0021_shared_groups.sql": "8e67a42c03f4",
    "0022_retries.sql": "ca480f0137a8",
    "0023_headers.sql": "25bd733bde62",
    "0024_tasks.sql": "7013c2b9de79",
    "0025_limits.sql": "a7423dc5c850",
    "0026_queue_limits.sql": "ec4c2fe39a0c",
    "0027_merged_segments.sql": "68a85f1d3578",
    "0028_hot_rows.sql": "6093db2ae5f9",
}


def test_no_migration_differs_from_the_one_that_databases_were_made_with() -> None:
    folder = files("queen.storage") / "sql" / "migrations"
    digests = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:12] for file in folder.iterdir()
    }
    assert digests == RELEASED
