"""How data is written into an entry, and how entries are shown as data.

What `xadd` writes is one field: its name is `data`, its value is JSON. So any JSON value comes back
as it was, and programs in other languages can read it.

Entries that others wrote have other fields. They are shown

    as an object of texts                    if all names and values are UTF-8 and names are unique
    as {"fields": [[name, value], ...]}      otherwise; what is no UTF-8 is {"base64": "..."}

A field `data` that is alone and is no JSON is such an entry too. A dead letter has four more fields
at its end, that say where it comes from; they are taken off first, and shown beside the data.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from queen.client.payloads import encode_payload
from queen.errors import BadRequest
from queen.streambroker.records import DeadLetterOrigin

FIELD = b"data"

_ORIGIN = (b"dlq-stream", b"dlq-group", b"dlq-id", b"dlq-deliveries")

Fields = Sequence[bytes]


def fields_of(data: Any) -> list[bytes]:
    """Return data as the fields of an entry: names and values in turn."""
    try:
        return [FIELD, encode_payload(data)]
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise BadRequest(f"data cannot be written as JSON: {error}") from error


def entry_data(fields: Fields) -> Any:
    """Return the fields of an entry as data."""
    names, values = fields[::2], fields[1::2]
    if len(names) == 1 and names[0] == FIELD:
        try:
            return msgspec.json.decode(values[0])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    try:
        texts = {name.decode(): value.decode() for name, value in zip(names, values, strict=True)}
    except UnicodeDecodeError:
        texts = {}
    if len(texts) == len(names):
        return texts
    return {
        "fields": [[_shown(name), _shown(value)] for name, value in zip(names, values, strict=True)]
    }


def _shown(text: bytes) -> str | dict[str, str]:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(text).decode()}


def with_origin(
    fields: Fields, stream: bytes, group: bytes, entry_id: bytes, deliveries: int
) -> list[bytes]:
    """Return the fields of a dead letter."""
    values = (stream, group, entry_id, b"%d" % deliveries)
    return [*fields, *(part for pair in zip(_ORIGIN, values, strict=True) for part in pair)]


def split_origin(fields: Fields) -> tuple[Fields, DeadLetterOrigin | None]:
    """Return the fields that were there first, and where a dead letter comes from."""
    if tuple(fields[-8::2]) != _ORIGIN:
        return fields, None
    stream, group, entry_id, deliveries = (
        value.decode(errors="backslashreplace") for value in fields[-7::2]
    )
    if not deliveries.isdecimal():
        return fields, None
    return fields[:-8], DeadLetterOrigin(stream, group, entry_id, int(deliveries))
