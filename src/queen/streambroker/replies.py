"""What a command on streams answers, before anybody writes it to a wire.

None            no value
NO_ARRAY        no array: RESP2 tells it from no value, RESP3 does not
int, bytes      a number, a string of bytes
list            an array of replies
Status          a short word of success
Failure         an error; its text begins with the code that clients match on
Pairs           name and value in turn: a map in RESP3, a flat array in RESP2
ByStream        entries by stream: a map in RESP3, an array of pairs in RESP2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias


class Status:
    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Status) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Status({self.text!r})"


class Failure(Exception):
    """An error that belongs to one command: raised inside, answered outside."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Failure) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


class NoArray:
    __slots__ = ()

    def __repr__(self) -> str:
        return "NO_ARRAY"


class Pairs:
    __slots__ = ("items",)

    def __init__(self, items: list[Reply]) -> None:
        # Names and values in turn.
        self.items = items

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pairs) and other.items == self.items

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Pairs({self.items!r})"


class ByStream:
    __slots__ = ("streams",)

    def __init__(self, streams: list[tuple[bytes, Reply]]) -> None:
        self.streams = streams

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByStream) and other.streams == self.streams

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ByStream({self.streams!r})"


Reply: TypeAlias = (
    "NoArray | int | bytes | list[Reply] | Status | Failure | Pairs | ByStream | None"
)

NO_ARRAY = NoArray()
OK = Status(b"OK")


class Executor(Protocol):
    """Runs commands: in memory, on the log, or on a Redis server."""

    async def execute(
        self, commands: Sequence[Sequence[bytes]], *, is_atomic: bool = False
    ) -> list[Reply]:
        """Run commands in order and return one reply each; a command that failed answers with a
        `Failure` in its place, and the others go on.

        Atomic commands are seen by others all at once, and none of them waits. Of the others, a
        command that blocks holds up those behind it. Raises `QueenError` when none was run, or
        nobody knows."""
        ...
