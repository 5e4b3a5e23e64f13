"""Messages of streams, rendered a bit at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from queen.errors import BadRequest
from queen.server.api.failures import UNDECODABLE
from queen.streambroker.records import StreamMessage
from queen.wire.entries import NamedEntries

_encode = msgspec.json.Encoder().encode
_named = msgspec.json.Decoder(NamedEntries)

NO_IDS = "messageIds array required"


def message_bits(about: dict[str, Any], messages: Sequence[StreamMessage]) -> Iterator[bytes]:
    """Yield an answer with messages bit by bit; `about` is what stands before them."""
    yield _encode({**about, "count": len(messages)})[:-1] + b',"messages":['
    for number, message in enumerate(messages):
        yield (b"," if number else b"") + _encode(message)
    yield b"]}"


def named_ids(body: bytes) -> list[str]:
    """Return the ids that a body names; raises when it names none."""
    try:
        ids = _named.decode(body).messageIds
    except UNDECODABLE:
        ids = []
    if not ids:
        raise BadRequest(NO_IDS)
    return ids
