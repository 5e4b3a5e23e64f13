"""Replies made comparable: as plain values, and without what no two servers have in common."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from queen.streambroker.replies import ByStream, Failure, NoArray, Pairs, Reply, Status

_NOW = re.compile(r"[0-9]{13}-[0-9]+")
_MASK = "<time>"
_TIMES = ("idle", "inactive", "seen-time", "active-time")
_INNER = ("radix-tree-keys", "radix-tree-nodes")
# Nothing that is no time is as large.
_EARLIEST_MS = 10**12


def plain(reply: Reply) -> Any:
    """Return a reply as RESP2 has it, as values of JSON."""
    match reply:
        case NoArray():
            value: Any = None
        case Failure():
            value = {"error": reply.text}
        case Status():
            value = plain(reply.text)
        case Pairs():
            value = plain(reply.items)
        case ByStream():
            value = [[plain(name), plain(entries)] for name, entries in reply.streams]
        case list():
            value = [plain(item) for item in reply]
        case bytes():
            value = reply.decode(errors="backslashreplace")
        case _:
            value = reply
    return value


def masked(command: Sequence[str], value: Any) -> Any:
    """Return a plain reply without times and without how a server stores entries."""
    name = command[0].upper() if command else ""
    if name == "XPENDING" and len(command) > 3 and isinstance(value, list):
        return [[*row[:2], _masked_time(row[2]), *row[3:]] for row in value]
    if name == "XREADGROUP" and isinstance(value, list):
        return [
            [stream, [_masked_claim(entry) for entry in entries or ()]] for stream, entries in value
        ]
    if name == "XINFO":
        return _masked_info(value)
    return _masked_ids(value)


def _masked_claim(entry: list[Any]) -> list[Any]:
    return [*entry[:2], _MASK, *entry[3:]] if len(entry) == 4 else entry


def _masked_time(value: Any) -> Any:
    """That there is no time, is told."""
    return _MASK if isinstance(value, int) and value >= 0 else value


def _masked_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_masked_ids(item) for item in value]
    return _MASK if isinstance(value, str) and _NOW.fullmatch(value) else value


def _masked_info(value: Any) -> Any:
    if not isinstance(value, list):
        return _masked_ids(_MASK if isinstance(value, int) and value > _EARLIEST_MS else value)
    shown = [_masked_info(item) for item in value]
    for index in range(len(value) - 1):
        # Names and values in turn.
        if value[index] in _TIMES:
            shown[index + 1] = _masked_time(value[index + 1])
        elif value[index] in _INNER:
            shown[index + 1] = _MASK
    return shown


def without_fields(value: Any, fields: frozenset[str]) -> Any:
    """Return what XINFO shows without some fields, at any depth."""
    if not isinstance(value, list):
        return value
    shown: list[Any] = []
    is_value = False
    for item in value:
        if is_value:
            is_value = False
        elif isinstance(item, str) and item in fields:
            is_value = True
        else:
            shown.append(without_fields(item, fields))
    return shown
