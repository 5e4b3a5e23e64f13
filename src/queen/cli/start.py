"""Everything between the options of `queen serve` and a server that can run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import msgspec

from queen.cli.database import DatabaseInUse, url_from_environment, warn_about_link
from queen.cli.processes import say
from queen.core.cipher import parse_keys
from queen.errors import StartupError
from queen.server.auth.keys import Keys
from queen.server.auth.options import AuthOptions, auth_options
from queen.server.logs import configure_logs
from queen.server.run import ServeOptions, listen
from queen.server.security import Security
from queen.service.broker import Limits
from queen.service.tokens import Tokens
from queen.storage.database import Database
from queen.storage.migrate import migrate

__all__ = ["Limits", "Security", "ServeOptions", "auth_options", "prepared"]

_log = logging.getLogger(__name__)


@contextmanager
def prepared(
    options: ServeOptions, url: str | None, data_dir: Path | None, allow_weak: bool
) -> Iterator[ServeOptions]:
    """Check what can be checked before anything is started, then have a database ready."""
    configure_logs()
    options.security.check(options.host)
    if options.test_clock:
        _log.warning("the test clock is on: clients can make everything stored here older")
    # A port that is taken is found out before anything else is done.
    listen(msgspec.structs.replace(options, shared=False)).close()
    has_key = bool(parse_keys(options.encryption_keys))
    with DatabaseInUse(url or url_from_environment(), data_dir) as dsn:
        asyncio.run(_prepare(dsn, allow_weak, has_key, options.security.auth))
        yield msgspec.structs.replace(options, dsn=dsn)


async def _prepare(dsn: str, allow_weak: bool, has_key: bool, auth: AuthOptions) -> None:
    """Bring the schema up to date and look whether the promises of it can be kept."""
    warn_about_link(dsn)
    try:
        connection = await asyncpg.connect(dsn, timeout=30)
    except (OSError, asyncpg.PostgresError, TimeoutError) as error:
        raise StartupError(f"cannot connect to PostgreSQL: {error}") from error
    try:
        if connection.get_server_version().major < 15:
            raise StartupError("PostgreSQL 15 or newer is needed")
        await migrate(connection)
    finally:
        await connection.close()
    database = await Database.connect(dsn, size=1)
    try:
        if not allow_weak:
            await database.check_durability()
        if not has_key and await database.fetchval("any_encrypted"):
            raise StartupError(
                "a queue of this database is encrypted; start with QUEEN_ENCRYPTION_KEY"
            )
        if auth.jwt is not None:
            await Keys(auth.jwt).start()
        first = await Tokens(database).first() if auth.tokens else None
        if first is not None:
            say(f"The first admin token, shown only now: {first.text}")
    finally:
        await database.close()
