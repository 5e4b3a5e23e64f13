"""The broker in memory: plain lists and sets, one thing at a time, obviously right.

It knows nothing of bits, batches, caches or SQL, and imports nothing of the broker. Where the
broker may choose (which partition a pop is served from), the model is told what was chosen
and says whether that was allowed.

    Log      one partition: its messages in order, and where it begins
    Lane     one group in one partition: what is done, who holds what, what failed how often
    Model    all of them, and the dead letters
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

DONE, FAILED, RETRY, DEAD = "completed", "failed", "retry", "dlq"

# What the broker answers to one acknowledgment.
COMPLETED, WILL_RETRY, DIED, REFUSED = "completed", "failed_retry", "failed_dlq", "error"


@dataclass
class Message:
    offset: int
    transaction_id: str
    payload: int
    # Messages of one segment are removed together.
    segment: int
    # How often the clock was put forward since it was written.
    age: int = 0
    # A letter that was sent again is for the group that gave it up.
    only_group: str | None = None
    deleted: bool = False

    def is_shown_to(self, group: str) -> bool:
        return not self.deleted and self.only_group in (None, group)


class Log:
    """One partition."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: list[Message] = []
        self.tail = 0
        self.segments = 0

    @property
    def head(self) -> int:
        return len(self.messages)

    @property
    def kept(self) -> list[Message]:
        return self.messages[self.tail :]

    def append(self, items: Iterable[tuple[str, int, str | None]]) -> list[Message]:
        """Write messages as one segment: id, payload, and the only group that is shown it."""
        added = [
            Message(self.head + at, one, payload, self.segments, only_group=group)
            for at, (one, payload, group) in enumerate(items)
        ]
        self.messages += added
        self.segments += 1
        return added

    def first_younger_than(self, age: int) -> int:
        """Return the first offset whose message is not as old as that."""
        young = [one.offset for one in self.kept if one.age < age]
        return young[0] if young else self.head

    def remove_segments(self, age: int, upto: int) -> None:
        """Remove the oldest segments that end before an offset, if they are that old."""
        for number in sorted({one.segment for one in self.kept}):
            segment = [one for one in self.kept if one.segment == number]
            if segment[-1].offset >= upto or segment[-1].age < age:
                return
            self.tail = segment[-1].offset + 1


@dataclass
class Lease:
    lease_id: str
    start: int
    stop: int
    # What the holder was given, and what of it failed.
    shown: list[int]
    failed: set[int] = field(default_factory=set)
    # Given back without fault: as if it had not been delivered.
    returned: set[int] = field(default_factory=set)
    live: bool = True


@dataclass(frozen=True)
class Delivery:
    offset: int
    transaction_id: str
    payload: int
    retry_count: int


@dataclass(frozen=True)
class Letter:
    partition: str
    group: str
    offset: int
    transaction_id: str
    payload: int
    attempts: int


class Lane:
    """One group in one partition."""

    def __init__(self, model: Model, log: Log, group: str, start: int) -> None:
        self.model = model
        self.log = log
        self.group = group
        self.position = start
        self.done: set[int] = set()
        self.failures: dict[int, int] = {}
        # Deliveries of the message at the position, those included whose holder never spoke.
        self.tries = 0
        # The current lease, or the last one if that lapsed.
        self.lease: Lease | None = None
        # Messages before this come one at a time: two holders of them went silent.
        self.careful_until = 0
        # After a failure nothing is given out until time is put forward.
        self.waits = False
        # Servers may believe that it is leased: only a pop that names it finds out.
        self.is_quiet = False
        # Leases that have decided something, and those that decided everything, latest last.
        self.receipts: list[str] = []
        self.ended: list[str] = []

    # ---- what can be had ----

    @property
    def is_held(self) -> bool:
        return self.lease is not None and self.lease.live

    @property
    def next_offset(self) -> int:
        return max(self.position, self.log.tail)

    def shown(self, offset: int) -> bool:
        return offset not in self.done and self.log.messages[offset].is_shown_to(self.group)

    @property
    def is_claimable(self) -> bool:
        """Whether a pop that names the partition now must bring something."""
        if self.is_held or self.waits:
            return False
        left = [one for one in range(self.next_offset, self.log.head) if self.shown(one)]
        return bool(left) and not (left == [self.position] and self.is_exhausted)

    @property
    def is_exhausted(self) -> bool:
        """Whether the next message was delivered too often, alone at last, without a word."""
        limit, lease = self.model.retry_limit, self.lease
        alone = lease is not None and lease.stop == self.position + 1
        return alone and self.tries > limit and self.position >= self.log.tail

    # ---- moving on ----

    def move_to(self, offset: int) -> bool:
        """Go on to an offset and past everything that is done behind it."""
        before = self.position
        self.position = max(self.position, offset)
        while self.position in self.done:
            self.position += 1
        self.failures = {at: n for at, n in self.failures.items() if self.is_open(at)}
        return self.position > before

    def is_open(self, offset: int) -> bool:
        return offset >= self.position and offset not in self.done

    def _forget_lapsed(self) -> None:
        if not self.is_held:
            self.lease = None

    def skip_removed(self) -> None:
        """Pass over what retention has removed."""
        if self.position < self.log.tail:
            self.move_to(self.log.tail)
            self.tries = 0
            self._forget_lapsed()

    def pass_over(self, offset: int) -> bool:
        """Take it that the broker went on to an offset; false if it had no right to."""
        if any(self.shown(one) for one in range(self.next_offset, offset)):
            return False
        self.skip_removed()
        if self.move_to(offset):
            self.tries = 0
            self._forget_lapsed()
        return True

    def give_up(self) -> None:
        """Set the next message aside: nobody ever came back with it."""
        offset, tries = self.position, self.tries
        self.model.bury(self, offset, tries)
        self.done.add(offset)
        self.move_to(offset)
        self.tries = 0
        self.lease = None

    # ---- pop ----

    def claim(self, lease_id: str | None, budget: int) -> list[Delivery]:
        """Lease the next messages, or finish them at once (None); nothing when it is held."""
        while not self.is_held:
            self.skip_removed()
            if self.position >= self.log.head or self.waits:
                return []
            if self.is_exhausted and lease_id is not None:
                self.give_up()
                continue
            found = self._grant(lease_id, budget)
            if found:
                return found
        return []

    def _grant(self, lease_id: str | None, budget: int) -> list[Delivery]:
        lapsed = self.lease
        told = self.failures.get(self.position, 0)
        self.tries = max(self.tries, told)
        if lapsed is not None and self.position in lapsed.failed | lapsed.returned:
            # It was spoken of, but the holder died over the rest.
            told = 0
        if self.tries - told >= 2:
            seen = lapsed.stop if lapsed is not None else 0
            self.careful_until = max(self.careful_until, seen, self.position + 1)
        start = self.position
        stop = min(start + (1 if start < self.careful_until else budget), self.log.head)
        self.tries += 1
        shown = [one for one in range(start, stop) if self.shown(one)]
        found = [self._delivery(one, start, lapsed) for one in shown]
        if lease_id is None:
            self.done.update(range(start, stop))
            self.move_to(stop)
            self.tries, self.lease, self.failures, self.careful_until = 0, None, {}, 0
        elif not shown:
            # The group is shown nothing of it: it is over at once.
            self.done.update(range(start, stop))
            self.move_to(stop)
            self.tries, self.lease = 0, None
        else:
            self.lease = Lease(lease_id, start, stop, shown)
        return found

    def _delivery(self, offset: int, start: int, lapsed: Lease | None) -> Delivery:
        known = self.failures.get(offset, 0)
        if offset == start or (lapsed is not None and offset < lapsed.stop):
            known = max(known, self.tries - 1)
        message = self.log.messages[offset]
        return Delivery(offset, message.transaction_id, message.payload, known)

    # ---- ack ----

    def ack(self, lease_id: str, statuses: dict[str, str]) -> dict[str, str]:
        """Apply acknowledgments of one lease; return what the broker has to answer."""
        lease = self.lease
        if lease is None or not lease.live or lease.lease_id != lease_id:
            return dict.fromkeys(statuses, REFUSED)
        self.done.update(set(range(lease.start, lease.stop)) - set(lease.shown))
        answers = {}
        for one, status in statuses.items():
            answers[one] = REFUSED
            for offset in lease.shown:
                if self.log.messages[offset].transaction_id == one:
                    answers[one] = self._settle(lease, offset, status)
        self._settled(lease)
        return answers

    def _settle(self, lease: Lease, offset: int, status: str) -> str:
        if not self.is_open(offset):
            return self.told_of_done(offset, status)
        if status in (FAILED, RETRY) and offset not in lease.failed | lease.returned:
            if status == FAILED:
                lease.failed.add(offset)
                self.failures[offset] = self.failures.get(offset, 0) + 1
            else:
                lease.returned.add(offset)
                if offset == self.position:
                    self.tries = max(self.tries - 1, 0)
        tries = self.failures.get(offset, 0)
        if offset == self.position:
            tries = max(tries, self.tries)
        if status == DEAD and offset not in lease.failed | lease.returned:
            tries = max(tries, self.failures.get(offset, 0) + 1)
        if status == DONE:
            self.done.add(offset)
            return COMPLETED
        if status == DEAD or (status == FAILED and tries > self.model.retry_limit):
            self.model.bury(self, offset, tries)
            self.done.add(offset)
            return DIED
        return WILL_RETRY

    def told_of_done(self, offset: int, status: str) -> str:
        """What the broker answers for a message that is done: a failure of it is a repeat where
        it has left a letter, and too late otherwise."""
        if status == DONE:
            return COMPLETED
        return DIED if (self.log.name, self.group, offset) in self.model.letters else REFUSED

    def _settled(self, lease: Lease) -> None:
        """Move on after acks, and end the lease when everything in it is decided."""
        moved = self.move_to(self.position)
        if self.position >= lease.stop:
            self.tries = 0
        elif moved:
            self.tries = self._tries_of_next(lease)
        left = [one for one in range(lease.start, lease.stop) if self.is_open(one)]
        over = all(one in lease.failed | lease.returned for one in left)
        if moved or over:
            self.receipts.append(lease.lease_id)
        if over:
            self.ended.append(lease.lease_id)
            failed = not all(self._is_blameless(lease, one) for one in left)
            self.waits = self.model.has_delay and failed
            self.lease = None
            self.is_quiet = False

    def _tries_of_next(self, lease: Lease) -> int:
        """How often the message was tried that is now the next: it was in this lease too."""
        told = self.position in lease.failed | lease.returned
        return self.failures.get(self.position, 0) + (0 if told else 1)

    def _is_blameless(self, lease: Lease, offset: int) -> bool:
        """Whether a message was given back without fault; one that has failed before is not."""
        return offset in lease.returned and not self.failures.get(offset)

    def set_aside(self, offset: int) -> bool:
        """Bury a message by hand; false when it is done already."""
        if not self.is_open(offset):
            return False
        self.model.bury(self, offset, self.failures.get(offset, 0))
        self.done.add(offset)
        if self.move_to(self.position):
            lease = self.lease
            inside = lease is not None and self.position < lease.stop
            self.tries = self._tries_of_next(lease) if lease is not None and inside else 0
            if not inside:
                self._forget_lapsed()
        return True

    def seek(self, offset: int) -> None:
        """Start again at an offset, as if nothing had been done from there on."""
        self.position = offset
        self.done = set()
        self.failures = {}
        self.tries = 0
        self.lease = None
        self.careful_until = 0
        self.waits = self.is_quiet = False
        self.receipts = []
        self.ended = []


class Model:
    def __init__(self, retry_limit: int, has_delay: bool) -> None:
        self.retry_limit = retry_limit
        self.has_delay = has_delay
        self.logs: dict[str, Log] = {}
        self.lanes: dict[tuple[str, str], Lane] = {}
        self.groups: list[str] = []
        self.letters: dict[tuple[str, str, int], Letter] = {}

    # ---- partitions and groups ----

    def log(self, partition: str) -> Log:
        """Return a partition; a new one is read by every group from its beginning."""
        if partition not in self.logs:
            self.logs[partition] = Log(partition)
            for group in self.groups:
                self._open(partition, group, 0)
        return self.logs[partition]

    def _open(self, partition: str, group: str, start: int) -> None:
        self.lanes[partition, group] = Lane(self, self.logs[partition], group, start)

    def meet(self, group: str, only_new: bool) -> None:
        """A group comes, perhaps for the first time; only then it says where it starts."""
        if group in self.groups:
            return
        self.groups.append(group)
        for name, log in self.logs.items():
            self._open(name, group, log.head if only_new else log.tail)

    def lanes_of(self, group: str) -> list[Lane]:
        return [self.lanes[partition, group] for partition in self.logs]

    def holders(self, partition: str) -> Iterator[Lease]:
        """Yield the leases that live in a partition."""
        for group in self.groups:
            lease = self.lanes[partition, group].lease
            if lease is not None and lease.live:
                yield lease

    # ---- push ----

    def stored(self, partition: str, transaction_id: str, max_age: int) -> list[Message]:
        """Return what a repeated push finds: an id within the window of deduplication.

        Letters that were sent again do not count: only one group is shown them.
        """
        return [
            one
            for one in self.log(partition).kept
            if one.transaction_id == transaction_id
            and one.age <= max_age
            and one.only_group is None
        ]

    def delete(self, partition: str, message: Message) -> None:
        """Take a message away from all groups, and its dead letters with it."""
        message.deleted = True
        for key in [
            key for key in self.letters if key[0] == partition and key[2] == message.offset
        ]:
            del self.letters[key]

    # ---- dead letters ----

    def bury(self, lane: Lane, offset: int, attempts: int) -> None:
        """Keep a copy; of a message that died before, the first one stays."""
        message = lane.log.messages[offset]
        if message.deleted or offset < lane.log.tail:
            # There is nothing left to copy.
            return
        letter = Letter(
            lane.log.name, lane.group, offset, message.transaction_id, message.payload, attempts
        )
        self.letters.setdefault((lane.log.name, lane.group, offset), letter)

    def redrive(self, letters: list[Letter]) -> None:
        """Append letters again, each for its group, in their old order."""
        for partition in sorted({one.partition for one in letters}):
            mine = sorted(
                (one for one in letters if one.partition == partition), key=lambda one: one.offset
            )
            self.logs[partition].append(
                (one.transaction_id, one.payload, one.group) for one in mine
            )
        for one in letters:
            del self.letters[one.partition, one.group, one.offset]

    # ---- time ----

    def grow_older(self) -> None:
        for log in self.logs.values():
            for message in log.messages:
                message.age += 1

    def retain(self, age: int | None, done_age: int | None) -> None:
        """Remove what is too old, and what is old and done by every group."""
        for name, log in self.logs.items():
            if age is not None:
                log.remove_segments(age, log.head)
            if done_age is not None and self.groups:
                done = min(self.lanes[name, group].position for group in self.groups)
                log.remove_segments(done_age, done)
