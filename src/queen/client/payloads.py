"""Payloads: from any Python value to JSON, and back to any type on request.

What a user pushes is what a consumer gets. There is no envelope to guess: a dict that happens
to have a key `data` is a payload like any other.
"""

from __future__ import annotations

import math
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


def encode_payload(value: Any) -> bytes:
    """Return a value as JSON; what JSON cannot hold is an error, not something else."""
    if isinstance(value, msgspec.Raw):
        return bytes(value)
    text = _encoder.encode(value)
    # msgspec writes null for NaN and the infinities. Most payloads have none to look at.
    if b"null" in text and _has_no_number(msgspec.to_builtins(value, enc_hook=_plain)):
        raise ValueError("a payload with NaN or an infinity cannot be JSON; push None or a text")
    return text


def _has_no_number(value: Any) -> bool:
    """Whether plain values have a float in them that is not a number of JSON."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_no_number, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_no_number, value))


def decode_payload(text: bytes, into: type[T] | None) -> T:
    """Return a payload as a type: plain Python values, or what the user asked for."""
    if into is None:
        return cast("T", msgspec.json.decode(text))
    validate = getattr(into, "model_validate_json", None)
    if validate is not None:
        return cast("T", validate(text))
    return msgspec.json.decode(text, type=into)
