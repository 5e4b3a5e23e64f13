"""Headers: a small map of texts that travels with a message, beside its payload.

Wherever a message is stored or moved, its headers are one text, the JSON object that they are on
the wire: whoever passes them on copies it and looks at none of them. In a segment that text stands
in the rare column `headers`, so a segment of messages without headers is what it always was.

Names are compared as they are written. Those that have a meaning here are lower case:
`traceparent` and `tracestate` say to which trace a message belongs, as W3C Trace Context has them,
and `content-type` what kind of value its payload is; see `queen.client.payloads`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

# The rare column of a segment.
HEADERS = "headers"
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

MAX_HEADERS = 64
MAX_HEADER_NAME_BYTES = 256
MAX_HEADER_VALUE_BYTES = 8192
# Names and values of one message together.
MAX_HEADERS_BYTES = 16_384
# A text may write every byte as an escape of six.
_MAX_TEXT_BYTES = 8 * MAX_HEADERS_BYTES

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_TRACE = r"(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
# What a version to come has behind the flags is not looked at; this one has nothing there.
_TRACEPARENT = re.compile(rf"00-{_TRACE}|(?!00|ff)[0-9a-f]{{2}}-{_TRACE}(-.*)?")
_MAX_TRACESTATE_CHARACTERS = 512
_MAX_TRACEPARENT_CHARACTERS = 128

_decoder = msgspec.json.Decoder(dict[str, str])
_encode = msgspec.json.encode


def headers_text(headers: Mapping[str, str] | None) -> str | None:
    """Return headers as they are stored; None when there are none.

    >>> headers_text({"traceparent": "00-ab"})
    '{"traceparent":"00-ab"}'
    """
    return _encode(headers).decode() if headers else None


def headers_of(text: str | None) -> dict[str, str]:
    """Return the headers that a text holds.

    >>> headers_of(None)
    {}
    """
    return _decoder.decode(text) if text else {}


def reason_against_headers(headers: Mapping[str, str]) -> str | None:
    """Return why headers cannot be taken, or None."""
    if len(headers) > MAX_HEADERS:
        return f"headers: {len(headers)} are more than {MAX_HEADERS}"
    total = 0
    for name, value in headers.items():
        reason = _reason_against_header(name, value)
        if reason is not None:
            return reason
        total += len(name.encode()) + len(value.encode())
    if total > MAX_HEADERS_BYTES:
        return f"headers have {total} bytes, over {MAX_HEADERS_BYTES}"
    return None


def _reason_against_header(name: str, value: str) -> str | None:
    try:
        name_bytes, value_bytes = len(name.encode()), len(value.encode())
    except (UnicodeEncodeError, AttributeError):
        return f"header {name!r}: names and values must be texts in UTF-8"
    reason = None
    if not 0 < name_bytes <= MAX_HEADER_NAME_BYTES:
        reason = f"a header's name has {name_bytes} bytes, not 1 to {MAX_HEADER_NAME_BYTES}"
    elif _CONTROL.search(name):
        reason = f"header {name!r} has a control character in its name"
    elif value_bytes > MAX_HEADER_VALUE_BYTES:
        reason = f"header {name!r} has {value_bytes} bytes, over {MAX_HEADER_VALUE_BYTES}"
    elif "\0" in value:
        reason = f"header {name!r} has a NUL character in its value"
    return reason


def reason_against_text(text: object) -> str | None:
    """Return why something cannot be the headers of a message, as they are stored."""
    if not isinstance(text, str) or len(text) > _MAX_TEXT_BYTES:
        return "headers are not the text of a small JSON object"
    try:
        return reason_against_headers(_decoder.decode(text))
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        return f"headers are not a JSON object of texts: {error}"


def headers_bytes(column: Sequence[str | None]) -> int:
    """Return how much a column of headers adds to its messages."""
    return sum(map(len, filter(None, column)))


# ---- the trace of a request ----


def trace_of(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return the trace context of a request, by its headers in lower case; empty without one."""
    traceparent = headers.get(b"traceparent")
    if traceparent is None:
        return {}
    tracestate = headers.get(b"tracestate", b"")
    return trace_headers(traceparent.decode("latin-1"), tracestate.decode("latin-1"))


def trace_headers(traceparent: str, tracestate: str) -> dict[str, str]:
    """Return the trace context of a request as headers of its messages. What is not valid counts
    as not given, as W3C Trace Context wants it."""
    if len(traceparent) > _MAX_TRACEPARENT_CHARACTERS or not _TRACEPARENT.fullmatch(traceparent):
        return {}
    context = {TRACEPARENT: traceparent}
    is_sound = 0 < len(tracestate) <= _MAX_TRACESTATE_CHARACTERS and tracestate.isprintable()
    return {**context, TRACESTATE: tracestate} if is_sound else context


def with_trace(headers: Mapping[str, str] | None, trace: Mapping[str, str]) -> dict[str, str]:
    """Return headers with a trace, unless they have one or there is no room for it."""
    if not headers:
        return dict(trace)
    joined = {**headers, **trace}
    if TRACEPARENT in headers or reason_against_headers(joined):
        return dict(headers)
    return joined


def text_with_trace(text: str | None, trace: Mapping[str, str]) -> str | None:
    """The same for headers as they are stored."""
    return headers_text(with_trace(headers_of(text), trace))
