"""Which messages a group is shown.

A message is deleted by marking it where it stands: offsets stay dense and nothing behind it
moves. A dead letter that is tried again is appended again for the one group that gave it up;
every other group has read it long ago. Both are rare columns of a segment, and both mean that
a group passes over a message as if it were done.
"""

from __future__ import annotations

from queen.core.frame import Segment

DELETED = "deleted"
ONLY_GROUP = "onlyGroup"


def hidden_bits(segment: Segment, low: int, high: int, group: str) -> int:
    """Return a bit for each message of [low, high) that the group is not shown."""
    deleted, only = segment.column(DELETED), segment.column(ONLY_GROUP)
    if deleted is None and only is None:
        return 0
    bits = 0
    for bit, at in enumerate(range(low, high)):
        gone = deleted is not None and deleted[at]
        elsewhere = only is not None and only[at] not in (None, group)
        if gone or elsewhere:
            bits |= 1 << bit
    return bits
