"""Identifiers that are computed, never stored.

A message is named by its partition and its offset, so its id is those two numbers in the
shape of a UUID (version 8, "custom"), and every server computes the same one:

    pppppppp-pppp-8ppp-8ooo-oooooooooooo      p: partition, 60 bits   o: offset, 60 bits
    pppppppp-pppp-8ppp-bfff-ffffffffffff      the partition itself

For offsets below 2**48, that is all of them for the next few centuries, the first 24
characters are the same for every message of a partition. Hot code formats them once.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from functools import lru_cache

_PARTITION_SUFFIX = "bfff-ffffffffffff"
_ID_PATTERN = re.compile(
    r"([0-9a-f]{8})-([0-9a-f]{4})-8([0-9a-f]{3})-([89ab][0-9a-f]{3})-([0-9a-f]{12})", re.IGNORECASE
)
MAX_FAST_OFFSET = 1 << 48
_KEPT = 1 << 14


def _partition_hex(partition: int) -> str:
    return f"{partition >> 28:08x}-{partition >> 12 & 0xFFFF:04x}-8{partition & 0xFFF:03x}-"


# Kept for those that are in use: a server knows a million partitions, most of them idle.
@lru_cache(maxsize=_KEPT)
def partition_uuid(partition: int) -> str:
    """Return the id of a partition as it appears on the wire.

    >>> partition_uuid(7)
    '00000000-0000-8007-bfff-ffffffffffff'
    """
    return _partition_hex(partition) + _PARTITION_SUFFIX


@lru_cache(maxsize=_KEPT)
def message_prefix(partition: int) -> str:
    """Return the 24 characters that all messages of a partition share below offset 2**48.

    >>> message_prefix(7)
    '00000000-0000-8007-8000-'
    """
    return _partition_hex(partition) + "8000-"


def message_id(partition: int, offset: int) -> str:
    """Return the id of the message at an offset.

    >>> message_id(7, 255)
    '00000000-0000-8007-8000-0000000000ff'
    """
    high, low = divmod(offset, MAX_FAST_OFFSET)
    return f"{_partition_hex(partition)}{0x8000 | high:04x}-{low:012x}"


def parse_partition(text: str) -> int | None:
    """Return the partition of a partition id or of a message id, None for any other text.

    >>> parse_partition('00000000-0000-8007-bfff-ffffffffffff')
    7
    """
    match = _ID_PATTERN.fullmatch(text)
    if match is None:
        return None
    high, middle, low = match.group(1, 2, 3)
    return int(high + middle + low, 16)


def parse_message(text: str) -> tuple[int, int] | None:
    """Return partition and offset of a message id, None for any other text.

    >>> parse_message('00000000-0000-8007-8000-0000000000ff')
    (7, 255)
    """
    match = _ID_PATTERN.fullmatch(text)
    if match is None or text.lower().endswith(_PARTITION_SUFFIX):
        return None
    partition, high, low = "".join(match.group(1, 2, 3)), match[4], match[5]
    return int(partition, 16), (int(high, 16) & 0x3FFF) << 48 | int(low, 16)


def new_lease() -> uuid.UUID:
    """Return a lease id that nobody can guess and no crash can grant twice."""
    return uuid.uuid4()


_NUMBER_BYTES = 6


def new_lease_of(number: int) -> uuid.UUID:
    """The same for the consumer of a number, with which the id ends: 74 bits are left to chance."""
    chance = os.urandom(16 - _NUMBER_BYTES)
    return uuid.UUID(bytes=chance + number.to_bytes(_NUMBER_BYTES), version=4)


@lru_cache(maxsize=10_000)
def consumer_number(name: str) -> int:
    """Return the number of a consumer's name."""
    digest = hashlib.blake2b(name.encode(), digest_size=_NUMBER_BYTES).digest()
    return int.from_bytes(digest)


def parse_lease(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
