"""DEL, EXISTS, TYPE, SCAN, EXPIRE …: what there is to do with a stream as a key."""

from __future__ import annotations

import random

from queen.streambroker.engine.arguments import NOT_AN_INTEGER, SYNTAX, parse_integer
from queen.streambroker.engine.globs import matcher
from queen.streambroker.engine.keyspace import Arguments, Keyspace, command
from queen.streambroker.replies import OK, Failure, Reply, Status

_MAX_MS = 1 << 62


@command("DEL", -2)
def delete(space: Keyspace, command: Arguments, now: int) -> Reply:
    return _drop(space, command, now)


@command("UNLINK", -2)
def unlink(space: Keyspace, command: Arguments, now: int) -> Reply:
    return _drop(space, command, now)


def _drop(space: Keyspace, command: Arguments, now: int) -> int:
    # All are looked up first: one that must be loaded has the command run again from its beginning.
    present = [key for key in dict.fromkeys(command[1:]) if space.stream(key, now) is not None]
    for key in present:
        space.drop(key)
    return len(present)


@command("EXISTS", -2)
def exists(space: Keyspace, command: Arguments, now: int) -> Reply:
    return sum(space.stream(key, now) is not None for key in command[1:])


@command("TOUCH", -2)
def touch(space: Keyspace, command: Arguments, now: int) -> Reply:
    return sum(space.stream(key, now) is not None for key in command[1:])


@command("RANDOMKEY", 1)
def randomkey(space: Keyspace, command: Arguments, now: int) -> Reply:
    names = space.names(now)
    return random.choice(names) if names else None  # noqa: S311


@command("TYPE", 2)
def type_of(space: Keyspace, command: Arguments, now: int) -> Reply:
    return Status(b"none" if space.stream(command[1], now) is None else b"stream")


@command("DBSIZE", 1)
def dbsize(space: Keyspace, command: Arguments, now: int) -> Reply:
    return len(space.names(now))


@command("KEYS", 2)
def keys(space: Keyspace, command: Arguments, now: int) -> Reply:
    matches = matcher(command[1])
    return [name for name in sorted(space.names(now)) if matches(name)]


@command("SCAN", -2)
def scan(space: Keyspace, command: Arguments, now: int) -> Reply:
    """Return all names at once: a cursor that is whole cannot miss one."""
    if not command[1].isdigit():
        raise Failure("ERR invalid cursor")
    matches, of_type, at = matcher(b"*"), b"stream", 2
    while at < len(command):
        if at + 1 == len(command):
            raise SYNTAX
        option, value = command[at].upper(), command[at + 1]
        if option == b"MATCH":
            matches = matcher(value)
        elif option == b"COUNT":
            if parse_integer(value) < 1:
                raise SYNTAX
        elif option == b"TYPE":
            of_type = value.lower()
        else:
            raise SYNTAX
        at += 2
    names: list[Reply] = [
        name for name in sorted(space.names(now)) if matches(name) and of_type == b"stream"
    ]
    return [b"0", names if command[1] == b"0" else []]


@command("FLUSHDB", -1)
def flushdb(space: Keyspace, command: Arguments, now: int) -> Reply:
    return _flush(space, command, now)


@command("FLUSHALL", -1)
def flushall(space: Keyspace, command: Arguments, now: int) -> Reply:
    return _flush(space, command, now)


def _flush(space: Keyspace, command: Arguments, now: int) -> Reply:
    if len(command) > 2 or (len(command) == 2 and command[1].upper() not in {b"SYNC", b"ASYNC"}):
        raise SYNTAX
    for name in space.names(now):
        space.drop(name)
    return OK


# ---- how long a stream stays ----


def _expire(space: Keyspace, command: Arguments, now: int, at_ms: int, name: str) -> Reply:
    stream = space.stream(command[1], now)
    condition = command[3].upper() if len(command) > 3 else b""
    if condition not in {b"", b"NX", b"XX", b"GT", b"LT"} or len(command) > 4:
        raise Failure(f"ERR Unsupported option {command[3].decode('utf-8', 'replace')}")
    if abs(at_ms) > _MAX_MS:
        raise Failure(f"ERR invalid expire time in '{name}' command")
    if stream is None or not _is_met(condition, stream.expires_at, at_ms):
        return 0
    if at_ms <= now:
        space.drop(command[1])
    else:
        stream.expire(at_ms)
    return 1


def _is_met(condition: bytes, before: int, after: int) -> bool:
    if condition == b"NX":
        return not before
    if condition == b"XX":
        return bool(before)
    if condition == b"GT":
        return bool(before) and after > before
    return condition != b"LT" or not before or after < before


@command("EXPIRE", -3)
def expire(space: Keyspace, command: Arguments, now: int) -> Reply:
    at = now + 1000 * parse_integer(command[2], NOT_AN_INTEGER)
    return _expire(space, command, now, at, "expire")


@command("PEXPIRE", -3)
def pexpire(space: Keyspace, command: Arguments, now: int) -> Reply:
    return _expire(space, command, now, now + parse_integer(command[2]), "pexpire")


@command("EXPIREAT", -3)
def expireat(space: Keyspace, command: Arguments, now: int) -> Reply:
    return _expire(space, command, now, 1000 * parse_integer(command[2]), "expireat")


@command("PEXPIREAT", -3)
def pexpireat(space: Keyspace, command: Arguments, now: int) -> Reply:
    return _expire(space, command, now, parse_integer(command[2]), "pexpireat")


@command("PERSIST", 2)
def persist(space: Keyspace, command: Arguments, now: int) -> Reply:
    stream = space.stream(command[1], now)
    if stream is None or not stream.expires_at:
        return 0
    stream.expire(0)
    return 1


def _remaining(space: Keyspace, key: bytes, now: int) -> int | None:
    """Return how many ms a stream has left; -1: it stays; None: there is none."""
    stream = space.stream(key, now)
    if stream is None:
        return None
    return stream.expires_at - now if stream.expires_at else -1


@command("TTL", 2)
def ttl(space: Keyspace, command: Arguments, now: int) -> Reply:
    left = _remaining(space, command[1], now)
    if left is None:
        return -2
    return left if left < 0 else (left + 500) // 1000


@command("PTTL", 2)
def pttl(space: Keyspace, command: Arguments, now: int) -> Reply:
    left = _remaining(space, command[1], now)
    return -2 if left is None else left


@command("EXPIRETIME", 2)
def expiretime(space: Keyspace, command: Arguments, now: int) -> Reply:
    at = _expires_at(space, command[1], now)
    return at // 1000 if at > 0 else at


@command("PEXPIRETIME", 2)
def pexpiretime(space: Keyspace, command: Arguments, now: int) -> Reply:
    return _expires_at(space, command[1], now)


def _expires_at(space: Keyspace, key: bytes, now: int) -> int:
    stream = space.stream(key, now)
    if stream is None:
        return -2
    return stream.expires_at or -1
