"""How an entry looks as a message of its queue.

    fields of the entry                  payload                            transaction id
    data = some JSON                     that JSON                          <id>
    names that differ, all of it text    {"name": "value", …}               <id>/fields
    anything else                        {"fields": [["bmFtZQ==", …], …]}   <id>/bytes

A message that was pushed to the queue by others is an entry whose field `data` is its
payload. What an entry was can always be told from its message, byte for byte.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from itertools import chain

import msgspec

from queen.core.payload import reason_against_payload

_DATA = b"data"
_FIELDS = b"/fields"
_BYTES = b"/bytes"

# Text that is the same in JSON.
_IS_PLAIN = re.compile(rb"[ !#-\[\]-~]*").fullmatch
_ARE_PLAIN = re.compile(rb"[\n !#-\[\]-~]*").fullmatch

_encoder = msgspec.json.Encoder()
_checker = msgspec.json.Decoder(msgspec.Raw)


def messages_of(entries: Sequence[tuple[bytes, list[bytes]]]) -> list[tuple[bytes, bytes]]:
    """Return transaction ids and payloads of entries."""
    if _are_plain(entries):
        return [
            (entry_id + _FIELDS, b'{"%s":"%s"}' % (fields[0], fields[1]))
            for entry_id, fields in entries
        ]
    return [message_of(entry_id, fields) for entry_id, fields in entries]


def _are_plain(entries: Sequence[tuple[bytes, list[bytes]]]) -> bool:
    """Whether all entries have one field, of text that is the same in JSON: one look at all."""
    if not all(len(fields) == 2 and fields[0] != _DATA for _, fields in entries):
        return False
    lines = b"\n".join(chain.from_iterable(fields for _, fields in entries))
    return lines.count(b"\n") == 2 * len(entries) - 1 and bool(_ARE_PLAIN(lines))


def message_of(entry_id: bytes, fields: list[bytes]) -> tuple[bytes, bytes]:
    """Return the transaction id and the payload of an entry."""
    if len(fields) == 2 and fields[0] == _DATA and _is_payload(fields[1]):
        return entry_id, fields[1]
    if len(fields) == 2 and _IS_PLAIN(fields[0]) and _IS_PLAIN(fields[1]):
        return entry_id + _FIELDS, b'{"%s":"%s"}' % (fields[0], fields[1])
    names, values = fields[::2], fields[1::2]
    if len(names) != len(set(names)) or b"\0" in b"".join(fields):
        return entry_id + _BYTES, _in_base64(fields)
    try:
        pairs = {name.decode(): value.decode() for name, value in zip(names, values, strict=True)}
    except UnicodeDecodeError:
        return entry_id + _BYTES, _in_base64(fields)
    return entry_id + _FIELDS, _encoder.encode(pairs)


def fields_of(entry_id: bytes, transaction_id: bytes, payload: bytes) -> list[bytes]:
    """Return the fields of the entry that a message is."""
    if transaction_id.startswith(entry_id):
        kind = transaction_id[len(entry_id) :]
        if kind == _FIELDS:
            pairs = json.loads(payload, object_pairs_hook=list)
            return [part.encode() for pair in pairs for part in pair]
        if kind == _BYTES:
            pairs = msgspec.json.decode(payload)["fields"]
            return [base64.b64decode(part) for pair in pairs for part in pair]
    return [_DATA, payload]


def _is_payload(value: bytes) -> bool:
    """Whether a value is JSON that can be kept as it is."""
    if b"\n" in value or b"\r" in value or value != value.strip():
        return False
    try:
        _checker.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return reason_against_payload(value) is None


def _in_base64(fields: list[bytes]) -> bytes:
    texts = [base64.b64encode(part).decode() for part in fields]
    return _encoder.encode(
        {"fields": [list(pair) for pair in zip(texts[::2], texts[1::2], strict=True)]}
    )
