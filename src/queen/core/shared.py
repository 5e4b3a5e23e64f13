"""Spans: what a lease of a shared group holds, and what its acks make of it.

A span is a run of messages of one partition that were handed out together. All of them were handed
out equally often, and have failed equally often. While it is leased, a bit in `acked` remembers
each message that is done, a bit in `given_back` each that is not its own any more: that one is a
span of its own from then on, with its own wait and its own tries, and holds up nobody. When every
message is one or the other the span is over.

Consumers that die without a word are counted for all messages of a span. Only a message that was
handed out alone answers for that: which of several has killed them is not known.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from queen.core.cursor import AckResult, AckStatus


@dataclass(slots=True)
class SharedSpan:
    first: int
    end: int
    lease_id: uuid.UUID
    live: bool
    attempts: int
    told: int = 0
    is_alone: bool = False
    acked: int = 0
    given_back: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing is left in it."""
        every = (1 << (self.end - self.first)) - 1
        return (self.acked | self.given_back) & every == every

    def holds(self, offset: int) -> bool:
        """Whether a message is in it and not done."""
        decided = self.acked | self.given_back
        return self.first <= offset < self.end and not decided >> (offset - self.first) & 1


class GivenBack(NamedTuple):
    """Messages that were given back together, equally often tried."""

    first: int
    end: int
    attempts: int
    told: int


@dataclass(slots=True)
class SettledSpan:
    """A span after an ack, and what became of each offset."""

    span: SharedSpan
    results: dict[int, AckResult] = field(default_factory=dict)
    # The messages that died, and how often each was tried.
    dead: dict[int, int] = field(default_factory=dict)
    given_back: list[GivenBack] = field(default_factory=list)
    # How many messages are done that were not before.
    done: int = 0

    def is_held_by(self, lease_id: uuid.UUID | None) -> bool:
        """Whether a lease goes on."""
        return self.span.live and self.span.lease_id == lease_id and not self.span.is_over


def settle_span(
    span: SharedSpan,
    lease_id: uuid.UUID | None,
    statuses: Mapping[int, AckStatus],
    retry_limit: int | None,
    hidden: Iterable[int] = (),
) -> SettledSpan:
    """Apply acknowledgments to a span; arguments as for `queen.core.cursor.settle`."""
    after = SettledSpan(replace(span))
    if not span.live or span.lease_id != lease_id:
        after.results = dict.fromkeys(statuses, AckResult.LOST)
        return after
    for offset in hidden:
        if after.span.holds(offset):
            _finish(after, offset)
    for offset, status in statuses.items():
        after.results[offset] = _mark(after, offset, status, retry_limit)
    after.given_back = _joined(sorted(after.given_back))
    return after


def refuse(is_done: Mapping[int, bool], statuses: Mapping[int, AckStatus]) -> dict[int, AckResult]:
    """Return what is said to a lease that is over: of what it has done, that it came before."""
    return {
        offset: AckResult.ALREADY if is_done.get(offset) else AckResult.LOST for offset in statuses
    }


def _finish(after: SettledSpan, offset: int) -> None:
    after.span.acked |= 1 << (offset - after.span.first)
    after.done += 1


def _mark(after: SettledSpan, offset: int, status: AckStatus, retry_limit: int | None) -> AckResult:
    span = after.span
    is_failure = status in (AckStatus.FAILED, AckStatus.RETRY)
    if not span.holds(offset):
        return _told_before(span, offset, is_failure=is_failure)
    told = span.told + (status is AckStatus.FAILED)
    # Set aside by name, this delivery is one of them, although nobody has counted it.
    tries = told + (status is AckStatus.DEAD)
    if span.is_alone:
        tries = max(tries, span.attempts)
    exhausted = status is AckStatus.FAILED and retry_limit is not None and tries > retry_limit
    if is_failure and not exhausted:
        # Given back without fault, this delivery does not count.
        attempts = span.attempts if status is AckStatus.FAILED else max(span.attempts - 1, 0)
        span.given_back |= 1 << (offset - span.first)
        after.given_back.append(GivenBack(offset, offset + 1, attempts, told))
        return AckResult.RETRY
    _finish(after, offset)
    if status is AckStatus.DONE:
        return AckResult.DONE
    after.dead[offset] = tries
    return AckResult.DEAD


def _told_before(span: SharedSpan, offset: int, *, is_failure: bool) -> AckResult:
    """Return what is said of a message of which something was said before."""
    at = offset - span.first
    if not span.first <= offset < span.end:
        return AckResult.LOST
    if span.acked >> at & 1:
        return AckResult.ALREADY
    return AckResult.RETRY if is_failure else AckResult.LOST


def _joined(given_back: list[GivenBack]) -> list[GivenBack]:
    """Return the same with neighbours that were tried equally often as one."""
    joined: list[GivenBack] = []
    for part in given_back:
        last = joined[-1] if joined else None
        if last is not None and last.end == part.first and last[2:] == part[2:]:
            joined[-1] = last._replace(end=part.end)
        else:
            joined.append(part)
    return joined
