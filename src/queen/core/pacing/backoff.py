"""Back-off: how long a message that has failed waits before it is tried again.

With `fixed` each failure costs the same delay. With `exponential` the delay doubles with each
failure of that message, up to a longest one, and the wait is between half of that and all of it.

    failures   1      2      3      4    ...
    delay      d      2d     4d     8d   ... at most `longest_ms`
    wait       [½, 1] of the delay

Which part of that half is no chance: it is computed from the group, the message and the number of
its failures. Messages that failed together come back apart from each other, and yet any server, and
a test, come to the same wait.
"""

from __future__ import annotations

import hashlib
from typing import Literal, NamedTuple

BackoffKind = Literal["fixed", "exponential"]

# Beyond this many doublings the longest delay is reached, whatever the first one was.
_MOST_DOUBLINGS = 40
_PARTS = 2**32


class Backoff(NamedTuple):
    """How a queue spaces out the tries of a message."""

    kind: BackoffKind
    delay_ms: int
    longest_ms: int

    def wait_ms(self, failures: int, group_id: int, partition_id: int, offset: int) -> int:
        """Return how long a message waits after so many failures, this one among them."""
        if self.kind == "fixed":
            return self.delay_ms
        doublings = min(max(failures - 1, 0), _MOST_DOUBLINGS)
        delay_ms = min(self.delay_ms << doublings, self.longest_ms)
        spread_ms = delay_ms // 2
        return (
            delay_ms
            - spread_ms
            + spread_ms * _part(group_id, partition_id, offset, failures) // _PARTS
        )

    def asked_wait_ms(self, asked_ms: int) -> int:
        """Return how long a message waits whose consumer has asked for a delay of its own."""
        return min(max(asked_ms, 0), self.longest_ms)


def _part(group_id: int, partition_id: int, offset: int, failures: int) -> int:
    """Return which of `_PARTS` parts these four numbers fall into."""
    text = f"{group_id}:{partition_id}:{offset}:{failures}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
