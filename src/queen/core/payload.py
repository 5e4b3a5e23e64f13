"""What a payload may be.

A payload is any JSON text and is kept as the producer wrote it. Some texts pass one parser
and break another (a lone surrogate, a NUL, two hundred levels of nesting), so they are
refused when they are pushed, while the producer can still be told.

The checks are made for requests of many small payloads: one look at the whole request
rules out nearly everything, and only what is left is looked at one by one.
"""

from __future__ import annotations

import re

MAX_DEPTH = 128
MAX_PAYLOAD_BYTES = 16 * 1024 * 1024

# A text nested deeper than this has that many opening and as many closing brackets.
_SHORTEST_TOO_DEEP = 2 * MAX_DEPTH

# Any escape of a NUL or of a surrogate, good or bad; cheap to look for in a whole request.
_SUSPECT_ESCAPE = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
# One escape at a time, so that an escaped backslash before a "u" is not taken for one.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|u(?P<nul>0000)|u(?P<lone>[dD][89a-fA-F])|.)",
    re.DOTALL,
)
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def is_plain(text: bytes) -> bool:
    """Return whether no payload inside `text` can have bad bytes or bad escapes."""
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            return False
    # One byte is found much faster than two, and most requests have no backslash at all.
    return b"\\" not in text or _SUSPECT_ESCAPE.search(text) is None


def longest_is_shallow(longest_bytes: int) -> bool:
    """Return whether payloads up to this long are too short to be nested too deeply."""
    return longest_bytes < _SHORTEST_TOO_DEEP


def is_shallow(payload: bytes) -> bool:
    """Return whether a payload has too few brackets to be nested too deeply."""
    return payload.count(b"[") + payload.count(b"{") <= MAX_DEPTH


def reason_against_payload(payload: bytes) -> str | None:
    """Return why a payload that parses as JSON cannot be taken, or None.

    >>> reason_against_payload(b'{"a": 1}')
    >>> reason_against_payload(b'"\\\\ud800"')
    'payload has a NUL character or a lone surrogate'
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        return f"payload is larger than {MAX_PAYLOAD_BYTES} bytes"
    try:
        payload.decode()
    except UnicodeDecodeError:
        return "payload is not valid UTF-8"
    return _reason_against_escapes(payload) or _reason_against_depth(payload)


def _reason_against_escapes(payload: bytes) -> str | None:
    if _SUSPECT_ESCAPE.search(payload) is None:
        return None
    for match in _ESCAPE.finditer(payload):
        if match["nul"]:
            return "payload has a NUL character or a lone surrogate"
        if match["lone"]:
            return "payload has a NUL character or a lone surrogate"
    return None


def _reason_against_depth(payload: bytes) -> str | None:
    if is_shallow(payload):
        return None
    depth = 0
    for match in _BRACKETS.finditer(payload):
        token = match[0]
        if token in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return f"payload is nested deeper than {MAX_DEPTH} levels"
        elif token in b"]}":
            depth -= 1
    return None


def without_surrogates(text: bytes) -> bytes:
    """Return a request in which every lone surrogate is written as a NUL, as long as before.

    A parser stops at a lone surrogate and could not say which item it stands in. With this
    the request can be taken apart, and the item is refused for its NUL.
    """
    parts, start = [], 0
    for match in _ESCAPE.finditer(text):
        if match["lone"]:
            parts += [text[start : match.start()], b"\\u0000"]
            start = match.start() + 6
    return b"".join((*parts, text[start:]))


def as_line(payload: bytes) -> bytes:
    """Return a payload on one line: stored payloads are newline-delimited JSON.

    A line break in JSON text can only be white space between tokens, so replacing it with a
    space changes nothing that a parser sees.
    """
    if b"\n" not in payload and b"\r" not in payload:
        return payload
    return payload.replace(b"\n", b" ").replace(b"\r", b" ")
