"""How much is left behind the last micro-batch, for whoever looks at a query's progress.

Counting what is left takes the longer the more it is, so that is done once, with the first batch
that a limit has cut short. From then on the broker counts what has come since, in the answer to
the plan that is asked for anyway, and what the plan holds is taken off.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from queen.wire.cuts import Plan, QueueCount


class Left(NamedTuple):
    """What is left of one queue."""

    messages: int = 0
    bytes: int = 0


_NOTHING = Left()


class Backlog:
    def __init__(self, queues: Iterable[str]) -> None:
        self._nothing = dict.fromkeys(queues, _NOTHING)
        self._left = self._nothing
        # Where the plan ended behind which this is left, and up to when it was counted.
        self._since: int | None = None
        self._until = 0

    def count_since(self, since: int) -> int:
        """Return from when on the broker is to count, for a plan that begins at `since`."""
        return self._until if since == self._since else since

    def clear(self) -> None:
        """Nothing is left."""
        self._left, self._since = self._nothing, None

    def follow(self, since: int, plan: Plan, until: int) -> None:
        """Note what a plan from `since` on leaves of what there is before `until`."""
        if plan.until >= until:
            self.clear()
            return
        before = self._left if since == self._since else self._nothing
        counted, planned = _by_queue(plan.counted), _by_queue(plan.planned)
        self._left = {
            queue: _sum(left, counted.get(queue, _NOTHING), planned.get(queue, _NOTHING))
            for queue, left in (dict.fromkeys(counted, _NOTHING) | before).items()
        }
        self._since, self._until = plan.until, until

    def by_queue(self) -> dict[str, dict[str, int]]:
        return {queue: left._asdict() for queue, left in self._left.items()}


def _by_queue(counts: list[QueueCount]) -> dict[str, Left]:
    return {count.queue: Left(count.messages, count.bytes) for count in counts}


def _sum(left: Left, counted: Left, planned: Left) -> Left:
    # Retention may have removed what was counted.
    return Left(
        max(left.messages + counted.messages - planned.messages, 0),
        max(left.bytes + counted.bytes - planned.bytes, 0),
    )
