"""XGROUP: groups and consumers come and go."""

from __future__ import annotations

from queen.streambroker.engine.arguments import parse_integer
from queen.streambroker.engine.ids import parse_bound, parse_id
from queen.streambroker.engine.keyspace import (
    Arguments,
    Keyspace,
    command,
    shown,
    wrong_number,
)
from queen.streambroker.engine.state.groups import Group
from queen.streambroker.engine.state.stream import Stream
from queen.streambroker.replies import OK, Failure, Reply, Status

_NO_KEY = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to "
    "use the MKSTREAM option to create an empty stream automatically."
)
_HELP = [
    b"XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    b"CREATE <key> <groupname> <id|$> [MKSTREAM] [ENTRIESREAD entries-read]",
    b"CREATECONSUMER <key> <groupname> <consumer>",
    b"DELCONSUMER <key> <groupname> <consumer> [KEEPPENDING]",
    b"DESTROY <key> <groupname>",
    b"SETID <key> <groupname> <id|$> [ENTRIESREAD entries-read]",
    b"SETLIMIT <key> <groupname> <deliveries>",
]
# How many arguments each takes with both of its names; negative: at least.
_ARITY = {
    b"CREATE": -5,
    b"SETID": -5,
    b"DESTROY": 4,
    b"CREATECONSUMER": 5,
    b"DELCONSUMER": -5,
    b"SETLIMIT": 5,
    b"HELP": 2,
}


@command("XGROUP", -2)
def xgroup(space: Keyspace, command: Arguments, now: int) -> Reply:
    name = command[1].upper()
    arity = _ARITY.get(name)
    if arity is None:
        raise Failure(f"ERR unknown subcommand '{shown(command[1])}'. Try XGROUP HELP.")
    is_wrong = len(command) != arity if arity > 0 else len(command) < -arity
    if name == b"DELCONSUMER" and len(command) > 5:
        is_wrong = len(command) > 6 or command[5].upper() != b"KEEPPENDING"
    if is_wrong:
        raise wrong_number(f"xgroup|{name.decode().lower()}")
    if name == b"HELP":
        return [Status(line) for line in _HELP]
    if name == b"CREATE":
        return _create(space, command, now)
    options = _parse_options(command) if name == b"SETID" else (False, None)
    if options[0]:
        raise _wrong_subcommand(command)
    stream = space.stream(command[2], now)
    if stream is None:
        raise Failure(_NO_KEY)
    if name == b"DESTROY":
        return _destroy(space, stream, command[3])
    group = stream.groups.get(command[3])
    if group is None:
        raise no_group(command[3], command[2])
    return _change(space, stream, group, command, now, options[1])


def _change(
    space: Keyspace,
    stream: Stream,
    group: Group,
    command: Arguments,
    now: int,
    read: int | None,
) -> Reply:
    name = command[1].upper()
    if name == b"SETID":
        if len(command) > 7:
            raise _wrong_subcommand(command)
        stream.move_group(
            group.name, _position(stream, command[4], is_open=True), _at_most_added(stream, read)
        )
        return OK
    if name == b"SETLIMIT":
        return _limit(stream, group, command[4])
    if name == b"CREATECONSUMER":
        return _create_consumer(stream, group, command[4], now)
    return _drop_consumer(space, stream, group, command)


def no_group(group: bytes, key: bytes) -> Failure:
    return Failure(f"NOGROUP No such consumer group '{shown(group)}' for key name '{shown(key)}'")


def _wrong_subcommand(command: Arguments) -> Failure:
    return Failure(
        "ERR unknown subcommand or wrong number of arguments for "
        f"'{shown(command[1])}'. Try XGROUP HELP."
    )


def _parse_options(command: Arguments) -> tuple[bool, int | None]:
    """Read `[MKSTREAM] [ENTRIESREAD n]`."""
    makes, read, at = False, None, 5
    while at < len(command):
        option = command[at].upper()
        if option == b"MKSTREAM":
            makes = True
            at += 1
        elif option == b"ENTRIESREAD" and at + 1 < len(command):
            number = parse_integer(command[at + 1])
            if number < -1:
                raise Failure("ERR value for ENTRIESREAD must be positive or -1")
            read = None if number == -1 else number
            at += 2
        else:
            raise _wrong_subcommand(command)
    return makes, read


def _position(stream: Stream, text: bytes, *, is_open: bool) -> int:
    if text == b"$":
        return stream.last_id
    return parse_bound(text, 0) if is_open else parse_id(text)


def _create(space: Keyspace, command: Arguments, now: int) -> Reply:
    makes, read = _parse_options(command)
    key, name = command[2], command[3]
    stream = space.stream(key, now)
    if stream is None and not makes:
        raise Failure(_NO_KEY)
    if len(command) > 8:
        # An option that is there twice.
        raise _wrong_subcommand(command)
    last_id = _position(stream or Stream(key), command[4], is_open=False)
    if stream is None:
        stream = space.create(key)
    if name in stream.groups:
        raise Failure("BUSYGROUP Consumer Group name already exists")
    stream.create_group(name, last_id, _at_most_added(stream, read))
    return OK


def _at_most_added(stream: Stream, read: int | None) -> int | None:
    return None if read is None else min(read, stream.added)


def _destroy(space: Keyspace, stream: Stream, name: bytes) -> Reply:
    if name not in stream.groups:
        return 0
    stream.drop_group(name)
    # Whoever waits for it has to be told.
    space.ready.add(stream.name)
    return 1


def _limit(stream: Stream, group: Group, text: bytes) -> Reply:
    limit = parse_integer(text)
    if limit < 0:
        raise Failure("ERR The limit of deliveries must be >= 0")
    stream.limit_group(group.name, limit)
    return OK


def _create_consumer(stream: Stream, group: Group, name: bytes, now: int) -> Reply:
    if name in group.consumers:
        return 0
    stream.create_consumer(group.name, name, now)
    return 1


def _drop_consumer(space: Keyspace, stream: Stream, group: Group, command: Arguments) -> Reply:
    is_released = len(command) == 6
    consumer = group.consumers.get(command[4])
    if consumer is None:
        return 0
    pending = len(consumer.pending)
    stream.drop_consumer(group.name, consumer.name, int(is_released))
    if pending:
        space.ready.add(stream.name)
    return pending
