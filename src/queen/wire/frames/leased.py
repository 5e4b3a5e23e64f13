"""Leased frames: what a pop is answered with that asks for stored segments.

    | "QLSE" | version u8 | zero u8[3] | head size u32 | head: JSON | frames, one after the other |

Numbers are little-endian. The head says what was leased; the frames are drawn in
`queen.core.frame`. Those of a claim stand together, in the order of the claims. The first and
the last of a claim may reach beyond it: only offsets of the claim that are not hidden are leased.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec
from msgspec import Meta

from queen.errors import InvalidFrame
from queen.wire.parts import Name, PartitionId

VERSION = 1

_MAGIC = b"QLSE"
_START = struct.Struct("<4sB3xI")

Offsets = Annotated[list[int], Meta(description="Offsets of the claim that are not delivered.")]
Failures = Annotated[
    dict[int, int],
    Meta(description="Deliveries before this one, by offset, where they are not attempt - 1."),
]


class LeasedClaim(msgspec.Struct, omit_defaults=True):
    """What was leased of one partition."""

    queue: Name
    partition: Name
    partitionId: PartitionId
    epoch: int
    attempt: int
    firstOffset: int
    endOffset: int
    leaseMs: int
    priority: int
    # How many of the frames are its own.
    frames: int
    hidden: Offsets = []
    failures: Failures = {}


class LeasedHead(msgspec.Struct, omit_defaults=True):
    """What was leased; without a lease, because it is acknowledged already, its id is empty."""

    leaseId: str
    consumerGroup: Name
    claims: list[LeasedClaim]
    # The next pop may be a POST that acknowledges these.
    takesAcks: bool = False


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(LeasedHead)


def pack_head(head: LeasedHead) -> bytes:
    """Return what stands before the frames."""
    encoded = _encode(head)
    return _START.pack(_MAGIC, VERSION, len(encoded)) + encoded


def unpack_head(body: bytes) -> tuple[LeasedHead, int]:
    """Return the head of an answer, and where its frames begin."""
    if len(body) < _START.size:
        raise InvalidFrame("truncated inside the start of leased frames")
    magic, version, size = _START.unpack_from(body)
    frames_at = _START.size + size
    if magic != _MAGIC or version != VERSION:
        raise InvalidFrame(f"leased frames of version {version} are not known")
    if len(body) < frames_at:
        raise InvalidFrame("truncated inside the head of leased frames")
    try:
        return _decoder.decode(memoryview(body)[_START.size : frames_at]), frames_at
    except msgspec.DecodeError as error:
        raise InvalidFrame(f"the head of leased frames: {error}") from None
