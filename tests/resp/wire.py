"""Bytes to and from a RESP server, as they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from queen.streambroker.replies import NO_ARRAY, ByStream, Failure, Pairs, Reply, Status

_NESTED = {b"*"[0]: 1, b"%"[0]: 2, b"~"[0]: 1}
_SIZED = b"$=!"


def packed(*words: bytes | str) -> bytes:
    parts = [word.encode() if isinstance(word, str) else word for word in words]
    head = b"*%d\r\n" % len(parts)
    return head + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class Wire:
    """A connection that sends bytes and reads whole replies, undecoded."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int) -> Wire:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=64 * 1024 * 1024))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, *words: bytes | str) -> bytes:
        self.send(packed(*words))
        return await self.reply()

    async def reply(self) -> bytes:
        """Return the bytes of a whole reply."""
        async with asyncio.timeout(30):
            return await self._reply()

    async def _reply(self) -> bytes:
        line = await self._reader.readuntil(b"\r\n")
        size = int(line[1:]) if line[0] in _NESTED or line[0] in _SIZED else -1
        if size < 0:
            return line
        if line[0] in _SIZED:
            return line + await self._reader.readexactly(size + 2)
        parts = [await self._reply() for _ in range(size * _NESTED[line[0]])]
        return line + b"".join(parts)

    async def rest(self) -> bytes:
        """Return all that comes until the server hangs up."""
        async with asyncio.timeout(30):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


class ValkeyExecutor:
    """Runs commands on a real server; what it answers in RESP3 is told in our types."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ordinary: Wire | None = None
        self._turn = asyncio.Lock()

    async def execute(
        self, commands: Sequence[Sequence[bytes]], *, is_atomic: bool = False
    ) -> list[Reply]:
        words = {word.upper() for command in commands for word in command}
        if b"BLOCK" in words and not is_atomic:
            return await self._wait(commands)
        async with self._turn:
            if self._ordinary is None:
                self._ordinary = await self._open()
            sent = [packed(*command) for command in commands]
            if is_atomic:
                sent = [packed("MULTI"), *sent, packed("EXEC")]
            self._ordinary.send(b"".join(sent))
            replies = [await self._ordinary.reply() for _ in sent]
        if is_atomic:
            values = decoded(replies[-1])
            assert isinstance(values, list)
        else:
            values = [decoded(reply) for reply in replies]
        return [typed(command, value) for command, value in zip(commands, values, strict=True)]

    async def _open(self) -> Wire:
        wire = await Wire.open(self._port)
        await wire.ask("HELLO", "3")
        return wire

    async def _wait(self, commands: Sequence[Sequence[bytes]]) -> list[Reply]:
        wire = await self._open()
        try:
            return [typed(command, decoded(await wire.ask(*command))) for command in commands]
        finally:
            await wire.close()

    async def close(self) -> None:
        if self._ordinary is not None:
            await self._ordinary.close()


def decoded(raw: bytes) -> Reply:
    reply, rest = _decode(raw)
    assert not rest
    return reply


def _decode(raw: bytes) -> tuple[Reply, bytes]:
    line, _, rest = raw.partition(b"\r\n")
    kind, text = line[:1], line[1:]
    match kind:
        case b"+":
            return Status(text), rest
        case b"-":
            return Failure(text.decode("utf-8", "surrogateescape")), rest
        case b":":
            return int(text), rest
        case b"_":
            return None, rest
        case b"$":
            size = int(text)
            return rest[:size], rest[size + 2 :]
    items: list[Reply] = []
    for _ in range(int(text) * _NESTED[kind[0]]):
        item, rest = _decode(rest)
        items.append(item)
    return Pairs(items) if kind == b"%" else items, rest


def typed(command: Sequence[bytes], reply: Reply) -> Reply:
    """Return a reply with what RESP3 does not tell: RESP2 has two kinds of nothing."""
    name = command[0].upper()
    if name in (b"XREAD", b"XREADGROUP"):
        if reply is None:
            return NO_ARRAY
        if isinstance(reply, Pairs):
            names, values = reply.items[::2], reply.items[1::2]
            return ByStream(
                [
                    (n, _entries(v))
                    for n, v in zip(names, values, strict=True)
                    if isinstance(n, bytes)
                ]
            )
    if name == b"XPENDING" and isinstance(reply, list) and reply[-1:] == [None]:
        return [*reply[:-1], NO_ARRAY]
    if name in (b"XRANGE", b"XREVRANGE", b"XCLAIM"):
        return _entries(reply)
    return reply


def _entries(reply: Reply) -> Reply:
    """Entries that are gone have no fields, which is no array."""
    if not isinstance(reply, list):
        return reply
    return [
        [entry[0], NO_ARRAY] if isinstance(entry, list) and entry[1:] == [None] else entry
        for entry in reply
    ]
