"""Connections to PostgreSQL and what their failures mean.

An error that PostgreSQL itself sent, with its SQLSTATE, says that the statement was rolled
back. Anything else (a reset, a timeout, a confused driver) leaves the outcome open, and the
connection is thrown away: it may still carry the answer to somebody else's question.

Two kinds of work share one pool. What must be fast (appends, claims, acks, what pops read) may
use every connection. All else, which may hold one for seconds, uses the same pool through
`Database.background` and leaves a few connections alone, so that it never fills the pool.

A connection that has done well stays at hand for the next statement (`queen.storage.at_hand`).
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

import asyncpg
from asyncpg import Record
from asyncpg.pool import PoolConnectionProxy

from queen.errors import Contended, OutcomeUnknown, QueenError, Unavailable, WeakDurability
from queen.storage.at_hand import AtHand
from queen.storage.breaker import Breaker, ConnectionProbe
from queen.storage.refusals import Refusals
from queen.storage.statements import statements, texts

# Deadlock, serialization failure: nothing happened, try again.
_TRANSIENT = {"40P01", "40001"}
# Somebody else held a lock for longer than the statement was to wait.
_LOCK_NOT_AVAILABLE = "55P03"
# Connection, resources, operator intervention, system errors: the database is not itself.
_OUTAGE_CLASSES = {"08", "53", "57", "58", "XX"}
_READ_ONLY = "25006"
# Lost against somebody else: another try finds what they left.
_RACES = {
    "23503": "a queue was deleted at the same moment",
    **dict.fromkeys(_TRANSIENT, "others change the same at once"),
}
# A function, column or table is not there, or not there once: another version of Queen has
# changed the schema. The servers of that version can serve.
_OTHER_SCHEMA = {"42883", "42703", "42P01", "42725", "42P10"}
_TRIES = 3
# Connections that slow work leaves alone, of a pool that is large enough.
_RESERVED = 3
_COMMAND_TIMEOUT_S = 30
_CONNECT_TIMEOUT_S = 5
_AWAY = "PostgreSQL does not answer"
# Stands for a connection where a statement has its name.
_CONNECT = ""

__all__ = [
    "Abandoned",
    "Database",
    "Record",
    "Transaction",
    "is_passing",
    "session_settings",
    "translate",
]

_Pooled: TypeAlias = "PoolConnectionProxy[Record]"
# Under `repeatable_read` all statements of a transaction see the same instant.
Isolation = Literal["read_committed", "repeatable_read"]

_SESSION = {
    "application_name": "queen",
    "search_path": "queen",
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "5s",
    "lock_timeout": "10s",
    "statement_timeout": "25s",
    "jit": "off",
    # They sort what an index has in order, and look at all versions of a row to find the latest. A
    # plan is kept, and a table that was small when it was made need not be when it is used.
    "enable_bitmapscan": "off",
    "enable_seqscan": "off",
    # The plans of the hot functions do not depend on their arguments.
    "plan_cache_mode": "force_generic_plan",
    "timezone": "UTC",
}


def session_settings() -> dict[str, str]:
    return dict(_SESSION)


# What leaves the outcome of a statement open.
_BROKEN = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)


class _Connection(asyncpg.Connection):
    """A connection that keeps its session: we use no state that a reset would have to undo."""

    def get_reset_query(self) -> str:
        return ""


class Abandoned(Exception):
    """Leaves a transaction on purpose, so that it is rolled back; the connection is as good as
    before."""


class _Shared:
    """What fast and slow work have together: what went wrong, and connections at hand."""

    def __init__(self) -> None:
        self.failures = 0
        self.refusals = Refusals()
        self.at_hand: AtHand[_Pooled] = AtHand()


class _Calls:
    """Named statements, called as their kinds say; see `queen.storage.statements`."""

    __slots__ = ()

    # Looked up once for all: the SQL of each statement stands in the one of its kind only.
    _many, _one, _maybe, _exec = texts("many"), texts("one"), texts("maybe"), texts("exec")

    def _send(
        self, name: str, sql: str, args: tuple[Any, ...]
    ) -> Coroutine[Any, Any, list[Record]]:
        raise NotImplementedError

    # Not a coroutine around another one: this is what appends, claims and acks go through.
    def fetch(self, name: str, *args: Any) -> Coroutine[Any, Any, list[Record]]:
        """Run a statement that returns any number of rows."""
        return self._send(name, self._many[name], args)

    async def fetchrow(self, name: str, *args: Any) -> Record:
        """Run a statement that returns one row, always."""
        (row,) = await self._send(name, self._one[name], args)
        return row

    async def fetchval(self, name: str, *args: Any) -> Any:
        """Return the only column of the row that `fetchrow` returns."""
        ((value,),) = await self._send(name, self._one[name], args)
        return value

    async def findrow(self, name: str, *args: Any) -> Record | None:
        """Run a statement that returns one row, or none."""
        rows = await self._send(name, self._maybe[name], args)
        if not rows:
            return None
        (row,) = rows
        return row

    async def findval(self, name: str, *args: Any) -> Any:
        """Return the only column of the row that `findrow` returns, None when there is none."""
        row = await self.findrow(name, *args)
        if row is None:
            return None
        (value,) = row
        return value

    async def execute(self, name: str, *args: Any) -> None:
        """Run a statement for what it does."""
        await self._send(name, self._exec[name], args)


class Database(_Calls):
    """A pool of connections that speaks in named statements and in our errors.

    Each statement is a transaction of its own.
    """

    def __init__(
        self, pool: asyncpg.Pool, breaker: Breaker | None = None, fast: Database | None = None
    ) -> None:
        self._pool = pool
        self._givings: set[asyncio.Future[None]] = set()
        self.breaker = breaker or Breaker()
        # None: all connections there are.
        self._slots: asyncio.Semaphore | None = None
        self._shared: _Shared = fast._shared if fast is not None else _Shared()
        self._at_hand = self._shared.at_hand
        # Not to be repeated by somebody who does not know what they did.
        self._only_once = {
            statement.name for statement in statements().values() if statement.repeated == "once"
        }
        # The same database for work that may be slow, and that leaves some connections alone.
        self.background = self
        if fast is None:
            self.background = Database(pool, self.breaker, self)
            size = pool.get_max_size()
            self.background._slots = asyncio.Semaphore(size - min(_RESERVED, size // 2))

    @classmethod
    async def connect(cls, dsn: str, *, size: int = 8) -> Database:
        # Those of the pool, to be cut when the machine at their other end is gone.
        opened: weakref.WeakSet[asyncpg.Connection] = weakref.WeakSet()

        async def note(connection: asyncpg.Connection) -> None:
            opened.add(connection)

        try:
            pool = await asyncpg.create_pool(
                dsn,
                # Connections are opened when they are first needed; an outage is not a reason to
                # knock at the door all the time.
                min_size=0,
                max_size=size,
                command_timeout=_COMMAND_TIMEOUT_S,
                timeout=_CONNECT_TIMEOUT_S,
                max_inactive_connection_lifetime=0,
                connection_class=_Connection,
                init=note,
                server_settings=_SESSION,
            )
        except (OSError, asyncpg.PostgresError, TimeoutError) as error:
            raise Unavailable(f"cannot connect to PostgreSQL: {error}") from error
        probe = ConnectionProbe(lambda: asyncpg.connect(dsn, server_settings=_SESSION))
        breaker = Breaker(probe)
        breaker.cut = lambda: _cut(opened)
        return cls(pool, breaker)

    @property
    def failures(self) -> int:
        """How many statements and connections failed, for whoever watches."""
        return self._shared.failures

    def refusal(self) -> str | None:
        """Say why PostgreSQL takes nothing, if it has refused something lately."""
        return self._shared.refusals.latest()

    @property
    def pool_size(self) -> int:
        """How many connections are open."""
        return self._pool.get_size()

    @property
    def pool_idle(self) -> int:
        """How many of them are not in use."""
        return self._pool.get_idle_size() + len(self._at_hand)

    @property
    def pool_limit(self) -> int:
        return self._pool.get_max_size()

    async def close(self) -> None:
        for connection in self._at_hand.take_all():
            await self._give_back(connection)
        try:
            await asyncio.wait_for(self._pool.close(), timeout=5)
        except (TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            self._pool.terminate()

    async def _send(self, name: str, sql: str, args: tuple[Any, ...]) -> list[Record]:
        """Run one statement in a transaction of its own.

        After a deadlock it is repeated: nothing had happened. After a broken connection it is
        repeated only if it does no harm twice; a pool may hold many connections to a
        PostgreSQL that is no more.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                return await self._send_once(name, sql, args)
            except asyncpg.PostgresError as error:
                if error.sqlstate not in _TRANSIENT or attempt == _TRIES:
                    raise translate(error) from error
                await asyncio.sleep(0.005 * attempt)
            except OutcomeUnknown:
                if name in self._only_once or attempt == _TRIES:
                    raise
        raise AssertionError("unreachable")

    async def _send_once(self, name: str, sql: str, args: tuple[Any, ...]) -> list[Record]:
        # Written out, without a context manager: this is what appends, claims and acks go through.
        if self._slots is not None:
            await self._take_slot(self._slots)
        try:
            connection = await self._take_connection()
            try:
                rows = await self.run(connection, name, sql, args)
            except BaseException as error:
                await self._give_back_after(error, connection)
                if isinstance(error, (asyncpg.ConnectionDoesNotExistError, *_BROKEN)):
                    # The first is the driver's own word for one that broke under the statement.
                    raise OutcomeUnknown from error
                raise
            if not self._at_hand.keep(connection):
                await self._give_back(connection)
            return rows
        finally:
            if self._slots is not None:
                self._slots.release()

    async def run(
        self, connection: _Pooled, name: str, sql: str, args: tuple[Any, ...]
    ) -> list[Record]:
        """Run one statement on a connection, and note whether PostgreSQL takes it."""
        try:
            rows: list[Record] = await connection.fetch(sql, *args)
        except asyncpg.PostgresError as error:
            self._note(name, error)
            raise
        self._shared.refusals.forget(name)
        return rows

    def _note(self, name: str, error: asyncpg.PostgresError) -> None:
        self._shared.refusals.note(name, error, is_hot=self._slots is None)

    @asynccontextmanager
    async def transaction(
        self, isolation: Isolation = "read_committed"
    ) -> AsyncIterator[Transaction]:
        """Open one transaction; leaving the block commits it, an exception rolls it back."""
        try:
            async with (
                self._acquire() as connection,
                connection.transaction(isolation=isolation),
            ):
                yield Transaction(connection, self)
        except asyncpg.PostgresError as error:
            raise translate(error) from error

    @asynccontextmanager
    async def _acquire(self) -> AsyncIterator[_Pooled]:
        if self._slots is not None:
            await self._take_slot(self._slots)
        try:
            connection = await self._take_connection()
            try:
                yield connection
            except BaseException as error:
                await self._give_back_after(error, connection)
                if isinstance(error, _BROKEN):
                    raise OutcomeUnknown from error
                raise
            if not self._at_hand.keep(connection):
                await self._give_back(connection)
        finally:
            if self._slots is not None:
                self._slots.release()

    async def _take_slot(self, slots: asyncio.Semaphore) -> None:
        if not slots.locked():
            # Not a reason to set a timer.
            await slots.acquire()
            return
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await slots.acquire()
        except TimeoutError as error:
            raise Unavailable("all connections for slow work are in use") from error

    async def _give_back_after(self, error: BaseException, connection: _Pooled) -> None:
        """Give a connection back that is as good as before, and throw any other away."""
        if isinstance(error, (asyncpg.PostgresError, *_BROKEN)):
            self._shared.failures += 1
        if isinstance(error, (asyncpg.PostgresConnectionError, *_BROKEN)):
            self.breaker.suspect()
        if isinstance(error, (asyncpg.PostgresError, QueenError, Abandoned)):
            await self._give_back(connection)
        else:
            # A cancelled call may leave its answer on the wire for the next user.
            await self._drop(connection)

    async def _take_connection(self) -> _Pooled:
        if self.breaker.is_open:
            raise _outage(_AWAY)
        kept = self._at_hand.take()
        if kept is not None:
            return kept
        try:
            if self._pool.get_idle_size():
                connection: _Pooled = await self._pool.acquire(timeout=_CONNECT_TIMEOUT_S)
            else:
                connection = await self._wait_for_connection()
        except (asyncpg.PostgresError, *_BROKEN) as error:
            self._shared.failures += 1
            self.breaker.suspect()
            if isinstance(error, asyncpg.PostgresError):
                self._note(_CONNECT, error)
            raise _outage() from error
        self._shared.refusals.forget(_CONNECT)
        return connection

    async def _wait_for_connection(self) -> _Pooled:
        """Wait until one is free, or made; not any longer than until the breaker opens."""
        self._at_hand.wanted += 1
        acquiring = asyncio.ensure_future(self._pool.acquire(timeout=_CONNECT_TIMEOUT_S))
        opening = asyncio.ensure_future(self.breaker.wait_open())
        try:
            await asyncio.wait((acquiring, opening), return_when=asyncio.FIRST_COMPLETED)
            if not acquiring.done():
                raise _outage(_AWAY)
            connection: _Pooled = acquiring.result()
            return connection
        except asyncio.CancelledError:
            acquiring.add_done_callback(self._give_back_unused)
            raise
        finally:
            self._at_hand.wanted -= 1
            opening.cancel()
            acquiring.cancel()

    def _give_back_unused(self, acquired: asyncio.Future[Any]) -> None:
        """Whoever asked for a connection is gone; if it came all the same, it goes back."""
        if not acquired.cancelled() and acquired.exception() is None:
            giving = asyncio.ensure_future(self._give_back(acquired.result()))
            self._givings.add(giving)
            giving.add_done_callback(self._givings.discard)

    async def _drop(self, connection: _Pooled) -> None:
        """Throw a connection away. The pool may have done that already when it broke."""
        with contextlib.suppress(asyncpg.InterfaceError):
            connection.terminate()
        await self._give_back(connection)

    async def _give_back(self, connection: _Pooled) -> None:
        try:
            await self._pool.release(connection)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            with contextlib.suppress(asyncpg.InterfaceError):
                connection.terminate()

    async def check_durability(self) -> None:
        """Raise `WeakDurability` when a confirmed commit may be lost in a crash."""
        rows = await self.fetch("durability")
        weak = [f"{row['name']}={row['setting']}" for row in rows if row["setting"] == "off"]
        if weak:
            raise WeakDurability(
                f"PostgreSQL runs with {', '.join(weak)}: a confirmed message could be lost in a "
                "crash. Turn it on, or start with --allow-weak-durability."
            )


class Transaction(_Calls):
    """Named statements inside one open transaction."""

    __slots__ = ("_connection", "_database")

    def __init__(self, connection: _Pooled, database: Database) -> None:
        self._connection = connection
        self._database = database

    def _send(
        self, name: str, sql: str, args: tuple[Any, ...]
    ) -> Coroutine[Any, Any, list[Record]]:
        return self._database.run(self._connection, name, sql, args)


def is_passing(error: asyncpg.PostgresError) -> bool:
    """Return whether the same statement may succeed later, with nothing changed by us."""
    state = error.sqlstate or ""
    return state in _TRANSIENT or state == _READ_ONLY or state[:2] in _OUTAGE_CLASSES


def translate(error: asyncpg.PostgresError) -> QueenError:
    """Return what an error of PostgreSQL means to a user of Queen, without SQL or data in it."""
    state = error.sqlstate or ""
    if isinstance(error, asyncpg.ConnectionDoesNotExistError):
        # The driver's own word for a connection that broke under a running statement.
        return OutcomeUnknown()
    if state in _RACES:
        return Unavailable(f"{_RACES[state]} (SQLSTATE {state})")
    if state == _LOCK_NOT_AVAILABLE:
        return Contended()
    if state in _OTHER_SCHEMA or isinstance(error, asyncpg.InvalidCachedStatementError):
        return Unavailable(f"another version of Queen changes the schema (SQLSTATE {state})")
    if is_passing(error):
        return _outage(f"PostgreSQL cannot serve now (SQLSTATE {state})")
    return QueenError(f"PostgreSQL refused the statement (SQLSTATE {state})")


def _outage(message: str | None = None) -> Unavailable:
    """Return what everybody is told while PostgreSQL does not answer, or takes nothing."""
    error = Unavailable(message)
    error.is_outage = True
    return error


def _cut(connections: Iterable[asyncpg.Connection]) -> None:
    for connection in list(connections):
        with contextlib.suppress(asyncpg.InterfaceError):
            connection.terminate()
