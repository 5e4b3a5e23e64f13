"""Ids in sixteen bytes each, for those that are rarely looked at.

16 bytes, big-endian | 16 bytes | …
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

_BYTES = 16


def join_ids(ids: Iterable[int]) -> bytes:
    if isinstance(ids, PackedIds):
        return ids.joined
    return b"".join([entry_id.to_bytes(_BYTES, "big") for entry_id in ids])


def split_ids(joined: bytes) -> list[int]:
    return [int.from_bytes(joined[at : at + _BYTES], "big") for at in range(0, len(joined), _BYTES)]


class PackedIds(Sequence[int]):
    """A list of ids that takes a third of the memory, and cannot be changed."""

    __slots__ = ("joined",)

    def __init__(self, joined: bytes) -> None:
        self.joined = joined

    def __len__(self) -> int:
        return len(self.joined) // _BYTES

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> list[int]: ...

    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            start, stop, _ = at.indices(len(self))
            return split_ids(self.joined[start * _BYTES : stop * _BYTES])
        if at < 0:
            at += len(self)
        packed = self.joined[at * _BYTES : at * _BYTES + _BYTES]
        if at < 0 or not packed:
            raise IndexError(at)
        return int.from_bytes(packed, "big")
