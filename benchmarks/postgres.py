"""The embedded PostgreSQL, seen from outside: where it listens, what it holds, how it is set."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import asyncpg

# What must be on for a number to count.
_DURABILITY = ("fsync", "synchronous_commit", "full_page_writes")

_STORED_BYTES = """
select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'm') and n.nspname not in ('pg_catalog', 'information_schema')
"""


@dataclass(frozen=True)
class PostgresAddress:
    pid: int
    host: str
    port: int

    @classmethod
    def read(cls, folder: Path) -> "PostgresAddress":
        """From `postmaster.pid`: line 1 is the pid, 4 the port, 5 the folder of the unix socket.

        The server may call its own folder by a name that only it understands, so the socket is
        looked for under both.
        """
        lines = (folder / "postmaster.pid").read_text().splitlines()
        port = int(lines[3])
        for host in (Path(lines[4].strip()), folder):
            if (host / f".s.PGSQL.{port}").exists():
                return cls(pid=int(lines[0]), host=str(host), port=port)
        raise FileNotFoundError(f"PostgreSQL in {folder} has no socket for port {port}")

    def dsn(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={quote(self.host)}&port={self.port}"

    async def connect(self, database: str) -> "asyncpg.Connection[asyncpg.Record]":
        return await asyncpg.connect(
            host=self.host, port=self.port, user="postgres", database=database
        )


async def settings(address: PostgresAddress) -> dict[str, str]:
    connection = await address.connect("postgres")
    try:
        names = ("server_version", "shared_buffers", "max_wal_size", *_DURABILITY)
        return {name: str(await connection.fetchval(f"show {name}")) for name in names}
    finally:
        await connection.close()


def weak_settings(values: dict[str, str]) -> list[str]:
    return [f"{name} = {values[name]}" for name in _DURABILITY if values[name] != "on"]


async def stored_bytes(address: PostgresAddress, *, without: str) -> int:
    """Tables with their indexes and TOAST, over all databases but the baseline's."""
    total = 0
    for name in await _databases(address):
        if name != without:
            connection = await address.connect(name)
            try:
                total += await connection.fetchval(_STORED_BYTES)
            finally:
                await connection.close()
    return total


async def _databases(address: PostgresAddress) -> list[str]:
    connection = await address.connect("postgres")
    try:
        rows = await connection.fetch("select datname from pg_database where datallowconn")
        return [row["datname"] for row in rows if row["datname"] != "template1"]
    finally:
        await connection.close()


async def checkpoint(address: PostgresAddress) -> None:
    """So that a scenario does not pay for the dirty pages of the one before it."""
    connection = await address.connect("postgres")
    try:
        await connection.execute("checkpoint")
    finally:
        await connection.close()
