"""Streams by name, and the commands that work on them.

`run` does one command at one instant and returns its reply, or `Wait` when there is nothing
to read yet. A command decides everything before it changes anything: one that fails, or that
finds a stream or a body not in memory, has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from queen.streambroker.engine.state.stream import Stream
from queen.streambroker.replies import NO_ARRAY, Failure, Reply

Arguments: TypeAlias = Sequence[bytes]


class Wait:
    """Nothing is there yet: come again with a command when one of some streams has changed."""

    __slots__ = ("again_in_ms", "command", "for_ms", "keys")

    def __init__(
        self,
        keys: list[bytes],
        for_ms: int,
        command: list[bytes],
        again_in_ms: int | None = None,
    ) -> None:
        self.keys = keys
        # 0: for ever.
        self.for_ms = for_ms
        self.command = command
        # By then time alone may have changed something.
        self.again_in_ms = again_in_ms


class Limits:
    """Bounds that hold for every stream; 0: none."""

    __slots__ = ("max_length", "max_pending")

    def __init__(self, max_length: int = 0, max_pending: int = 0) -> None:
        self.max_length = max_length
        self.max_pending = max_pending


class Keyspace:
    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._streams: dict[bytes, Stream] = {}
        # Streams with something new for those who wait.
        self.ready: set[bytes] = set()

    # ---- streams ----

    def stream(self, key: bytes, now: int) -> Stream | None:
        stream = self._streams.get(key)
        if stream is not None and stream.expires_at and stream.expires_at <= now:
            self.drop(key)
            return None
        return stream

    def existing(self, key: bytes, now: int) -> Stream:
        stream = self.stream(key, now)
        if stream is None:
            raise Failure("ERR no such key")
        return stream

    def create(self, key: bytes) -> Stream:
        stream = Stream(key)
        self._streams[key] = stream
        return stream

    def drop(self, key: bytes) -> None:
        del self._streams[key]
        self.ready.add(key)

    def names(self, now: int) -> list[bytes]:
        return [name for name in list(self._streams) if self.stream(name, now) is not None]

    def fields_in_memory(self, stream: Stream, entry_id: int) -> list[bytes]:
        """Return the body of an entry that is to be written again."""
        place = stream.entries.place(entry_id)
        assert place is not None
        return stream.entries.fields(place)

    # ---- commands ----

    def run(self, command: Arguments, now: int, *, may_wait: bool = True) -> Reply | Wait:
        """Run one command; an error of its own is its reply."""
        try:
            handler = handler_of(command)
            reply = handler(self, command, now)
        except Failure as failure:
            return failure
        if isinstance(reply, Wait) and not may_wait:
            return NO_ARRAY
        return reply


Handler: TypeAlias = Callable[[Keyspace, Arguments, int], "Reply | Wait"]

# Handlers by name, and how many arguments each takes with its name; negative: at least.
_HANDLERS: dict[bytes, tuple[Handler, int]] = {}


def command(name: str, arity: int) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        _HANDLERS[name.encode()] = (handler, arity)
        return handler

    return register


def handler_of(command: Arguments) -> Handler:
    """Return what runs a command; raises `Failure` in the words of Redis if nothing does."""
    registered = _HANDLERS.get(command[0]) or _HANDLERS.get(command[0].upper())
    if registered is None:
        raise Failure(unknown_command(command))
    handler, arity = registered
    if len(command) != arity if arity > 0 else len(command) < -arity:
        raise wrong_number(shown(command[0]).lower())
    return handler


def is_known(name: bytes) -> bool:
    return name.upper() in _HANDLERS


def arity_of(name: bytes) -> int:
    return _HANDLERS[name.upper()][1]


def wrong_number(name: str) -> Failure:
    return Failure(f"ERR wrong number of arguments for '{name}' command")


def unknown_command(command: Arguments) -> str:
    beginning = "".join(f"'{shown(argument)}' " for argument in command[1:20])
    return f"ERR unknown command '{shown(command[0])}', with args beginning with: {beginning}"


def shown(argument: bytes) -> str:
    """Return an argument as an error may show it: one line, not too long."""
    text = argument[:128].decode("utf-8", "replace")
    return text.replace("\r", " ").replace("\n", " ")
