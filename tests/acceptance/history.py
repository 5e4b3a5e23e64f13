"""What clients saw, and whether a broker that keeps its promises can have shown it to them.

A history is a list of operations. Each is written down before it is sent and gets one of
three outcomes: it certainly happened (`OK`), it certainly did not (`FAILED`), or nobody can
say (`UNKNOWN`, also while no answer has come). An unknown operation may have happened, and
may happen at any later time: it excuses nothing that an answered one promised.

Order is told by ticks of one counter. Operation B is after operation A when B was invoked
after A was answered; everything else is concurrent, and the checker then accepts either
order. Clocks are asked for one thing only: whether a lease had time to lapse.

`check` looks at the history alone. It has three answers: a broken promise was seen, none
was, or the run was too tame for the second to mean anything.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations, count, pairwise
from typing import NamedTuple

# How many leases of a partition back the broker knows which ended with an ack.
RECEIPTS = 16


# The broker's clock and ours may differ by so much over the length of a lease.
_CLOCK_MARGIN_S = 0.1


class Outcome(Enum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Item(NamedTuple):
    """A message as its producer knows it. Transaction ids are unique within a history."""

    transaction_id: str
    partition: str


class Delivery(NamedTuple):
    """A message as a consumer got it."""

    transaction_id: str
    partition: str
    offset: int
    message_id: str
    partition_id: str
    # What the payload says it is; the producer puts the transaction id into it.
    content: str


@dataclass(eq=False, kw_only=True, slots=True)
class Operation:
    invoked: int
    completed: int | None = None
    outcome: Outcome = Outcome.UNKNOWN

    def is_after(self, other: Operation) -> bool:
        """Return whether this was asked for after the other was answered."""
        return other.completed is not None and self.invoked > other.completed


@dataclass(eq=False, kw_only=True, slots=True)
class Push(Operation):
    producer: str
    items: tuple[Item, ...]
    # The message id of each item, once it is answered.
    message_ids: tuple[str | None, ...] = ()


@dataclass(eq=False, kw_only=True, slots=True)
class Pop(Operation):
    group: str
    # Committed at delivery: there is no lease and no ack.
    auto: bool
    invoked_s: float
    completed_s: float = float("inf")
    lease: str = ""
    deliveries: tuple[Delivery, ...] = ()


@dataclass(eq=False, kw_only=True, slots=True)
class Ack(Operation):
    group: str
    lease: str
    transaction_ids: tuple[str, ...]
    # In one transaction with a push of one output for each message.
    pushes: bool
    accepted: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class History:
    """The recorder. All clients of one run write into the same one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ticks = count()
        self.pushes: list[Push] = []
        self.pops: list[Pop] = []
        self.acks: list[Ack] = []
        self.statuses: Counter[int] = Counter()
        self.faults: Counter[str] = Counter()
        # From when to when the database may have lost leases, in ticks.
        self.outages: list[tuple[int, float]] = []
        self.drained: set[str] = set()
        # What the transactions pushed, read at the end: (transaction id, lease).
        self.outputs: list[tuple[str, str]] = []

    # ---- invocations, written before anything is sent ----

    def push(self, producer: str, items: Iterable[Item]) -> Push:
        self.pushes.append(Push(invoked=next(self._ticks), producer=producer, items=tuple(items)))
        return self.pushes[-1]

    def pop(self, group: str, *, auto: bool = False) -> Pop:
        now = self._clock()
        self.pops.append(Pop(invoked=next(self._ticks), group=group, auto=auto, invoked_s=now))
        return self.pops[-1]

    def ack(self, group: str, lease: str, ids: Iterable[str], *, pushes: bool = False) -> Ack:
        names = tuple(ids)
        made = Ack(
            invoked=next(self._ticks),
            group=group,
            lease=lease,
            transaction_ids=names,
            pushes=pushes,
        )
        self.acks.append(made)
        return made

    def fault(self, kind: str) -> None:
        """A fault hit something that was running."""
        self.faults[kind] += 1

    def crash(self) -> None:
        """The database crashed. Until it has recovered, what is left of it may still answer."""
        self.outages.append((next(self._ticks), float("inf")))

    def recover(self) -> None:
        """All that was left of crashed databases is gone."""
        now = next(self._ticks)
        self.outages = [(began, min(ended, now)) for began, ended in self.outages]

    def drain(self, group: str) -> None:
        """All faults are healed and the group has nothing left to read."""
        self.drained.add(group)

    # ---- answers ----

    def answered(self, status: int) -> None:
        self.statuses[status] += 1

    def _end(self, operation: Operation, outcome: Outcome) -> None:
        operation.completed = next(self._ticks)
        operation.outcome = outcome

    def stored(self, push: Push, message_ids: Iterable[str | None]) -> None:
        push.message_ids = tuple(message_ids)
        self._end(push, Outcome.OK)

    def delivered(self, pop: Pop, lease: str, deliveries: Iterable[Delivery]) -> None:
        pop.lease = lease
        pop.completed_s = self._clock()
        pop.deliveries = tuple(deliveries)
        self._end(pop, Outcome.OK)

    def settled(self, ack: Ack, accepted: Iterable[str], refused: Iterable[str]) -> None:
        ack.accepted = tuple(accepted)
        ack.refused = tuple(refused)
        self._end(ack, Outcome.OK)

    def failed(self, operation: Operation) -> None:
        self._end(operation, Outcome.FAILED)

    def unknown(self, operation: Operation) -> None:
        self._end(operation, Outcome.UNKNOWN)


# ---- the verdict ---------------------------------------------------------------------------


class Status(Enum):
    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Verdict:
    status: Status
    # Each broken promise: its name, then who and what.
    violations: tuple[str, ...] = ()
    # Why an innocent history proves nothing.
    shortcomings: tuple[str, ...] = ()

    @property
    def kinds(self) -> set[str]:
        return {violation.split(":", 1)[0] for violation in self.violations}

    def __str__(self) -> str:
        reasons = self.violations or self.shortcomings
        shown = [f"{self.status.value}, {len(reasons)} reasons", *reasons[:20]]
        return "\n  ".join(shown)


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a run must have seen before its innocence counts."""

    pushes: int = 1
    # Messages that were delivered to a group more than once.
    redeliveries: int = 0
    # Acks that came too late and were refused.
    refusals: int = 0
    unknown_pushes: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Evidence:
    """A history, looked up by message."""

    # Every item in the order its producer first sent it: item -> (producer, position).
    sent: dict[str, tuple[str, int]]
    # Where an item may stand; items whose every push failed may stand nowhere.
    partitions: dict[str, str]
    confirmed: set[str]
    # (group, transaction id) -> the pops that delivered it, and the acks that name it.
    deliveries: dict[tuple[str, str], list[tuple[Pop, Delivery]]]
    acks: dict[tuple[str, str], list[Ack]]

    def ends_of(self, group: str) -> dict[str, list[Ack]]:
        """Return the acks that may have ended a lease of a group, by partition."""
        ends: dict[str, dict[Ack, None]] = defaultdict(dict)
        for (where, transaction_id), acks in self.acks.items():
            if where == group:
                may = dict.fromkeys(ack for ack in acks if _may_be_done(ack, transaction_id))
                ends[self.partitions.get(transaction_id, "")].update(may)
        return defaultdict(list, {partition: list(found) for partition, found in ends.items()})

    def is_whole(self, ack: Ack, transaction_id: str) -> bool:
        """Return whether an ack names all that its lease holds in the message's partition."""
        pops = [pop for pop, _ in self.deliveries[ack.group, transaction_id]]
        (pop,) = (one for one in pops if one.lease == ack.lease)
        partition = self.partitions[transaction_id]
        held = {one.transaction_id for one in pop.deliveries if one.partition == partition}
        return held <= set(ack.transaction_ids)

    @classmethod
    def of(cls, history: History) -> Evidence:
        found = cls({}, {}, set(), defaultdict(list), defaultdict(list))
        for push in history.pushes:
            for item in push.items:
                place = (push.producer, len(found.sent))
                found.sent.setdefault(item.transaction_id, place)
                if push.outcome is not Outcome.FAILED:
                    found.partitions[item.transaction_id] = item.partition
                if push.outcome is Outcome.OK:
                    found.confirmed.add(item.transaction_id)
        for pop in history.pops:
            for one in pop.deliveries:
                found.deliveries[pop.group, one.transaction_id].append((pop, one))
        for ack in history.acks:
            for transaction_id in ack.transaction_ids:
                found.acks[ack.group, transaction_id].append(ack)
        return found


def check(
    history: History,
    groups: Iterable[str],
    needs: Needs | None = None,
    lease_s: float | None = None,
    *,
    several_servers: bool = False,
) -> Verdict:
    """Judge a history. `groups` read everything from the beginning, with leases this long. Of
    producers that go to several servers, what was spooled may come late."""
    evidence = Evidence.of(history)
    groups = list(groups)
    lagging: Container[str] = _spooled(history) if several_servers else ()
    violations = [
        *_out_of_words(history),
        *_forged(history, evidence),
        *_doubled(history),
        *_disordered(history),
        *_broken_leases(evidence),
        *_torn(history, evidence),
        *(_overlapping(history, evidence, lease_s) if lease_s is not None else ()),
    ]
    for group in groups:
        log = _log_of(history, group)
        violations += _out_of_turn(group, log, evidence, lagging)
        if group in history.drained:
            violations += _lost(group, evidence)
            violations += _forgotten(group, evidence)
            violations += _gaps(group, log)
    shortcomings = list(_shortcomings(history, evidence, groups, needs or Needs()))
    if violations:
        return Verdict(Status.INVALID, tuple(violations), tuple(shortcomings))
    if shortcomings:
        return Verdict(Status.UNKNOWN, (), tuple(shortcomings))
    return Verdict(Status.VALID)


def _out_of_words(history: History) -> Iterator[str]:
    """Whatever breaks behind the broker, its answer is 503: try again."""
    for status, times in history.statuses.items():
        if status >= 500 and status != 503:
            yield f"internal: {times} answers with status {status}"


# ---- the log: what stands where ------------------------------------------------------------


def _forged(history: History, evidence: Evidence) -> Iterator[str]:
    """What comes out was put in, there and with that payload; what is put in is answered."""
    for push in history.pushes:
        if push.outcome is Outcome.OK and len(push.message_ids) != len(push.items):
            yield f"answer: {push.items} were answered with {push.message_ids}"
    for pop in history.pops:
        for one in pop.deliveries:
            if evidence.partitions.get(one.transaction_id) != one.partition:
                yield f"phantom: {one} was delivered and never sent there"
            if one.content != one.transaction_id:
                yield f"altered: {one} carries the payload of another message"


def _doubled(history: History) -> Iterator[str]:
    """One transaction id is one message in one place, and one place holds one message."""
    ids: dict[str, set[str]] = defaultdict(set)
    places: dict[str, set[tuple[str, int]]] = defaultdict(set)
    holders: dict[tuple[str, int], set[str]] = defaultdict(set)
    for push in history.pushes:
        for item, message_id in zip(push.items, push.message_ids, strict=False):
            # What waits in a spool has no id yet.
            if message_id is not None:
                ids[item.transaction_id].add(message_id)
    for pop in history.pops:
        for one in pop.deliveries:
            ids[one.transaction_id].add(one.message_id)
            places[one.transaction_id].add((one.partition, one.offset))
            holders[one.partition, one.offset].add(one.transaction_id)
    for transaction_id, found in ids.items():
        if len(found) > 1 or len(places[transaction_id]) > 1:
            at = sorted(places[transaction_id])
            yield f"doubled: {transaction_id} is stored as {sorted(found)} and stands at {at}"
    for place, found in holders.items():
        if len(found) > 1:
            yield f"clash: {sorted(found)} all stand at {place}"


def _log_of(history: History, group: str) -> dict[str, dict[int, str]]:
    """Return what a group has seen of each partition: offset -> transaction id."""
    log: dict[str, dict[int, str]] = defaultdict(dict)
    for pop in history.pops:
        if pop.group == group:
            for one in pop.deliveries:
                log[one.partition][one.offset] = one.transaction_id
    return log


def _gaps(group: str, log: Mapping[str, Mapping[int, str]]) -> Iterator[str]:
    """Offsets are 0, 1, 2, … without a hole."""
    for partition, messages in log.items():
        missing = set(range(max(messages) + 1)) - messages.keys()
        if missing:
            shown = sorted(missing)[:5]
            yield f"gap: group {group} saw nothing at {shown} of {partition} ({len(missing)} holes)"


def _spooled(history: History) -> set[str]:
    """Return the messages that were answered from a spool: they had no id yet."""
    return {
        item.transaction_id
        for push in history.pushes
        for item, message_id in zip(push.items, push.message_ids, strict=False)
        if message_id is None
    }


def _out_of_turn(
    group: str,
    log: Mapping[str, Mapping[int, str]],
    evidence: Evidence,
    lagging: Container[str],
) -> Iterator[str]:
    """Along a partition, what one producer sent stands in the order it was sent. What lay in the
    spool of one server may stand behind what went to another one."""
    for partition, messages in log.items():
        last: dict[str, tuple[int, str]] = {}
        for offset in sorted(messages):
            transaction_id = messages[offset]
            producer, position = evidence.sent.get(transaction_id, ("", -1))
            before = last.get(producer)
            if transaction_id in lagging:
                continue
            if before is not None and before[0] > position:
                yield (
                    f"fifo: group {group} saw {transaction_id} behind {before[1]} in {partition}, "
                    f"and {producer} sent it first"
                )
            last[producer] = (position, transaction_id)


def _disordered(history: History) -> Iterator[str]:
    """Inside one answer a partition's messages come in order."""
    for pop in history.pops:
        offsets: dict[str, list[int]] = defaultdict(list)
        for one in pop.deliveries:
            offsets[one.partition].append(one.offset)
        for partition, found in offsets.items():
            if any(left >= right for left, right in pairwise(found)):
                yield f"disorder: group {pop.group} got {partition} as {found}"


# ---- groups: who got what ------------------------------------------------------------------


def _lost(group: str, evidence: Evidence) -> Iterator[str]:
    """Every confirmed push was delivered to the group and acked by it."""
    for transaction_id in evidence.confirmed:
        deliveries = evidence.deliveries.get((group, transaction_id), [])
        acks = evidence.acks.get((group, transaction_id), [])
        if not deliveries:
            yield f"lost: {transaction_id} was confirmed and group {group} never got it"
        elif not any(pop.auto for pop, _ in deliveries) and not any(
            _may_be_done(ack, transaction_id) for ack in acks
        ):
            yield f"unacked: {transaction_id} left group {group} although nobody acked it"


def _may_be_done(ack: Ack, transaction_id: str) -> bool:
    return ack.outcome is Outcome.UNKNOWN or transaction_id in ack.accepted


def _broken_leases(evidence: Evidence) -> Iterator[str]:
    """A message has one holder at a time, and the first that says so has finished it."""
    for (group, transaction_id), deliveries in evidence.deliveries.items():
        acks = evidence.acks.get((group, transaction_id), [])
        accepted = [ack for ack in acks if transaction_id in ack.accepted]
        holders = {ack.lease for ack in accepted}
        holders |= {f"pop {pop.invoked}" for pop, _ in deliveries if pop.auto}
        about = f"{transaction_id} in group {group}"
        if len(holders) > 1:
            yield f"two holders: {about} was finished by {sorted(holders)}"
        granted = {pop.lease: pop for pop, _ in deliveries if not pop.auto}
        for ack in accepted:
            own = granted.get(ack.lease)
            if own is None:
                yield f"stranger: {about} was acked with {ack.lease}, which never got it"
            for pop, _ in deliveries:
                if pop.is_after(ack):
                    yield f"returned: {about} was delivered again after the ack of {ack.lease}"
                elif own is not None and pop is not own and pop.is_after(own):
                    # The later holder got the message, so the earlier one had not finished
                    # it then, and had no right to afterwards.
                    yield f"stale: {about} was acked with {ack.lease} after {pop.lease} got it"


def _overlapping(history: History, evidence: Evidence, lease_s: float) -> Iterator[str]:
    """A message that is leased goes to nobody else before the lease had time to lapse.

    A crash of the database excuses that: a lease need not survive it, an ack must. Backends
    outlive their postmaster, so a lease granted shortly after the crash may be lost as well.
    """
    for (group, transaction_id), deliveries in evidence.deliveries.items():
        leased = dict.fromkeys(pop for pop, _ in deliveries if not pop.auto)
        for one, two in combinations(leased, 2):
            first, last = min(one.invoked, two.invoked), max(one.completed or 0, two.completed or 0)
            began, ended = min(one.invoked_s, two.invoked_s), max(one.completed_s, two.completed_s)
            calm = all(last < crash or first > over for crash, over in history.outages)
            if calm and ended - began < lease_s - _CLOCK_MARGIN_S:
                took = f"within {ended - began:.3f} s"
                yield f"overlap: {transaction_id} in group {group} went to two leases {took}"


def _forgotten(group: str, evidence: Evidence) -> Iterator[str]:
    """Who repeats an ack because the answer was lost, and had succeeded, is told so."""
    ends = evidence.ends_of(group)
    for (where, transaction_id), acks in evidence.acks.items():
        unknown = [ack for ack in acks if ack.outcome is Outcome.UNKNOWN]
        done = [ack for ack in acks if transaction_id in ack.accepted]
        if where != group or done or len({ack.lease for ack in unknown}) != 1:
            continue
        # Nobody else can have finished it, so the first try did; if it named all that the
        # lease held here, the lease ended with it and left a receipt.
        first = unknown[0]
        for ack in acks:
            told = transaction_id in ack.refused and ack.lease == first.lease
            if told and ack.is_after(first) and evidence.is_whole(first, transaction_id):
                later = ends[evidence.partitions[transaction_id]]
                between = {end.lease for end in later if _between(first, end, ack)}
                if len(between) < RECEIPTS:
                    yield f"forgotten: {transaction_id} in group {group}, finished by {ack.lease}"


def _torn(history: History, evidence: Evidence) -> Iterator[str]:
    """What a transaction acks and what it pushes happen together or not at all."""
    outputs = Counter(history.outputs)
    for (transaction_id, lease), times in outputs.items():
        if times > 1:
            yield f"torn: the output of {transaction_id} by {lease} came {times} times"
    for (group, transaction_id), acks in evidence.acks.items():
        for lease in {ack.lease for ack in acks if ack.pushes}:
            own = [ack for ack in acks if ack.lease == lease and ack.pushes]
            others = [ack for ack in acks if ack.lease != lease]
            there = (transaction_id, lease) in outputs
            about = f"{transaction_id} in group {group} by {lease}"
            done = any(transaction_id in ack.accepted for ack in own)
            may_be = any(_may_be_done(ack, transaction_id) for ack in own)
            elsewhere = any(transaction_id in ack.accepted for ack in others)
            if there and (elsewhere or not may_be):
                yield f"torn: {about} was pushed and not acked"
            if done and not there:
                yield f"torn: {about} was acked and not pushed"


def _between(first: Operation, middle: Operation, last: Operation) -> bool:
    """Return whether `middle` may have happened between the other two."""
    return not first.is_after(middle) and not middle.is_after(last)


# ---- what a run must have seen -------------------------------------------------------------


def _shortcomings(
    history: History, evidence: Evidence, groups: list[str], needs: Needs
) -> Iterator[str]:
    refusals = sum(bool(ack.refused) for ack in history.acks)
    unknown = sum(push.outcome is Outcome.UNKNOWN for push in history.pushes)
    repeats = sum(len(pops) - 1 for pops in evidence.deliveries.values())
    seen = [
        ("confirmed messages", len(evidence.confirmed), needs.pushes),
        ("redeliveries", repeats, needs.redeliveries),
        ("refused acks", refusals, needs.refusals),
        ("pushes with unknown outcome", unknown, needs.unknown_pushes),
        *((f"faults: {kind}", history.faults[kind], least) for kind, least in needs.faults.items()),
    ]
    for what, number, least in seen:
        if number < least:
            yield f"{what}: {number}, not {least}"
    for group in groups:
        if group not in history.drained:
            yield f"group {group} was not drained"
    if any(pop.auto and pop.outcome is Outcome.UNKNOWN for pop in history.pops):
        yield "a pop without ack has no known outcome; what it took cannot be told from loss"
