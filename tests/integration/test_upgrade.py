"""Two versions on one database: the older one serves on, and does not start again."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import pytest

import queen.storage
from queen.storage.embedded import EmbeddedPostgres
from queen.storage.migrate import Schema, migrate
from tests.conftest import ServerProcess
from tests.databases import own_database
from tests.integration.test_serve import run
from tests.ports import free_port

Start = Callable[..., ServerProcess]

_SQL = Path(queen.storage.__file__).parent / "sql"
_NEWER = "1000.0.0"


@pytest.fixture
async def own_dsn(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """A database of the test's own, with nothing in it."""
    async with own_database(postgres.dsn, migrated=False) as dsn:
        yield dsn


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The SQL of a version to come: one more migration, and a copy of all else."""
    folder = tmp_path / "sql"
    shutil.copytree(_SQL, folder)
    (folder / "migrations/9000_later.sql").write_text("create table queen.later (id integer)")
    return folder


async def upgrade(dsn: str, folder: Path) -> None:
    connection = await asyncpg.connect(dsn)
    await migrate(connection, Schema.read(folder, _NEWER))
    await connection.close()


def change(folder: Path, function: str, old: str, new: str) -> None:
    (path,) = folder.glob(f"functions/*/{function}.sql")
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


async def test_an_older_server_serves_on_beside_a_newer_one(
    own_dsn: str, newer: Path, start_server: Start
) -> None:
    older = start_server("--database-url", own_dsn)
    api = older.api()
    assert api.push({"queue": "q", "payload": 1}).status == 201
    last = "p_wait_ms integer default null"
    change(newer, "append", f"{last}\n", f"{last},\n    p_more integer default 0\n")
    await upgrade(own_dsn, newer)
    # Alone, and with others, which takes another function.
    assert api.push({"queue": "q", "payload": 2}).status == 201
    many = [{"queue": "q", "partition": name, "payload": 3} for name in "ab"]
    assert api.push(*many).status == 201
    assert len(api.messages("q", batch=10, partitions=3)) == 4
    assert older.stop() == 0


async def test_an_older_server_does_not_start_on_a_newer_schema(own_dsn: str, newer: Path) -> None:
    await upgrade(own_dsn, newer)
    refused = run("serve", "--port", str(free_port()), "--database-url", own_dsn)
    assert refused.returncode == 78
    assert "newer Queen" in refused.stderr and "9000_later.sql" in refused.stderr
    assert "Traceback" not in refused.stderr


async def test_what_an_older_server_cannot_do_any_more_may_be_tried_elsewhere(
    own_dsn: str, newer: Path, start_server: Start
) -> None:
    older = start_server("--database-url", own_dsn)
    api = older.api()
    assert api.push({"queue": "q", "payload": 1}).status == 201
    change(newer, "append_lone", "function queen.append_lone(", "function queen.append_more(")
    await upgrade(own_dsn, newer)
    refused = api.push({"queue": "q", "payload": 2})
    assert refused.status == 503
    assert "another version of Queen" in refused.raw.decode()
    assert older.stop() == 0
