"""Streams on a Redis or Valkey server.

Commands that are asked again do no harm are repeated when the connection breaks, for `retry_s`
seconds, with growing pauses: reads, acks, claims, and what only looks. A read or claim whose answer
was lost may have delivered entries: they are pending for the consumer, and come again by a claim
or with `history_after`. An ack that is repeated may count fewer than it acked.

An add is not repeated blindly. If the connection breaks after it was sent, it raises
`OutcomeUnknown`: the entry may be there or not. With an idempotency key it is repeated.

A read that waits has a connection of its own. A server that is restarted under it is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from queen.errors import BadRequest, OutcomeUnknown, Unauthenticated, Unreachable
from queen.extras import require
from queen.streambroker.commands import CommandStreamBroker
from queen.streambroker.interface import Capability
from queen.streambroker.replies import Failure, Pairs, Reply

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.connection import AbstractConnection, ConnectionPool

RETRY_S = 30.0
# How long an answer may take, beside the time that a command waits.
TIMEOUT_S = 10.0
MAX_CONNECTIONS = 32

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_READS = frozenset({b"XREAD", b"XREADGROUP"})
# Adds entries each time.
_ADDS = frozenset({b"XADD", b"XREDRIVE"})

Command = Sequence[bytes]


class RedisStreamBroker(CommandStreamBroker):
    """A stream broker on a Redis or Valkey server."""

    def __init__(
        self,
        server: str | Redis,
        *,
        retry_s: float = RETRY_S,
        timeout_s: float = TIMEOUT_S,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """Take a URL, `redis://`, `rediss://` or `unix://`, or a client of `redis.asyncio`, of
        which only the settings are used. What waits does not count as a connection."""
        executor = RedisExecutor(
            server, retry_s=retry_s, timeout_s=timeout_s, max_connections=max_connections
        )
        # Whether a restart of the server leaves anything is a matter of its own settings.
        super().__init__(executor, capabilities=frozenset({Capability.LASTING}))
        self._redis_executor = executor

    @property
    def capabilities(self) -> frozenset[Capability]:
        capabilities = super().capabilities
        # What knows limits of its own is no Redis, but a port of ours.
        is_ours = Capability.SHARED_DELIVERY_LIMIT in capabilities
        return capabilities if is_ours else capabilities | {Capability.ANY_NAME}

    async def close(self) -> None:
        await self._redis_executor.close()


class RedisExecutor:
    """Runs commands on a server, with replies as they are on the wire."""

    def __init__(
        self,
        server: str | Redis,
        *,
        retry_s: float = RETRY_S,
        timeout_s: float = TIMEOUT_S,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._pool = _pool_for(server, timeout_s)
        self._retry_s = retry_s
        self._timeout_s = timeout_s
        self._turns = asyncio.Semaphore(max_connections)
        self._is_closed = False
        self._busy: set[AbstractConnection] = set()

    async def close(self) -> None:
        self._is_closed = True
        # Those who wait on them find out at once.
        for connection in list(self._busy):
            await connection.disconnect(nowait=True)
        await self._pool.aclose()

    async def execute(self, commands: Sequence[Command], *, is_atomic: bool = False) -> list[Reply]:
        wait_s = 0.0 if is_atomic else _wait_s(commands)
        asked = time.monotonic()
        give_up: float | None = None
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await self._attempt(commands, is_atomic, wait_s)
            except _Lost as lost:
                self._refuse_if_final(lost, commands)
                # Time runs from when the connection is lost, not from when a wait began.
                now = time.monotonic()
                give_up = now + self._retry_s if give_up is None else give_up
                if now + pause_s > give_up:
                    raise Unreachable(f"no Redis server answers: {lost.reason}") from lost.reason
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            commands, wait_s = _shortened(commands, wait_s, time.monotonic() - asked)

    def _refuse_if_final(self, lost: _Lost, commands: Sequence[Command]) -> None:
        if self._is_closed:
            raise Unreachable("the stream broker is closed") from lost.reason
        if lost.was_sent and not all(map(_is_repeatable, commands)):
            raise OutcomeUnknown(
                "the connection to Redis broke before it answered; the entry may have been added. "
                "Look for it, or add with an idempotency_key where the server knows that"
            ) from lost.reason

    async def _attempt(
        self, commands: Sequence[Command], is_atomic: bool, wait_s: float | None
    ) -> list[Reply]:
        if self._is_closed:
            raise Unreachable("the stream broker is closed")
        turn = self._turns if wait_s == 0 else contextlib.nullcontext()
        limit_s = None if wait_s is None else wait_s + self._timeout_s
        async with turn, self._connection() as connection, asyncio.timeout(limit_s):
            return await _exchange(connection, commands, is_atomic)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[AbstractConnection]:
        """Lend a connection. It is closed when its answer was not read to the end."""
        from redis.exceptions import AuthenticationError, RedisError

        try:
            connection: AbstractConnection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        except AuthenticationError as error:
            raise Unauthenticated from error
        except (RedisError, OSError, TimeoutError) as error:
            raise _Lost(error, was_sent=False) from error
        self._busy.add(connection)
        try:
            yield connection
        except (RedisError, OSError, TimeoutError) as error:
            await connection.disconnect(nowait=True)
            raise _Lost(error, was_sent=True) from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            self._busy.discard(connection)
            await self._pool.release(connection)


class _Lost(Exception):
    """The connection broke, before or after commands were sent."""

    def __init__(self, reason: Exception, *, was_sent: bool) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.was_sent = was_sent


async def _exchange(
    connection: AbstractConnection, commands: Sequence[Command], is_atomic: bool
) -> list[Reply]:
    """Send commands at once and return their replies."""
    sent = [(b"MULTI",), *commands, (b"EXEC",)] if is_atomic else list(commands)
    await connection.send_packed_command(connection.pack_commands(sent), check_health=False)
    replies = [await _read(connection) for _ in sent]
    if not is_atomic:
        return replies
    outcome = replies[-1]
    if isinstance(outcome, list):
        return outcome
    # One was refused before anything was run, so none was.
    reason = outcome if isinstance(outcome, Failure) else Failure("EXECABORT nothing was run")
    return [reply if isinstance(reply, Failure) else reason for reply in replies[1:-1]]


async def _read(connection: AbstractConnection) -> Reply:
    from redis.exceptions import ConnectionError as ConnectionLost
    from redis.exceptions import ResponseError

    try:
        return _reply(await connection.read_response(disable_decoding=True))
    except ConnectionLost as error:
        if getattr(error, "status_code", None):
            # It is the server that says so, of a command that it did not run.
            raise _Lost(error, was_sent=False) from error
        raise
    except ResponseError as error:
        return _failure(error)


def _reply(value: Any) -> Reply:
    """Return what redis-py made of a reply as a reply."""
    if isinstance(value, list):
        return [_reply(item) for item in value]
    if isinstance(value, dict):
        return Pairs([_reply(part) for pair in value.items() for part in pair])
    if isinstance(value, Exception):
        return _failure(value)
    return cast("Reply", value)


def _failure(error: Exception) -> Failure:
    """Return an error with its code, which redis-py cuts off when it knows it."""
    code = getattr(error, "status_code", None)
    return Failure(f"{code} {error}" if code else str(error))


def _is_repeatable(command: Command) -> bool:
    name = command[0].upper()
    return name not in _ADDS or (name == b"XADD" and b"IDMP" in _add_options(command))


def _add_options(command: Command) -> Sequence[bytes]:
    """Return what stands between the stream and the id of an add."""
    return command[2 : command.index(b"*", 2)] if b"*" in command[2:] else ()


def _block_index(command: Command) -> int | None:
    """Return where a read says how long it waits."""
    if command[0].upper() not in _READS:
        return None
    for index, part in enumerate(command):
        if part.upper() == b"STREAMS":
            return None
        if part.upper() == b"BLOCK" and index + 1 < len(command):
            return index + 1
    return None


def _wait_s(commands: Sequence[Command]) -> float | None:
    """Return how long commands wait in all; None for ever."""
    total_ms = 0
    for command in commands:
        index = _block_index(command)
        if index is None or not command[index].isdigit():
            continue
        if int(command[index]) == 0:
            return None
        total_ms += int(command[index])
    return total_ms / 1000


def _shortened(
    commands: Sequence[Command], wait_s: float | None, waited_s: float
) -> tuple[Sequence[Command], float | None]:
    """Return commands that wait only for what is left of their time."""
    if not wait_s or len(commands) != 1:
        return commands, wait_s
    command = list(commands[0])
    index = cast("int", _block_index(command))
    left_s = max(0.001, wait_s - waited_s)
    command[index] = b"%d" % max(1, int(left_s * 1000))
    return [command], left_s


def _pool_for(server: str | Redis, timeout_s: float) -> ConnectionPool:
    """Return a pool of our own: nothing that others set up on their connections is in the way."""
    require("redis", "a stream on a Redis server")
    from redis.asyncio.connection import ConnectionPool
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    if isinstance(server, str):
        try:
            given = ConnectionPool.from_url(server)
        except (ValueError, TypeError) as error:
            raise BadRequest(f"not a URL of a Redis server: {error}") from error
    else:
        given = server.connection_pool
    settings: dict[str, Any] = {
        name: value
        for name, value in given.connection_kwargs.items()
        if "maint" not in name and not name.startswith("orig_")
    }
    settings |= {
        "decode_responses": False,
        # We say how long an answer may take, and when to try again.
        "socket_timeout": None,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
    }
    with contextlib.suppress(ImportError):
        from redis.maint_notifications import MaintNotificationsConfig

        # A pool that listens to them lends connections that were closed meanwhile.
        settings["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    if "path" not in settings:
        settings |= {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE}
    pool = ConnectionPool(connection_class=given.connection_class, **settings)
    try:
        # It is not connected yet; this is about options that nobody knows.
        pool.make_connection()  # type: ignore[no-untyped-call]
    except (TypeError, ValueError) as error:
        raise BadRequest(f"not an option of a Redis server: {error}") from error
    return pool


# A server that vanished without a word is noticed within a minute, also by those who wait for ever.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}
