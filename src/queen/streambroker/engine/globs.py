"""Patterns of names as Redis reads them."""

from __future__ import annotations

import re
from collections.abc import Callable

# Any longer one is no pattern that somebody wrote.
_MAX_PATTERN = 1024


def matcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Return what tells whether a name fits a pattern of `*`, `?`, `[a-z]`, `[^a]` and `\\`."""
    if len(pattern) > _MAX_PATTERN:
        return lambda _: False
    fits = re.compile(_expression(pattern), re.DOTALL).fullmatch
    return lambda name: fits(name) is not None


def _expression(pattern: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while at < len(pattern):
        sign = pattern[at : at + 1]
        if sign == b"*":
            # Many in a row mean one; as many groups would take for ever.
            if not parts or parts[-1] != b".*":
                parts.append(b".*")
        elif sign == b"?":
            parts.append(b".")
        elif sign == b"[":
            end = _end_of_class(pattern, at + 1)
            parts.append(_class(pattern[at + 1 : end]))
            at = end
        elif sign == b"\\" and at + 1 < len(pattern):
            at += 1
            parts.append(re.escape(pattern[at : at + 1]))
        else:
            parts.append(re.escape(sign))
        at += 1
    return b"".join(parts)


def _end_of_class(pattern: bytes, at: int) -> int:
    while at < len(pattern) and pattern[at : at + 1] != b"]":
        at += 2 if pattern[at : at + 1] == b"\\" else 1
    return min(at, len(pattern))


def _class(inside: bytes) -> bytes:
    negated = inside.startswith(b"^")
    characters = inside[1:] if negated else inside
    members: set[int] = set()
    at = 0
    while at < len(characters):
        if characters[at : at + 1] == b"\\" and at + 1 < len(characters):
            at += 1
            members.add(characters[at])
        elif characters[at + 1 : at + 2] == b"-" and at + 2 < len(characters):
            low, high = sorted((characters[at], characters[at + 2]))
            members.update(range(low, high + 1))
            at += 2
        else:
            members.add(characters[at])
        at += 1
    if not members:
        return b"." if negated else b"(?!)"
    listed = b"".join(b"\\x%02x" % member for member in sorted(members))
    return b"[" + (b"^" if negated else b"") + listed + b"]"
