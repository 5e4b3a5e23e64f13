"""XADD, XTRIM, XSETID, XCFGSET: what puts entries in, and what limits them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from queen.streambroker.engine.arguments import SYNTAX, parse_integer
from queen.streambroker.engine.ids import (
    HALF,
    MAX_ID,
    Partial,
    make_id,
    parse_id,
    parse_partial,
    text_of,
)
from queen.streambroker.engine.keyspace import Arguments, Keyspace, command, wrong_number
from queen.streambroker.engine.state.stream import Stream
from queen.streambroker.engine.trimming import Trimming, parse_trim
from queen.streambroker.replies import OK, Failure, Reply

_TOO_SMALL = Failure(
    "ERR The ID specified in XADD is equal or smaller than the target stream top item"
)
_EXHAUSTED = Failure("ERR The stream has exhausted the last possible ID, unable to add more items")


class _Add:
    """The options of an add."""

    __slots__ = ("fields", "key", "makes_stream", "partial", "producer", "token", "trimming")

    def __init__(self, command: Arguments) -> None:
        self.trimming = Trimming()
        self.makes_stream = True
        self.key: bytes | None = None
        self.producer: bytes | None = None
        # None although there is a producer: the content is its own token.
        self.token: bytes | None = None
        # None: the stream chooses.
        self.partial: Partial | None = None
        at = self._take_options(command)
        self.fields = list(command[at + 1 :])
        if not self.fields or len(self.fields) % 2:
            raise wrong_number("xadd")
        self.trimming.check()
        if self.partial == Partial(0, 0):
            raise Failure("ERR The ID specified in XADD must be greater than 0-0")
        self._check_producer()

    def _check_producer(self) -> None:
        if self.producer is not None and self.partial is not None:
            raise Failure(
                "ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs"
            )

    def _take_options(self, command: Arguments) -> int:
        """Read what stands before the id; returns the place of the id."""
        at = 2
        while at < len(command):
            option, more = command[at].upper(), len(command) - 1 - at
            if option == b"*":
                break
            taken = self.trimming.take(command, at)
            if not taken:
                taken = self._take_own(command, at, option, more)
            if not taken:
                self.partial = parse_partial(command[at])
                break
            at += taken
        return at

    def _take_own(self, command: Arguments, at: int, option: bytes, more: int) -> int:
        if option == b"NOMKSTREAM":
            self.makes_stream = False
            return 1
        if option == b"KEY" and more:
            self.key = command[at + 1]
            return 2
        if option == b"IDMPAUTO" and more:
            self.producer = command[at + 1]
            return 2
        if option == b"IDMP" and more >= 2:
            self.producer, self.token = command[at + 1], command[at + 2]
            return 3
        return 0

    def token_of(self) -> bytes:
        if self.token is not None:
            return b"t" + self.token
        digest = hashlib.sha256()
        for part in self.fields:
            digest.update(b"%d:" % len(part))
            digest.update(part)
        return b"h" + digest.digest()


def next_id(stream: Stream, partial: Partial | None, now: int) -> int:
    """Choose the id of the next entry, or check the one that is asked for."""
    last = stream.last_id
    if last == MAX_ID:
        raise _EXHAUSTED
    if partial is None:
        return max(last + 1, make_id(now, 0))
    if partial.seq is not None:
        entry_id = make_id(partial.ms, partial.seq)
    elif partial.ms == last >> 64:
        if last & HALF == HALF:
            raise _TOO_SMALL
        entry_id = last + 1
    else:
        entry_id = make_id(partial.ms, 0)
    if entry_id <= last:
        raise _TOO_SMALL
    return entry_id


@command("XADD", -5)
def xadd(space: Keyspace, command: Arguments, now: int) -> Reply:
    if command[2] == b"*" and len(command) % 2:
        return _add_plainly(space, command, now)
    add = _Add(command)
    key = command[1]
    stream = space.stream(key, now)
    if stream is None and not add.makes_stream:
        return None
    token = None if add.producer is None else add.token_of()
    if stream is not None and add.producer is not None and token is not None:
        known = stream.memory.recall(add.producer, token, now)
        if known is not None:
            return text_of(known)
    entry_id = next_id(stream or Stream(key), add.partial, now)
    if stream is None:
        stream = space.create(key)
    stream.add(entry_id, add.fields, add.key)
    if add.producer is not None and token is not None:
        stream.remember(add.producer, token, entry_id, now)
    add.trimming.do(stream)
    keep_length(space, stream)
    space.ready.add(key)
    return text_of(entry_id)


def _add_plainly(space: Keyspace, command: Arguments, now: int) -> Reply:
    """Add with no options at all, as most do."""
    key = command[1]
    stream = space.stream(key, now)
    if stream is None:
        stream = space.create(key)
    entry_id = next_id(stream, None, now)
    text = stream.add(entry_id, list(command[3:]))
    if space.limits.max_length:
        keep_length(space, stream)
    space.ready.add(key)
    return text


def plain_adds(commands: Sequence[Arguments], start: int) -> int:
    """Count the commands from one on that add to the same stream, with no options at all."""
    key, count = commands[start][1:2], 0
    beginning = [b"XADD", *key, b"*"]
    for number in range(start, len(commands)):
        command = commands[number]
        if command[:3] != beginning or len(command) < 5 or not len(command) % 2:
            break
        count += 1
    return count


def add_run(space: Keyspace, commands: Sequence[Arguments], now: int) -> list[bytes] | None:
    """Do at once what `plain_adds` has counted; None if they must be done one by one."""
    key = commands[0][1]
    stream = space.stream(key, now)
    first_id = make_id(now, 0) if stream is None else max(stream.last_id + 1, make_id(now, 0))
    if space.limits.max_length or first_id + len(commands) > MAX_ID:
        return None
    if stream is None:
        stream = space.create(key)
    space.ready.add(key)
    return stream.add_run(first_id, [list(command[3:]) for command in commands])


def keep_length(space: Keyspace, stream: Stream) -> None:
    """Hold a stream to the length that all of them are held to."""
    excess = stream.entries.length - space.limits.max_length
    if space.limits.max_length and excess > 0:
        trimming = Trimming()
        trimming.max_length = space.limits.max_length
        trimming.do(stream)


@command("XTRIM", -4)
def xtrim(space: Keyspace, command: Arguments, now: int) -> Reply:
    trimming = parse_trim(command)
    stream = space.stream(command[1], now)
    return 0 if stream is None else trimming.do(stream)


@command("XSETID", -3)
def xsetid(space: Keyspace, command: Arguments, now: int) -> Reply:
    last_id = parse_id(command[2])
    added, max_deleted = _parse_setid(command, last_id)
    stream = space.existing(command[1], now)
    if last_id < stream.max_deleted:
        raise Failure("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id")
    last = stream.entries.last()
    if last is not None:
        if last_id < last.entry_id:
            raise Failure(
                "ERR The ID specified in XSETID is smaller than the target stream top item"
            )
        if added is not None and added < stream.entries.length:
            raise Failure(
                "ERR The entries_added specified in XSETID is smaller than the target stream length"
            )
    stream.set_last_id(
        last_id, stream.added if added is None else added, max_deleted or stream.max_deleted
    )
    return OK


def _parse_setid(command: Arguments, last_id: int) -> tuple[int | None, int]:
    added, max_deleted, at = None, 0, 3
    while at < len(command):
        option = command[at].upper()
        if at + 1 == len(command):
            raise SYNTAX
        if option == b"ENTRIESADDED":
            added = parse_integer(command[at + 1])
            if added < 0:
                raise Failure("ERR entries_added must be positive")
        elif option == b"MAXDELETEDID":
            max_deleted = parse_id(command[at + 1])
            if last_id < max_deleted:
                raise Failure(
                    "ERR The ID specified in XSETID is smaller than the provided "
                    "max_deleted_entry_id"
                )
        else:
            raise SYNTAX
        at += 2
    return added, max_deleted


@command("XCFGSET", -4)
def xcfgset(space: Keyspace, command: Arguments, now: int) -> Reply:
    duration, size, at = None, None, 2
    while at < len(command):
        if at + 1 == len(command):
            raise SYNTAX
        option, value = command[at].upper(), parse_integer(command[at + 1])
        if option == b"IDMP-DURATION":
            if not 1 <= value <= 86_400:
                raise Failure("ERR IDMP-DURATION must be between 1 and 86400 seconds")
            duration = value
        elif option == b"IDMP-MAXSIZE":
            if not 1 <= value <= 10_000:
                raise Failure("ERR IDMP-MAXSIZE must be between 1 and 10000 entries")
            size = value
        else:
            raise SYNTAX
        at += 2
    stream = space.existing(command[1], now)
    stream.set_memory(duration or stream.memory.duration_s, size or stream.memory.size)
    return OK
