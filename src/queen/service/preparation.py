"""What is done to a database before anybody is sent there: its schema, and what it must promise."""

from __future__ import annotations

import ssl

import asyncpg
import msgspec

from queen.errors import QueenError, StartupError, Unavailable
from queen.storage.database import Database, is_passing
from queen.storage.migrate import migrate

_CONNECT_TIMEOUT_S = 10
_PATIENCE_S = 2


class Requirements(msgspec.Struct, frozen=True):
    """What the database of a server must be like."""

    allows_weak_durability: bool = False
    # Whether the server can read queues that are encrypted.
    has_key: bool = False


async def answers(dsn: str) -> bool:
    """Return whether the database is there; one that refuses us for good is."""
    try:
        connection = await asyncpg.connect(dsn, timeout=_PATIENCE_S)
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as e:
        return not isinstance(refusal(e), Unavailable)
    connection.terminate()
    return True


async def prepare(dsn: str, requirements: Requirements) -> None:
    """Bring the schema up to date and check that the database can keep our promises.

    Raises `Unavailable` when it does not answer, `StartupError` when it never will do.
    """
    await _bring_up_to_date(dsn)
    database = await Database.connect(dsn, size=1)
    try:
        if not requirements.allows_weak_durability:
            await database.check_durability()
        if not requirements.has_key and await database.fetchval("any_encrypted"):
            raise StartupError(
                "a queue of this database is encrypted; start with QUEEN_ENCRYPTION_KEY"
            )
    finally:
        await database.close()


async def _bring_up_to_date(dsn: str) -> None:
    try:
        connection = await asyncpg.connect(dsn, timeout=_CONNECT_TIMEOUT_S)
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as e:
        raise refusal(e) from e
    try:
        if connection.get_server_version().major < 15:
            raise StartupError("PostgreSQL 15 or newer is needed")
        await migrate(connection)
    except (OSError, asyncpg.InterfaceError) as error:
        raise Unavailable(f"the connection to PostgreSQL broke: {error}") from error
    finally:
        connection.terminate()


def refusal(error: Exception) -> QueenError:
    """Return what a failed connection means: wait for the database, or correct something."""
    text = f"cannot connect to PostgreSQL: {error}"
    if isinstance(error, asyncpg.PostgresError):
        return Unavailable(text) if is_passing(error) else StartupError(text)
    # A URL that is not one, a certificate of somebody else, a socket that is not ours.
    wrong = (ValueError, asyncpg.InterfaceError, ssl.SSLError, PermissionError)
    return StartupError(text) if isinstance(error, wrong) else Unavailable(text)
