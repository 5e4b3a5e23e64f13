"""Databases of a test's own: what it deletes, counts or measures there is nobody else's."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from queen.storage.migrate import migrate


@asynccontextmanager
async def own_database(postgres_dsn: str, *, migrated: bool = True) -> AsyncIterator[str]:
    """The URL of a new database, which is gone when the block ends."""
    name = f"own_{uuid.uuid4().hex[:12]}"
    admin = await asyncpg.connect(postgres_dsn)
    try:
        await admin.execute(f"create database {name}")
        dsn = urlunsplit(urlsplit(postgres_dsn)._replace(path=f"/{name}"))
        if migrated:
            inside = await asyncpg.connect(dsn)
            await migrate(inside)
            await inside.close()
        yield dsn
        await admin.execute(f"drop database {name} with (force)")
    finally:
        await admin.close()
