"""Shares: waiting work of several namespaces, taken in proportion to their weights.

Work of one namespace is taken in order. Each has a clock of its own, which goes on by the weight of
what was taken, divided by the namespace's share; whose clock is behind is next. A namespace that
comes with nothing waiting starts at the present, so nobody saves up, and nobody is passed over.

While two of them have work waiting, each gets its part of what is taken, to within its largest
item. One that is alone gets everything.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

# The weight of namespaces that are not named.
OTHERS = "*"
MOST_WEIGHT = 1000


class Weighted(Protocol):
    @property
    def weight(self) -> int: ...


T = TypeVar("T", bound=Weighted)


class _Share(Generic[T]):
    __slots__ = ("finish", "items", "part", "waiting_weight")

    def __init__(self, part: int) -> None:
        self.part = part
        self.items: deque[T] = deque()
        self.waiting_weight = 0
        # Its clock: when what was taken last would be done.
        self.finish = 0.0


class FairOrder(Generic[T]):
    """Behaves like a deque of which the first is taken, but for which item that is.

    `owner_of` says of an item by what its order is kept, and its namespace. What is ordered stays
    with the namespace that it came with, until all of it is taken.
    """

    def __init__(
        self, weights: Mapping[str, int], owner_of: Callable[[T], tuple[str, str]]
    ) -> None:
        self._weights = weights
        self._owner_of = owner_of
        self._shares: dict[str, _Share[T]] = {}
        # Where items of one order are, and how many.
        self._orders: dict[str, tuple[_Share[T], int]] = {}
        self._next: list[tuple[float, int, _Share[T]]] = []
        self._ties = itertools.count()
        self._now = 0.0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, _first: int) -> T:
        return self._next[0][2].items[0]

    def append(self, item: T) -> None:
        order, namespace = self._owner_of(item)
        share, count = self._orders.get(order) or (self._share_of(namespace), 0)
        self._orders[order] = share, count + 1
        if not share.items:
            heapq.heappush(self._next, (max(self._now, share.finish), next(self._ties), share))
        share.items.append(item)
        share.waiting_weight += item.weight
        self._count += 1

    def popleft(self) -> T:
        self._now, _, share = heapq.heappop(self._next)
        item = share.items.popleft()
        share.waiting_weight -= item.weight
        share.finish = self._now + max(item.weight, 1) / share.part
        if share.items:
            heapq.heappush(self._next, (share.finish, next(self._ties), share))
        self._forget(self._owner_of(item)[0])
        return item

    def has_room(self, item: T, waiting_weight: int, most: int) -> bool:
        """Whether an item may wait where `most` may, and so much does: where it is crowded, a
        namespace may still use its share, until there is twice as much."""
        share = self._share_of(self._owner_of(item)[1])
        if waiting_weight + item.weight > 2 * most:
            return False
        parts = share.part + sum(
            other.part for other in self._shares.values() if other.items and other is not share
        )
        return share.waiting_weight + item.weight <= most * share.part / parts

    def _share_of(self, namespace: str) -> _Share[T]:
        share = self._shares.get(namespace)
        if share is None:
            part = self._weights.get(namespace, self._weights.get(OTHERS, 1))
            share = self._shares[namespace] = _Share(part)
        return share

    def _forget(self, order: str) -> None:
        self._count -= 1
        share, count = self._orders[order]
        if count > 1:
            self._orders[order] = share, count - 1
        else:
            del self._orders[order]
        if not self._count:
            # Nobody waits: all begin anew.
            self._shares.clear()
            self._now = 0.0


def parse_weights(text: str) -> dict[str, int]:
    """Return weights as they are told, `billing=3,reports=1,*=1`; raises `ValueError`.

    >>> parse_weights("billing=3, *=1")
    {'billing': 3, '*': 1}
    """
    weights: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        namespace, equals, number = map(str.strip, part.rpartition("="))
        if not equals or not number.isdecimal() or not 1 <= int(number) <= MOST_WEIGHT:
            raise ValueError(f"{part!r} is no weight: NAMESPACE=1 to {MOST_WEIGHT}, * for others")
        weights[namespace] = int(number)
    return weights
