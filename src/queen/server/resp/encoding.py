"""Replies as bytes: RESP2 for whoever has not said HELLO 3, RESP3 for the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from queen.streambroker.replies import ByStream, Failure, NoArray, Pairs, Reply, Status


class Verbatim:
    """A text for people: RESP3 says so, in RESP2 it is a string."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text


class Members:
    """A set in RESP3, an array in RESP2."""

    __slots__ = ("members",)

    def __init__(self, members: list[Answer]) -> None:
        self.members = members


class NoReply:
    """Nothing at all: the client has asked not to be answered."""

    __slots__ = ()


# What the front answers by itself has more kinds than what commands on streams answer.
Answer: TypeAlias = "Reply | Verbatim | Members | NoReply | list[Answer]"


def encode(replies: Iterable[Answer], *, is_resp3: bool) -> bytes:
    parts: list[bytes] = []
    for reply in replies:
        _add(parts, reply, is_resp3)
    return b"".join(parts)


def _add(parts: list[bytes], reply: Answer, is_resp3: bool) -> None:
    if isinstance(reply, bytes):
        parts.append(b"$%d\r\n%b\r\n" % (len(reply), reply))
    elif isinstance(reply, list):
        parts.append(b"*%d\r\n" % len(reply))
        for item in reply:
            if isinstance(item, bytes):
                parts.append(b"$%d\r\n%b\r\n" % (len(item), item))
            else:
                _add(parts, item, is_resp3)
    elif isinstance(reply, int):
        parts.append(b":%d\r\n" % reply)
    else:
        _add_rare(parts, reply, is_resp3)


def _add_rare(parts: list[bytes], reply: Answer, is_resp3: bool) -> None:
    match reply:
        case None:
            parts.append(b"_\r\n" if is_resp3 else b"$-1\r\n")
        case NoArray():
            parts.append(b"_\r\n" if is_resp3 else b"*-1\r\n")
        case Status():
            parts.append(b"+%b\r\n" % reply.text)
        case Failure():
            parts.append(b"-%b\r\n" % _in_a_line(reply.text))
        case Pairs():
            size = len(reply.items)
            parts.append(b"%%%d\r\n" % (size // 2) if is_resp3 else b"*%d\r\n" % size)
            for item in reply.items:
                _add(parts, item, is_resp3)
        case ByStream():
            parts.append(b"%c%d\r\n" % (b"%" if is_resp3 else b"*", len(reply.streams)))
            for name, entries in reply.streams:
                head = b"" if is_resp3 else b"*2\r\n"
                parts.append(b"%b$%d\r\n%b\r\n" % (head, len(name), name))
                _add(parts, entries, is_resp3)
        case _:
            _add_own(parts, reply, is_resp3)


def _add_own(parts: list[bytes], reply: Answer, is_resp3: bool) -> None:
    match reply:
        case NoReply():
            pass
        case Verbatim() if is_resp3:
            parts.append(b"=%d\r\ntxt:%b\r\n" % (len(reply.text) + 4, reply.text))
        case Verbatim():
            parts.append(b"$%d\r\n%b\r\n" % (len(reply.text), reply.text))
        case Members():
            parts.append(b"%c%d\r\n" % (b"~" if is_resp3 else b"*", len(reply.members)))
            for member in reply.members:
                _add(parts, member, is_resp3)
        case _:
            raise TypeError(f"no reply: {type(reply)}")


def _in_a_line(text: str) -> bytes:
    """Return an error's text without what would end it early."""
    # Names in errors are a client's bytes: they go back as they came.
    return text.replace("\r", " ").replace("\n", " ").encode("utf-8", "surrogateescape")
