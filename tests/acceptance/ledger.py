"""Whether acked windows can be those of a stream that keeps its promises.

The checker sees what producers know they wrote, what they are not sure of, every delivery and
every ack. It looks at nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Delivery(NamedTuple):
    group: str
    window: str
    digest: str


class Acked(NamedTuple):
    group: str
    window: str
    digest: str
    numbers: tuple[int, ...]


class Written(NamedTuple):
    """Messages by number: those that are stored, and those nobody is sure of."""

    confirmed: frozenset[int]
    unknown: frozenset[int]


def violations(
    groups: Iterable[str], written: Written, deliveries: list[Delivery], acks: list[Acked]
) -> list[str]:
    """Return every broken promise, with its name first."""
    found = list(_changed(deliveries, acks))
    for group in groups:
        mine = [ack for ack in acks if ack.group == group]
        found += _of_group(group, written, mine)
    return found


def _changed(deliveries: list[Delivery], acks: list[Acked]) -> Iterator[str]:
    """A window holds the same for every group and every time."""
    digests: dict[str, str] = {}
    acked = [Delivery(ack.group, ack.window, ack.digest) for ack in acks]
    for one in deliveries + acked:
        if digests.setdefault(one.window, one.digest) != one.digest:
            yield f"changed: {one.window} for {one.group}"


def _of_group(group: str, written: Written, acks: list[Acked]) -> Iterator[str]:
    for window, times in Counter(ack.window for ack in acks).items():
        if times > 1:
            yield f"acked twice: {window} by {group}"
    counts = Counter(number for ack in acks for number in ack.numbers)
    for number, times in counts.items():
        if times > 1:
            yield f"in two windows: {number} of {group}"
    for number in written.confirmed - counts.keys():
        yield f"missing: {number} of {group}"
    for number in counts.keys() - written.confirmed - written.unknown:
        yield f"invented: {number} of {group}"
