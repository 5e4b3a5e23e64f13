"""Cycles: the arithmetic of one round of a query of the streaming SDK.

A cycle names the last message it is about. Everything of the lease up to that one is done
with it, the rest is not, and the ids of its results follow from it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

MAX_KEY_BYTES = 2000
# Between the parts of the keys under which windows are kept.
_PART = "\x1f"
_WATERMARK = "__wm__"


def reason_against_key(key: str) -> str | None:
    """Return why a key cannot name state, or None."""
    if not key:
        return "key is required"
    if "\0" in key:
        return "key has a NUL character"
    if len(key.encode()) > MAX_KEY_BYTES:
        return f"key is longer than {MAX_KEY_BYTES} bytes"
    return None


def is_of_a_window(key: str) -> bool:
    """Return whether a key is one of those under which windows and their clock are kept.

    >>> is_of_a_window("tumb:60\\x1f2026-01-01T00:00:00.000Z\\x1fcustomer-7")
    True
    >>> is_of_a_window("customer-7")
    False
    """
    return _PART in key or key == _WATERMARK


def count_up_to(ids: Sequence[str], named: str, count: int | None) -> int | None:
    """Return how many messages of a lease are done; None when the one that is named is not there.

    Without dedup an id may stand in a lease twice. The number of messages that the caller
    has counted then tells which is meant, and if it does not, the first is: what is
    delivered again is not lost.

    >>> count_up_to(["a", "b", "a"], "b", None)
    2
    >>> count_up_to(["a", "b", "a"], "a", 3)
    3
    """
    if count is not None and 0 < count <= len(ids) and ids[count - 1] == named:
        return count
    return ids.index(named) + 1 if named in ids else None


def result_id(lease_id: uuid.UUID, sdk_query: str, partition: str, acked: str, index: int) -> str:
    """Return the transaction id of a result that has none.

    The same cycle, sent again, gives the same ids. The lease is in it, so that messages
    which are read again on purpose have results of their own.
    """
    return str(uuid.uuid5(lease_id, "\0".join((sdk_query, partition, acked, str(index)))))
