"""The circuit breaker of a group: it pauses by itself while nearly everything fails.

What became of the last messages of a group is remembered, one bit each. When enough of them were
failures, the breaker opens: the group is given nothing. After a pause a single message is tried,
the probe. If that succeeds, the breaker closes and all goes on; if it fails, the next probe comes
after another pause.

    closed ── enough of the last outcomes failed ──▶ open ── pause ──▶ probe
       ▲                                              ▲                  │
       └──────────────── it succeeds ─────────────────┼── it fails ──────┘

While it is open nothing is held against a message except by the probe: what others fail that were
leased before comes again without fault. Whoever sends a message to the dead letters by name is
obeyed at any time.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from queen.core.cursor import AckStatus, Cursor
from queen.core.shared import SharedSpan


class BreakerRule(NamedTuple):
    """When the breakers of a queue open, and for how long they pause."""

    # Percent of the last outcomes that are failures; 0 never opens.
    share: int
    outcomes: int
    pause_ms: int


class Turn(Enum):
    """What an ack has done to a breaker."""

    OPENED = "opened"
    PROBE_FAILED = "probe_failed"
    CLOSED = "closed"


@dataclass(slots=True)
class GroupBreaker:
    rule: BreakerRule
    # One bit for each, the newest lowest; set where it was a failure.
    outcomes: int = 0
    counted: int = 0
    is_open: bool = False
    probe_lease: uuid.UUID | None = None
    turn: Turn | None = None

    @property
    def failures(self) -> int:
        return self.outcomes.bit_count()

    def judge(
        self,
        held: Cursor | SharedSpan,
        lease_id: uuid.UUID | None,
        statuses: Mapping[int, AckStatus],
    ) -> dict[int, AckStatus]:
        """Count what is said of messages of a lease; return it with what is excused."""
        judged = dict(statuses)
        if not held.live or lease_id not in (None, held.lease_id):
            # It is refused, and tells nothing.
            return judged
        is_probe = held.lease_id == self.probe_lease
        for offset, status in judged.items():
            if held.holds(offset):
                judged[offset] = self._judge_one(status, is_probe=is_probe)
        return judged

    def _judge_one(self, status: AckStatus, *, is_probe: bool) -> AckStatus:
        if status is AckStatus.RETRY:
            return status
        if self.is_open and not is_probe:
            return AckStatus.RETRY if status is AckStatus.FAILED else status
        has_failed = status is not AckStatus.DONE
        if not self.is_open:
            self._count(has_failed)
        elif has_failed:
            self.probe_lease, self.turn = None, Turn.PROBE_FAILED
        else:
            self._start_anew(Turn.CLOSED, is_open=False)
        return status

    def _count(self, has_failed: bool) -> None:
        last = (1 << self.rule.outcomes) - 1
        self.outcomes = (self.outcomes << 1 | has_failed) & last
        self.counted = min(self.counted + 1, self.rule.outcomes)
        is_enough = self.failures * 100 >= self.rule.share * self.rule.outcomes
        if has_failed and self.counted == self.rule.outcomes and is_enough:
            self._start_anew(Turn.OPENED, is_open=True)

    def _start_anew(self, turn: Turn, *, is_open: bool) -> None:
        self.outcomes = self.counted = 0
        self.probe_lease = None
        self.is_open, self.turn = is_open, turn
