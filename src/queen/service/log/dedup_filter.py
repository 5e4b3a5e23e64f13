"""Recently seen transaction ids, as hashes, in little memory.

The question on every push is "have I seen any of these hashes lately?", and the answer is
nearly always no. So a bit filter answers first; only what it lets through is looked up in
sorted runs of eight bytes a hash:

    add ──▶ tail (unsorted) ──sort──▶ run, run, run …   newest last; whole runs are dropped
      └───▶ filter, two generations, the older one dropped with the runs it covers

Hashes of all partitions share the structure: a hash is mixed with its partition first.
Memory has a bound. When it is reached the oldest run goes, and `held_since` tells how far
back the answers are still complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
# So few are looked up and added as plain numbers: an array of one costs as much as one of hundreds.
FEW = 8

_TAIL = 1 << 14
_RUN = 1 << 19
_BITS_PER_KEY = 16
_PROBE_SHIFTS = (np.uint64(6), np.uint64(12), np.uint64(18))
_LOW_6 = np.uint64(63)
_ONE = np.uint64(1)
_MULTIPLIER = 0x9E3779B97F4A7C15
_MIX = np.uint64(_MULTIPLIER)
_MASK = 0xFFFFFFFFFFFFFFFF


def salt_of(partition_id: int) -> int:
    return partition_id * _MULTIPLIER & _MASK


def keys_of(partition_id: int, hashes: bytes) -> Keys:
    """Return stored hashes as keys: the same id in two partitions is two keys."""
    return np.frombuffer(hashes, dtype=np.uint64) ^ np.uint64(salt_of(partition_id))


def _view(words: Keys) -> memoryview:
    """Return the same words, to be read and written one at a time."""
    return memoryview(words.data)


class _Filter:
    """One generation of the bit filter: one 64-bit word a key, so one memory access a key."""

    def __init__(self, capacity: int) -> None:
        bits = (capacity * _BITS_PER_KEY // 64 - 1).bit_length()
        self._words = np.zeros(1 << bits, dtype=np.uint64)
        self._shift = np.uint64(64 - bits)
        # The same words and the same shift, for one key at a time.
        self._each_word = _view(self._words)
        self._each_shift = 64 - bits
        self.added = 0

    def _bits_of(self, keys: Keys) -> tuple[NDArray[np.intp], Keys]:
        """Return the word of each key, and its bits in it."""
        mixed = keys * _MIX
        mask = _ONE << (mixed & _LOW_6)
        for shift in _PROBE_SHIFTS:
            mask |= _ONE << (mixed >> shift & _LOW_6)
        return (mixed >> self._shift).view(np.intp), mask

    def add(self, keys: Keys) -> None:
        word, mask = self._bits_of(keys)
        self.added += len(keys)
        while len(word):
            # Of keys that share a word only the last one is written; the others go again.
            self._words[word] |= mask
            left = np.flatnonzero(self._words.take(word) & mask != mask)
            word, mask = word[left], mask[left]

    def may_hold(self, keys: Keys) -> NDArray[np.bool_]:
        word, mask = self._bits_of(keys)
        held: NDArray[np.bool_] = self._words.take(word, mode="clip") & mask == mask
        return held

    def _bits_of_each(self, key: int) -> tuple[int, int]:
        mixed = key * _MULTIPLIER & _MASK
        mask = 1 << (mixed & 63) | 1 << (mixed >> 6 & 63)
        return mixed >> self._each_shift, mask | 1 << (mixed >> 12 & 63) | 1 << (mixed >> 18 & 63)

    def add_each(self, keys: list[int]) -> None:
        self.added += len(keys)
        for key in keys:
            word, mask = self._bits_of_each(key)
            self._each_word[word] |= mask

    def may_hold_any(self, keys: list[int]) -> bool:
        for key in keys:
            word, mask = self._bits_of_each(key)
            if self._each_word[word] & mask == mask:
                return True
        return False


class _Run:
    """Sorted keys that were seen between two instants."""

    __slots__ = ("first", "keys", "last")

    def __init__(self, keys: Keys, first: float, last: float) -> None:
        self.keys = keys
        self.first = first
        self.last = last

    def holds(self, keys: Keys) -> NDArray[np.bool_]:
        at = np.searchsorted(self.keys, keys)
        at[at == len(self.keys)] = 0
        held: NDArray[np.bool_] = self.keys[at] == keys
        return held


class RecentKeys:
    def __init__(self, capacity: int, window_s: float, clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._window_s = window_s
        self._clock = clock
        self._started = clock()
        self._dropped_until = float("-inf")
        self._tail = np.empty(_TAIL, dtype=np.uint64)
        self._each_of_tail = _view(self._tail)
        self._tail_size = 0
        self._tail_first = self._started
        self._runs: deque[_Run] = deque()
        self._size = 0
        self._new = _Filter(capacity)
        self._old: _Filter | None = None

    def __len__(self) -> int:
        return self._size

    def widen(self, window_s: float) -> None:
        """Keep hashes at least this long, memory permitting."""
        self._window_s = max(self._window_s, window_s)

    def held_seconds(self) -> float:
        """Return how far back everything that was added is still here."""
        return self._clock() - max(self._started, self._dropped_until)

    def may_have_seen_any(self, keys: list[int]) -> bool:
        """Return whether a few keys are worth a look: nearly always none of them is."""
        return self._new.may_hold_any(keys) or (
            self._old is not None and self._old.may_hold_any(keys)
        )

    def seen(self, keys: Keys) -> NDArray[np.bool_]:
        """Return which keys were added before and have not been dropped yet."""
        held = self._new.may_hold(keys)
        if self._old is not None:
            held |= self._old.may_hold(keys)
        suspects = np.flatnonzero(held)
        if len(suspects):
            held[suspects] = self._look_up(keys[suspects])
        return held

    def _look_up(self, keys: Keys) -> NDArray[np.bool_]:
        # Suspects are few: comparing each with the whole tail is quicker than sorting it.
        tail = self._tail[: self._tail_size]
        held = np.fromiter((bool((tail == key).any()) for key in keys), bool, len(keys))
        for run in self._runs:
            held |= run.holds(keys)
        return held

    def add(self, keys: Keys) -> None:
        while len(keys):
            if not self._tail_size:
                self._tail_first = self._clock()
            room = _TAIL - self._tail_size
            part, keys = keys[:room], keys[room:]
            self._new.add(part)
            self._tail[self._tail_size : self._tail_size + len(part)] = part
            self._tail_size += len(part)
            self._size += len(part)
            if self._tail_size == _TAIL:
                self._sort_tail()
                self._drop_old()

    def add_few(self, keys: list[int]) -> None:
        size = self._tail_size + len(keys)
        if not self._tail_size or size >= _TAIL:
            self.add(np.array(keys, dtype=np.uint64))
            return
        self._new.add_each(keys)
        for at, key in enumerate(keys, self._tail_size):
            self._each_of_tail[at] = key
        self._tail_size = size
        self._size += len(keys)

    def _sort_tail(self) -> None:
        run = _Run(np.sort(self._tail), self._tail_first, self._clock())
        self._tail_size = 0
        # Equal-sized neighbours merge, so that there are few runs to look through. The limits
        # keep a merge short and let old hashes go in steps.
        while self._runs and self._should_merge(self._runs[-1], run):
            older = self._runs.pop()
            # "stable" is a merge sort: it joins two sorted halves without sorting them again.
            keys = np.sort(np.concatenate((older.keys, run.keys)), kind="stable")
            run = _Run(keys, older.first, run.last)
        self._runs.append(run)

    def _should_merge(self, older: _Run, newer: _Run) -> bool:
        short_time = newer.last - older.first <= self._window_s / 8
        return short_time and len(older.keys) <= len(newer.keys) <= _RUN // 2

    def _drop_old(self) -> None:
        cutoff = self._clock() - self._window_s
        while self._runs and (self._runs[0].last < cutoff or self._size > self._capacity):
            run = self._runs.popleft()
            self._size -= len(run.keys)
            self._dropped_until = run.last
        if self._new.added >= self._capacity:
            # What the older generation covered alone has been dropped by now: a generation
            # starts when the one before it is full.
            self._old, self._new = self._new, _Filter(self._capacity)
