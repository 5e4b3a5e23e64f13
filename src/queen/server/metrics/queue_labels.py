"""Which queues have series of their own; all others add up in one.

A queue has a series of its own only if it is among the busiest; the others add up in one
whose queue is `other`. A queue that has got its own series keeps it, and what it did before
stays in `other`: no counter ever goes back.
"""

from __future__ import annotations

from collections.abc import Iterable

from queen.service.stats.activity import FIELDS, Counters

OTHER = "other"


class QueueLabels:
    """Which queues have series of their own, and since where."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._since: dict[str, tuple[int, ...]] = {}
        self._gone = [0] * len(FIELDS)
        self._last: dict[str, tuple[int, ...]] = {}

    def rows(self, counters: Iterable[Counters]) -> dict[str, tuple[int, ...]]:
        """Return the counts of each queue that has its own series, and of `other`."""
        values = {queue.name: queue.values() for queue in counters}
        self._keep_gone(values)
        busiest = sorted(values, key=lambda name: -sum(values[name][:8]))
        for name in busiest:
            if len(self._since) >= self._most:
                break
            # A queue that comes before the first scrape brings all it has done.
            self._since.setdefault(name, self._last.get(name, (0,) * len(FIELDS)))
        self._last = values
        rows, other = {}, list(self._gone)
        for name, counted in values.items():
            since = self._since.get(name)
            if since is not None:
                rows[name] = tuple(now - was for now, was in zip(counted, since, strict=True))
            for at, count in enumerate(since if since is not None else counted):
                other[at] += count
        rows[OTHER] = tuple(other)
        return rows

    def _keep_gone(self, values: dict[str, tuple[int, ...]]) -> None:
        """A queue that was deleted leaves its part of `other` behind."""
        for name in self._last.keys() - values.keys():
            part = self._since.pop(name, None)
            for at, count in enumerate(self._last[name] if part is None else part):
                self._gone[at] += count
