"""What the tests of entry points share: a secret, as it comes to a server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from queen.storage.embedded import EmbeddedPostgres


@pytest.fixture
def url_file(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Path]:
    """A secret: the URL of a new database."""
    name = f"contained_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        admin.execute(f"create database {name}")
        own = urlunsplit(urlsplit(postgres.dsn)._replace(path=f"/{name}"))
        (tmp_path / "database-url").write_text(own + "\n")
        yield tmp_path / "database-url"
        admin.execute(f"drop database {name} with (force)")
