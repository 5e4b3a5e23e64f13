"""Which partitions have records in the spool: what comes for them now goes behind those."""

from __future__ import annotations

Key = tuple[str, str]

# Beyond so many, all partitions count as waiting: that costs speed and no order.
_MOST_KEYS = 200_000


class WaitingKeys:
    """Counts the records of each partition, a queue and the name of a partition."""

    def __init__(self, most: int = _MOST_KEYS) -> None:
        self._most = most
        self._counts: dict[Key, int] = {}
        self._others = 0

    def __bool__(self) -> bool:
        return self._others > 0 or len(self._counts) > 0

    def holds(self, key: Key) -> bool:
        return key in self._counts or self._others > 0

    def add(self, key: Key, records: int = 1) -> None:
        if key in self._counts:
            self._counts[key] += records
        elif len(self._counts) < self._most:
            self._counts[key] = records
        else:
            self._others += records

    def done(self, key: Key, records: int = 1) -> None:
        count = self._counts.get(key, 0)
        if count > records:
            self._counts[key] = count - records
            return
        if count:
            del self._counts[key]
        # The rest are of those that there was no room for.
        self._others = max(self._others - (records - count), 0)
