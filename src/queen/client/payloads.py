"""Payloads: from any Python value to JSON, and back to any type on request.

What a user pushes is what a consumer gets. There is no envelope to guess: a dict that happens
to have a key `data` is a payload like any other.

JSON has no bytes and no decimal numbers. A payload that is one of them is a text in JSON, and
headers say which: `message.data` is what was pushed, and other clients read the text.

    bytes     content-type: application/octet-stream    content-encoding: base64
    Decimal   content-type: application/vnd.queen.decimal

Within a document they are texts and nothing tells them from others; whoever reads the document into
a type that says `bytes` or `Decimal` has them back.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T")


def _plain(value: Any) -> Any:
    """Return what JSON can hold of a value that msgspec does not know."""
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value)
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        # pydantic, which need not be installed to be served.
        return dump(mode="json")
    raise TypeError(
        f"a payload of type {type(value).__name__} cannot be JSON; push a dict, a list, a "
        "dataclass, a msgspec struct or a pydantic model"
    )


_encoder = msgspec.json.Encoder(enc_hook=_plain)


# A float whose exponent is all ones, as MessagePack writes it. No text has these bytes.
_NO_NUMBER = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
_packer = msgspec.msgpack.Encoder(enc_hook=_plain)


def encode_payload(value: Any) -> bytes:
    """Return a value as JSON; what JSON cannot hold is an error, not something else."""
    if isinstance(value, msgspec.Raw):
        return bytes(value)
    text = _encoder.encode(value)
    if b"null" in text:
        _check_numbers((value,))
    return text


def encode_payloads(values: Sequence[Any]) -> list[bytes]:
    """Return many values as JSON, written by one call."""
    text = _encoder.encode_lines(values)
    payloads = text.split(b"\n")
    if len(payloads) != len(values) + 1:
        # Somebody's own JSON has line breaks.
        return [encode_payload(value) for value in values]
    del payloads[-1]
    if b"null" in text:
        _check_numbers(values)
    return payloads


def _check_numbers(values: Sequence[Any]) -> None:
    """Refuse NaN and the infinities, for which msgspec writes null. What it writes in another
    format tells whether there can be one, and most payloads need no closer look."""
    try:
        if _NO_NUMBER.search(_packer.encode(values)) is None:
            return
    except (ValueError, TypeError, OverflowError):
        # JSON holds a few things more.
        pass
    for value in values:
        if not isinstance(value, msgspec.Raw) and _has_no_number(
            msgspec.to_builtins(value, enc_hook=_plain)
        ):
            raise ValueError(
                "a payload with NaN or an infinity cannot be JSON; push None or a text"
            )


def _has_no_number(value: Any) -> bool:
    """Whether plain values have a float in them that is not a number of JSON."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_no_number, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_no_number, value))


# ---- what JSON has no word for ----

_TYPE, _ENCODING = "content-type", "content-encoding"
_BYTES = {_TYPE: "application/octet-stream", _ENCODING: "base64"}
_DECIMAL = {_TYPE: "application/vnd.queen.decimal"}
_MARKS: dict[type, Mapping[str, str]] = {
    bytes: _BYTES,
    bytearray: _BYTES,
    memoryview: _BYTES,
    Decimal: _DECIMAL,
}
MARKED_TYPES = frozenset(_MARKS)


def mark_of(value: Any) -> Mapping[str, str] | None:
    """Return the headers that say what a payload is, if JSON cannot."""
    return _MARKS.get(type(value))


def unmark(value: Any, headers: Mapping[str, str]) -> Any:
    """Return a payload as it was before it became JSON, as its headers say. What is not as they
    say stays as it is: a header is anybody's."""
    if not isinstance(value, str):
        return value
    with contextlib.suppress(ValueError, InvalidOperation):
        if headers.get(_ENCODING) == _BYTES[_ENCODING]:
            return base64.b64decode(value, validate=True)
        if headers.get(_TYPE) == _DECIMAL[_TYPE]:
            return Decimal(value)
    return value


def decode_payload(text: bytes, into: type[T] | None) -> T:
    """Return a payload as a type: plain Python values, or what the user asked for."""
    if into is None:
        return cast("T", decode_plain(text))
    validate = getattr(into, "model_validate_json", None)
    if validate is not None:
        return cast("T", validate(text))
    return msgspec.json.decode(text, type=into)


_decode_values = msgspec.json.Decoder().decode


def decode_plain(text: bytes) -> Any:
    """Return a payload as plain Python values."""
    try:
        return _decode_values(text)
    except msgspec.ValidationError:
        # A number that no float holds, 1e999, is JSON, and infinite as everywhere in Python. One
        # such message must not keep all others from being read.
        return json.loads(text)


def payload_decoder(into: Any) -> Callable[[bytes], Any]:
    """Return what decodes many payloads to a type: to plain Python values without one."""
    return decode_plain if into is None else lambda text: decode_payload(text, into)
