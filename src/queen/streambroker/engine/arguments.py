"""How commands read their arguments, in the words of Redis when they are wrong."""

from __future__ import annotations

import re

from queen.streambroker.engine.ids import parse_id
from queen.streambroker.engine.keyspace import Arguments, Keyspace, shown
from queen.streambroker.engine.state.groups import Group
from queen.streambroker.engine.state.stream import Stream
from queen.streambroker.replies import Failure

NOT_AN_INTEGER = "ERR value is not an integer or out of range"
SYNTAX = Failure("ERR syntax error")

_INTEGER = re.compile(rb"-?[1-9][0-9]*|0")
_LIMIT = 1 << 63
# A wait ends at an instant that is a number too.
_LONGEST_WAIT_MS = _LIMIT - (1 << 42)


def parse_integer(text: bytes, error: str = NOT_AN_INTEGER) -> int:
    if len(text) <= 20 and _INTEGER.fullmatch(text):
        number = int(text)
        if -_LIMIT <= number < _LIMIT:
            return number
    raise Failure(error)


def parse_ids(texts: Arguments) -> list[int]:
    return [parse_id(text) for text in texts]


def parse_counted_ids(command: Arguments, at: int) -> tuple[list[int], int]:
    """Read `IDS n id …`; returns the ids and where the rest begins."""
    if at + 1 >= len(command):
        raise SYNTAX
    count = parse_integer(command[at + 1], "ERR Number of IDs must be a positive integer")
    if count <= 0:
        raise Failure("ERR Number of IDs must be a positive integer")
    end = at + 2 + count
    if end > len(command):
        raise Failure("ERR The `numids` parameter must match the number of arguments")
    return parse_ids(command[at + 2 : end]), end


def parse_block(text: bytes) -> int:
    timeout = parse_integer(text, "ERR timeout is not an integer or out of range")
    if timeout < 0:
        raise Failure("ERR timeout is negative")
    if timeout > _LONGEST_WAIT_MS:
        raise Failure("ERR timeout is out of range")
    return timeout


def no_group(key: bytes, group: bytes, where: str = "") -> Failure:
    return Failure(f"NOGROUP No such key '{shown(key)}' or consumer group '{shown(group)}'{where}")


def group_or_none(
    space: Keyspace, key: bytes, name: bytes, now: int
) -> tuple[Stream, Group] | None:
    stream = space.stream(key, now)
    if stream is None or name not in stream.groups:
        return None
    return stream, stream.groups[name]


def group_of(space: Keyspace, key: bytes, name: bytes, now: int) -> tuple[Stream, Group]:
    pair = group_or_none(space, key, name, now)
    if pair is None:
        raise no_group(key, name)
    return pair


def see_consumer(stream: Stream, group: Group, name: bytes, now: int) -> None:
    """Note that a consumer has come; the first time, that there is one."""
    consumer = group.consumers.get(name)
    if consumer is None:
        stream.create_consumer(group.name, name, now)
    else:
        # Not worth a place in a journal: it changes with every look.
        consumer.seen = now
