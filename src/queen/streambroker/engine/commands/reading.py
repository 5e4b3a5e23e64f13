"""XRANGE, XREVRANGE, XLEN, XREAD: reading without groups."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from queen.streambroker.engine.arguments import SYNTAX, parse_block, parse_integer
from queen.streambroker.engine.ids import MAX_ID, parse_end, parse_id, parse_start, text_of
from queen.streambroker.engine.keyspace import Arguments, Keyspace, Wait, command, shown
from queen.streambroker.engine.state.entries import Place
from queen.streambroker.engine.state.stream import Stream
from queen.streambroker.replies import NO_ARRAY, ByStream, Failure, Reply


@command("XLEN", 2)
def xlen(space: Keyspace, command: Arguments, now: int) -> Reply:
    stream = space.stream(command[1], now)
    return 0 if stream is None else stream.entries.length


@command("XRANGE", -4)
def xrange(space: Keyspace, command: Arguments, now: int) -> Reply:
    return _range(space, command, now, command[2], command[3], is_reversed=False)


@command("XREVRANGE", -4)
def xrevrange(space: Keyspace, command: Arguments, now: int) -> Reply:
    return _range(space, command, now, command[3], command[2], is_reversed=True)


def _range(
    space: Keyspace, command: Arguments, now: int, low: bytes, high: bytes, *, is_reversed: bool
) -> Reply:
    start, end = parse_start(low), parse_end(high)
    count = _parse_count(command, 4)
    stream = space.stream(command[1], now)
    if stream is None:
        return []
    if count is not None and count <= 0:
        return NO_ARRAY
    between = stream.entries.between_reversed if is_reversed else stream.entries.between
    return shown_entries(stream, islice(between(start, end), count))


def _parse_count(command: Arguments, at: int) -> int | None:
    count = None
    while at < len(command):
        if command[at].upper() != b"COUNT" or at + 1 == len(command):
            raise SYNTAX
        count = max(0, parse_integer(command[at + 1]))
        at += 2
    return count


def shown_entries(stream: Stream, places: Iterable[Place]) -> list[Reply]:
    fields = stream.entries.fields
    return [[text_of(place.entry_id), fields(place)] for place in places]  # type: ignore[list-item]


class Reading:
    """The options that XREAD and XREADGROUP share, and the streams they name."""

    __slots__ = (
        "block_ms",
        "claim_ms",
        "consumer",
        "count",
        "group",
        "ids",
        "is_acked",
        "keys",
    )

    def __init__(self, command: Arguments, *, in_group: bool) -> None:
        self.group: bytes | None = None
        self.consumer = b""
        self.count = 0
        # None: do not wait.
        self.block_ms: int | None = None
        self.claim_ms: int | None = None
        self.is_acked = False
        at = self._take_options(command, in_group)
        streams = command[at:]
        if len(streams) % 2:
            name, sign = ("xreadgroup", ">") if in_group else ("xread", "$")
            raise Failure(
                f"ERR Unbalanced '{name}' list of streams: for each stream key an ID, '+', or "
                f"'{sign}' must be specified."
            )
        half = len(streams) // 2
        self.keys, self.ids = list(streams[:half]), list(streams[half:])
        if in_group and self.group is None:
            raise Failure("ERR Missing GROUP option for XREADGROUP")

    def _take_options(self, command: Arguments, in_group: bool) -> int:
        """Read what stands before the streams; returns where they begin."""
        at = 1
        while at < len(command):
            option, more = command[at].upper(), len(command) - 1 - at
            if option == b"STREAMS" and more:
                return at + 1
            if option == b"BLOCK" and more:
                self.block_ms = parse_block(command[at + 1])
                at += 2
            elif option == b"COUNT" and more:
                self.count = max(0, parse_integer(command[at + 1]))
                at += 2
            else:
                at += self._take_of_group(command, at, option, more, in_group)
        raise SYNTAX

    def _take_of_group(
        self, command: Arguments, at: int, option: bytes, more: int, in_group: bool
    ) -> int:
        if option == b"GROUP" and more >= 2:
            self._check_group_option("GROUP", in_group)
            self.group, self.consumer = command[at + 1], command[at + 2]
            return 3
        if option == b"NOACK":
            self._check_group_option("NOACK", in_group)
            self.is_acked = True
            return 1
        if option == b"CLAIM" and more and in_group:
            error = "ERR min-idle-time is not an integer"
            self.claim_ms = parse_integer(command[at + 1], error)
            if self.claim_ms < 0:
                raise Failure("ERR min-idle-time must be a positive integer")
            return 2
        raise SYNTAX

    def _check_group_option(self, option: str, in_group: bool) -> None:
        if not in_group:
            raise Failure(
                f"ERR The {option} option is only supported by XREADGROUP. "
                "You called XREAD instead."
            )


@command("XREAD", -4)
def xread(space: Keyspace, command: Arguments, now: int) -> Reply | Wait:
    reading = Reading(command, in_group=False)
    answers: list[tuple[bytes, Reply]] = []
    after = [
        _start_of_read(space, key, text, now)
        for key, text in zip(reading.keys, reading.ids, strict=True)
    ]
    for key, start in zip(reading.keys, after, strict=True):
        stream = space.stream(key, now)
        if stream is None:
            continue
        places = stream.entries.between(start + 1, MAX_ID)
        entries = shown_entries(stream, islice(places, reading.count or None))
        if entries:
            answers.append((key, entries))
    if answers:
        return ByStream(answers)
    if reading.block_ms is None:
        return NO_ARRAY
    # `$` is what was last when the reader came, however often it looks.
    again = [*command[: len(command) - len(after)], *map(text_of, after)]
    return Wait(reading.keys, reading.block_ms, again)


def _start_of_read(space: Keyspace, key: bytes, text: bytes, now: int) -> int:
    """Return the id after which is read."""
    stream = space.stream(key, now)
    if text == b"$":
        return 0 if stream is None else stream.last_id
    if text == b"+":
        last = None if stream is None else stream.entries.last()
        # Of a stream without entries, whatever comes.
        return (0 if stream is None else stream.last_id) if last is None else last.entry_id - 1
    if text == b">":
        raise Failure(
            "ERR The > ID can be specified only when calling XREADGROUP using the GROUP "
            "<group> <consumer> option."
        )
    return parse_id(text)


def no_group_to_read(key: bytes, group: bytes) -> Failure:
    return Failure(
        f"NOGROUP No such key '{shown(key)}' or consumer group '{shown(group)}' "
        "in XREADGROUP with GROUP option"
    )
