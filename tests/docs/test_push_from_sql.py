"""The examples of docs/howto/push-from-sql.md do what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import asyncpg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.api import Api

_PAGE = Path(__file__).parents[2] / "docs/howto/push-from-sql.md"
_BLOCK = re.compile(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_EXAMPLES = dict(_BLOCK.findall(_PAGE.read_text()))
_ORDERS = {"psycopg": 7, "SQLAlchemy": 8, "Django": 9}


def run(example: str, dsn: str) -> None:
    """Run a program that finds its database as every client of PostgreSQL does."""
    place = conninfo_to_dict(dsn)
    found = {
        "PGHOST": place["host"],
        "PGUSER": place["user"],
        "PGDATABASE": place.get("dbname") or "postgres",
    }
    if place.get("port"):
        found["PGPORT"] = place["port"]
    environment = {**os.environ, **{name: str(value) for name, value in found.items()}}
    subprocess.run([sys.executable, "-c", example], env=environment, check=True, timeout=60)


@pytest.mark.parametrize("name", sorted(_ORDERS))
def test_an_example_pushes(name: str, api: Api, dsn: str, queue: str) -> None:
    run(_EXAMPLES[name].replace('"orders"', f'"{queue}"'), dsn)
    (message,) = api.messages(queue, "customer-7", wait="true", timeout=20_000)
    assert message["data"] == {"order": _ORDERS[name], "paid": True}


def test_every_library_has_an_example() -> None:
    assert set(_EXAMPLES) == set(_ORDERS)


async def test_the_grants_are_enough(api: Api, dsn: str, queue: str) -> None:
    (grants,) = re.findall(r"^```sql\n(grant .*?)^```", _PAGE.read_text(), re.DOTALL | re.MULTILINE)
    role = f"shop_{uuid.uuid4().hex[:8]}"
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"create role {role}; {grants.replace('shop', role)}")
    await connection.execute(f"set role {role}")
    await connection.execute("select queen.push($1, 'p', '1')", queue)
    await connection.execute(f"reset role; drop owned by {role}; drop role {role}")
    await connection.close()
    assert api.data(queue, wait="true", timeout=20_000) == [1]
