"""A server that asks everybody who they are, on a database of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import asyncpg
import pytest

from queen.storage.embedded import EmbeddedPostgres
from queen.storage.migrate import migrate
from tests.conftest import ServerProcess
from tests.security.client import Client, Guarded
from tests.security.issuer import AUDIENCE, ISSUER, ed_key, pem, rsa_key

As = Callable[..., Client]

JWT_ENVIRONMENT = {
    "JWT_ENABLED": "true",
    "JWT_ISSUER": ISSUER,
    "JWT_AUDIENCE": AUDIENCE,
    "JWT_PUBLIC_KEY": pem(rsa_key()) + pem(ed_key()),
}


@pytest.fixture(scope="session")
async def guarded_dsn(postgres: EmbeddedPostgres) -> str:
    name = f"guarded_{uuid.uuid4().hex[:8]}"
    admin = await asyncpg.connect(postgres.dsn)
    await admin.execute(f"create database {name}")
    await admin.close()
    dsn = postgres.dsn.replace("/queen?", f"/{name}?")
    assert dsn != postgres.dsn
    connection = await asyncpg.connect(dsn)
    await migrate(connection)
    await connection.close()
    return dsn


@pytest.fixture(scope="session")
def guarded(guarded_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    log = tmp_path_factory.mktemp("guarded") / "log"
    running = ServerProcess(
        "--database-url",
        guarded_dsn,
        "--auth",
        "tokens",
        "--cors-origin",
        "https://good.example",
        env=JWT_ENVIRONMENT,
        log=log,
    )
    yield Guarded(running, log, guarded_dsn)
    assert running.stop() == 0


@pytest.fixture
def acting() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def as_(guarded: Guarded, acting: ExitStack) -> As:
    """Speak to the guarded server as somebody: a role, and perhaps namespaces."""

    def become(role: str | None, *namespaces: str, url: str | None = None) -> Client:
        token = guarded.token(role, *namespaces) if role is not None else None
        return acting.enter_context(Client(url or guarded.url, token))

    return become


@pytest.fixture
def admin(as_: As) -> Client:
    return as_("admin")


@pytest.fixture
def stranger(as_: As) -> Client:
    return as_(None)
