"""From the bytes of a client to its commands, within limits.

A command is an array of strings, each with its length before it, or a line of words.

    *2\\r\\n  $4\\r\\nXLEN\\r\\n  $6\\r\\norders\\r\\n

Pipelines of small commands are cut at their line ends, all at once. That is right when no string
holds a line end, and whether it was is seen by putting the commands together again: hiredis does
that faster than Python reads a single length. Everything else, whatever is large, torn, odd or
hostile, is read by the slow half, string by string, and nothing is taken at its word: a length is
only a promise, and no memory is set aside for it.
"""

from __future__ import annotations

import re

from hiredis import pack_command

from queen.server.resp.inline import split_words

Command = list[bytes]

# Of a pipeline so much is looked at together, and so much is run together.
_SLICE_BYTES = 64 * 1024
_MOST_SLOWLY = 100
_MOST_STRINGS = 2000
# No line that tells a number is longer.
_NUMBER_LINE_BYTES = 64
_INLINE_BYTES = 64 * 1024
# What an argument takes beside its bytes.
_ARGUMENT_BYTES = 48
_MOST_ARGUMENTS = 1024 * 1024
# Of somebody who has not shown who he is.
_STRANGER_ARGUMENTS = 10
_STRANGER_STRING_BYTES = 16 * 1024
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]{0,18})")
_ARRAY, _STRING = b"*$"


class BadProtocol(Exception):
    """What a client sends is not what it should be; nothing after it can be understood."""


class CommandReader:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # Nobody knows yet who sends this.
        self.is_stranger = True
        self._buffer = bytearray()
        # The command that is being read slowly: what is there of it, and how much is missing.
        self._arguments: Command = []
        self._arguments_bytes = 0
        self._missing = 0
        # With fewer bytes than this there is nothing new to be seen.
        self._wanted_bytes = 1

    @property
    def held_bytes(self) -> int:
        return len(self._buffer) + self._arguments_bytes

    @property
    def is_amid_command(self) -> bool:
        return bool(self._buffer or self._missing)

    @property
    def is_worth_reading(self) -> bool:
        return len(self._buffer) >= self._wanted_bytes

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def take(self) -> list[Command]:
        """Return some commands that are there, in order.

        There may be none although `is_worth_reading` stays: nobody looks long at empty or endless
        ones. Of a stranger only the first is returned: who it is decides what it may send next.
        Raises `BadProtocol`; commands before that are returned before.
        """
        if self.is_stranger:
            return self._take_slowly(1)
        if self._missing or not self._buffer.startswith(b"*"):
            return self._take_slowly(_MOST_SLOWLY)
        # One odd command is seldom alone: the next ones are not tried the fast way each.
        return self._take_fast() or self._take_slowly(_MOST_SLOWLY)

    # ---- the fast half ----

    def _take_fast(self) -> list[Command]:
        """Return the commands at the beginning that are certain."""
        data = bytes(self._buffer[:_SLICE_BYTES])
        lines = data.split(b"\r\n")
        last = len(lines) - 1
        commands: list[Command] = []
        at = size = 0
        try:
            while at < last:
                # Anything that is not a plain number here is no business of this half.
                end = at + 1 + 2 * int(lines[at][1:])
                if not at < end <= last:
                    break
                command = lines[at + 2 : end : 2]
                packed = pack_command(tuple(command))  # type: ignore[arg-type]
                if not data.startswith(packed, size):
                    break
                size += len(packed)
                commands.append(command)
                at = end
        except ValueError:
            pass
        if size:
            self._drop(size)
        return [command for command in commands if command]

    # ---- the slow half ----

    def _take_slowly(self, most: int) -> list[Command]:
        commands: list[Command] = []
        try:
            for _ in range(_MOST_SLOWLY):
                if len(commands) == most or len(self._buffer) < self._wanted_bytes:
                    break
                command = self._take_command()
                if command is None:
                    break
                if command:
                    commands.append(command)
        except BadProtocol:
            # What is bad stays where it is, and is met again.
            if not commands:
                raise
        return commands

    def _take_command(self) -> Command | None:
        """Return the next command, which may be empty; None when not all of it is there."""
        if not self._missing:
            if self._buffer[0] != _ARRAY:
                return self._take_line_of_words()
            if not self._take_count():
                return None
        if not self._take_strings():
            return None
        command = self._arguments
        self._arguments, self._arguments_bytes = [], 0
        return command

    def _take_line_of_words(self) -> Command | None:
        """Return the words of a line, None when it has no end yet."""
        end = self._buffer.find(b"\n", 0, _INLINE_BYTES)
        if end < 0:
            if len(self._buffer) >= _INLINE_BYTES:
                raise BadProtocol("too big inline request")
            self._wanted_bytes = len(self._buffer) + 1
            return None
        words = split_words(bytes(self._buffer[:end]))
        if words is None:
            raise BadProtocol("unbalanced quotes in request")
        if words and words[-1].startswith(b"HTTP/"):
            # A page in a browser may send a request here, and commands in its body.
            raise BadProtocol("HTTP is not spoken here")
        self._drop(end + 1)
        return words

    def _take_count(self) -> bool:
        """Read how many strings a command has; false when that is not there yet."""
        line = self._number_line("too big mbulk count string")
        if line is None:
            return False
        count = _whole_number(line[1:])
        if count is None or count > _MOST_ARGUMENTS:
            raise BadProtocol("invalid multibulk length")
        if self.is_stranger and count > _STRANGER_ARGUMENTS:
            raise BadProtocol("unauthenticated multibulk length")
        self._drop(len(line) + 2)
        self._missing = max(count, 0)
        return True

    def _take_strings(self) -> bool:
        """Read some of what is there of the strings of a command; true when none is missing."""
        for _ in range(min(self._missing, _MOST_STRINGS)):
            line = self._number_line("too big bulk count string")
            if line is None:
                return False
            if line[0] != _STRING:
                raise BadProtocol(f"expected '$', got '{_shown(line[0])}'")
            start = len(line) + 2
            end = start + self._checked_length(line[1:])
            if len(self._buffer) < end + 2:
                self._wanted_bytes = end + 2
                return False
            if self._buffer[end : end + 2] != b"\r\n":
                raise BadProtocol("expected a line end after a string")
            self._arguments.append(bytes(memoryview(self._buffer)[start:end]))
            self._arguments_bytes += end - start + _ARGUMENT_BYTES
            self._drop(end + 2)
            self._missing -= 1
        return not self._missing

    def _checked_length(self, text: bytes) -> int:
        length = _whole_number(text)
        room = self._max_bytes - self._arguments_bytes
        if length is None or not 0 <= length <= room:
            raise BadProtocol("invalid bulk length")
        if self.is_stranger and length > _STRANGER_STRING_BYTES:
            raise BadProtocol("unauthenticated bulk length")
        return length

    def _number_line(self, complaint: str) -> bytes | None:
        """Return the line at the beginning without its end, None when it has none yet."""
        end = self._buffer.find(b"\r\n", 0, _NUMBER_LINE_BYTES)
        if end > 0:
            return bytes(self._buffer[:end])
        if end == 0:
            raise BadProtocol("expected '$', got '\\r'")
        if len(self._buffer) >= _NUMBER_LINE_BYTES:
            raise BadProtocol(complaint)
        self._wanted_bytes = len(self._buffer) + 1
        return None

    def _drop(self, size: int) -> None:
        del self._buffer[:size]
        self._wanted_bytes = 1


def _whole_number(text: bytes) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _shown(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 else "?"
