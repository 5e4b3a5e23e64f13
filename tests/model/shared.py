"""A shared group in memory: one thing at a time, message by message.

It knows nothing of spans, bits or SQL, and imports nothing of the broker. Where the broker may
choose which message comes next, the model is told and says whether that was allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

DONE, FAILED, RETRY, DEAD = "completed", "failed", "retry", "dlq"
COMPLETED, WILL_RETRY, DIED, REFUSED = "completed", "failed_retry", "failed_dlq", "error"


class State(Enum):
    FRESH = 1
    # With somebody whose lease lives.
    HELD = 2
    # Handed out before, and free again: at once, or when time has passed.
    DUE = 3
    WAITS = 4
    OVER = 5


@dataclass
class Message:
    state: State = State.FRESH
    # Deliveries that count, and failures that were told.
    attempts: int = 0
    told: int = 0
    # The last delivery was of this message alone, and nobody has said anything of it.
    is_alone: bool = False
    lease: str = ""
    is_dead: bool = False


@dataclass
class Lease:
    lease_id: str
    offsets: list[int]
    is_alive: bool = True
    given_back: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)

    @property
    def is_decided(self) -> bool:
        return len(self.given_back) + len(self.done) == len(self.offsets)


class SharedLog:
    """What a shared group has done in one partition."""

    def __init__(self, retry_limit: int, has_delay: bool) -> None:
        self.retry_limit = retry_limit
        self.has_delay = has_delay
        self.messages: list[Message] = []
        self.leases: dict[str, Lease] = {}
        self.is_shared = True
        # Counts are those of a group that was of one kind only.
        self.counts_hold = True

    def push(self, count: int) -> None:
        self.messages += [Message() for _ in range(count)]

    @property
    def undone(self) -> list[int]:
        return [at for at, message in enumerate(self.messages) if message.state is not State.OVER]

    def is_exhausted(self, offset: int) -> bool:
        message = self.messages[offset]
        return (
            message.state is State.DUE and message.is_alone and message.attempts > self.retry_limit
        )

    def is_claimable(self) -> bool:
        """Whether a pop must bring something."""
        states = {message.state for message in self.messages}
        if not self.is_shared and states & {State.HELD, State.WAITS}:
            # In order: what is out, or waits, holds up what is behind it.
            return False
        if not self.counts_hold:
            return State.FRESH in states
        return State.FRESH in states or any(
            self.messages[at].state is State.DUE and not self.is_exhausted(at) for at in self.undone
        )

    # ---- what the broker did ----

    def handed(self, lease_id: str | None, tries: dict[int, int]) -> None:
        """Messages were handed out, each after so many tries; None: and finished at once."""
        offsets = list(tries)
        for offset, count in tries.items():
            message = self.messages[offset]
            assert message.state not in (State.HELD, State.OVER), (offset, message)
            if self.counts_hold:
                assert message.state is not State.WAITS, (offset, message)
                assert count == message.attempts, (offset, message, count)
                # Two holders went silent over it: then it comes alone.
                assert len(offsets) == 1 or message.attempts - message.told < 2, (tries, message)
            if not self.is_shared:
                others = [one for one in self.messages if one.state is State.HELD]
                assert not [one for one in others if one.lease != lease_id], (offset, others)
            message.attempts = count + 1
            message.is_alone = len(offsets) == 1
            message.state = State.HELD if lease_id is not None else State.OVER
            message.lease = lease_id or ""
        if lease_id is not None:
            self.leases[lease_id] = Lease(lease_id, offsets)

    def died_alone(self, offset: int) -> None:
        """The broker gave a message up that nobody came back with."""
        assert self.is_exhausted(offset) or not self.counts_hold, self.messages[offset]
        assert self.messages[offset].state is State.DUE
        self._bury(offset)

    def _bury(self, offset: int) -> None:
        self.messages[offset].state, self.messages[offset].is_dead = State.OVER, True

    # ---- acks ----

    def ack(self, lease_id: str, statuses: dict[int, str]) -> dict[int, str]:
        """Apply acks of one lease; return what the broker has to answer."""
        lease = self.leases[lease_id]
        if not lease.is_alive:
            return dict.fromkeys(statuses, REFUSED)
        answers = {
            offset: self._settle(lease, offset, status) for offset, status in statuses.items()
        }
        if lease.is_decided:
            lease.is_alive = False
        return answers

    def _settle(self, lease: Lease, offset: int, status: str) -> str:
        message = self.messages[offset]
        if offset in lease.done:
            return self._told_of_done(offset, status)
        if offset in lease.given_back:
            return WILL_RETRY if status in (FAILED, RETRY) else REFUSED
        message.told += status == FAILED
        tries = max(message.told, message.attempts) if message.is_alone else message.told
        if status == DEAD or (status == FAILED and tries > self.retry_limit):
            self._bury(offset)
            lease.done.add(offset)
            return DIED
        if status == DONE:
            message.state = State.OVER
            lease.done.add(offset)
            return COMPLETED
        lease.given_back.add(offset)
        if status == RETRY:
            message.attempts -= 1
        message.is_alone = False
        waits = self.has_delay and message.told > 0
        message.state = State.WAITS if waits else State.DUE
        return WILL_RETRY

    def _told_of_done(self, offset: int, status: str) -> str:
        if status == DONE:
            return COMPLETED
        return DIED if self.messages[offset].is_dead else REFUSED

    def repeated(self, lease_id: str, offset: int, status: str) -> str:
        """What the broker may answer to a lease that is over, if it remembers it."""
        lease = self.leases[lease_id]
        is_over = self.messages[offset].state is State.OVER
        if lease.is_decided and is_over:
            return self._told_of_done(offset, status)
        return REFUSED

    def learn(self, lease_id: str, answers: dict[int, str]) -> None:
        """Take what the broker answered in a group that was of both kinds, if it had the right:
        how often what was tried is not known to the model then."""
        lease = self.leases[lease_id]
        for offset, answer in answers.items():
            message = self.messages[offset]
            if not lease.is_alive:
                assert answer == REFUSED or message.state is State.OVER, (offset, answer)
                continue
            is_open = offset not in lease.done | lease.given_back
            assert answer != REFUSED or not is_open, (offset, answer)
            if answer in (COMPLETED, DIED) and offset not in lease.done:
                # Given back in this lease, and then done after all, but not by two.
                assert message.state is not State.HELD or message.lease == lease_id
                lease.given_back.discard(offset)
                lease.done.add(offset)
                message.state, message.is_dead = State.OVER, answer == DIED or message.is_dead
            elif answer == WILL_RETRY and is_open:
                lease.given_back.add(offset)
                message.is_alone = False
                message.state = State.WAITS if self.has_delay else State.DUE
        if lease.is_decided:
            lease.is_alive = False

    # ---- time, and seeks ----

    def lapse(self, lease_id: str) -> None:
        lease = self.leases[lease_id]
        if not lease.is_alive:
            return
        lease.is_alive = False
        for offset in set(lease.offsets) - lease.done - lease.given_back:
            self.messages[offset].state = State.DUE

    def end_waits(self) -> None:
        for message in self.messages:
            if message.state is State.WAITS:
                message.state = State.DUE

    def seek(self, offset: int) -> None:
        for at, message in enumerate(self.messages):
            dead = message.is_dead
            self.messages[at] = Message(is_dead=dead)
            if at < offset:
                self.messages[at].state = State.OVER
        for lease in self.leases.values():
            lease.is_alive = False
            lease.done, lease.given_back = set(), set()
        self.counts_hold = self.is_shared
