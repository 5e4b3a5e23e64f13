"""Hashes of transaction ids, stored beside each segment: eight bytes a message.

A hash only ever raises a suspicion. Whether two messages are the same is decided by their
ids, so a collision costs one look and never a message.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

HASH_BYTES = 8


def hash_ids(transaction_ids: Iterable[bytes]) -> array[int]:
    return array("Q", map(xxh3_64_intdigest, transaction_ids))
