"""The checker is caught by nothing, so it must be shown to catch: histories with planted faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.history import (
    RECEIPTS,
    Delivery,
    History,
    Item,
    Needs,
    Pop,
    Push,
    Status,
    Verdict,
    check,
)

GROUPS = ("a", "b")
LEASE_S = 2


class Story:
    """Writes a history as a well-behaved broker would, so that a test can spoil one thing."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.history = History(lambda: self.now_s)
        self.log: list[str] = []

    def push(self, *ids: str, producer: str = "p") -> Push:
        push = self.history.push(producer, [Item(one, "x") for one in ids])
        self.log += [one for one in ids if one not in self.log]
        self.history.stored(push, [f"m{self.log.index(one)}" for one in ids])
        return push

    def delivery(self, transaction_id: str, offset: int | None = None) -> Delivery:
        at = self.log.index(transaction_id) if offset is None else offset
        return Delivery(transaction_id, "x", at, f"m{at}", "x-id", transaction_id)

    def pop(self, lease: str, *ids: str, group: str = "a", auto: bool = False) -> Pop:
        """Each pop comes after all leases before it have lapsed."""
        self.now_s += LEASE_S
        pop = self.history.pop(group, auto=auto)
        self.history.delivered(pop, lease, map(self.delivery, ids))
        return pop

    def ack(self, lease: str, *ids: str, group: str = "a") -> None:
        self.history.settled(self.history.ack(group, lease, ids), ids, [])

    def refuse(self, lease: str, *ids: str, group: str = "a") -> None:
        self.history.settled(self.history.ack(group, lease, ids), [], ids)

    def lose_ack(self, lease: str, *ids: str, group: str = "a") -> None:
        self.history.unknown(self.history.ack(group, lease, ids))

    def move(self, lease: str, *ids: str) -> None:
        """Ack in one transaction with the push of one output each."""
        self.history.settled(self.history.ack("a", lease, ids, pushes=True), ids, [])
        self.history.outputs += [(one, lease) for one in ids]

    def read(self, group: str, *ids: str) -> None:
        self.pop(f"{group}-{ids[0]}", *ids, group=group)
        self.ack(f"{group}-{ids[0]}", *ids, group=group)

    def verdict(self, needs: Needs | None = None) -> Verdict:
        for group in GROUPS:
            self.history.drain(group)
        return check(self.history, GROUPS, needs, lease_s=LEASE_S)


@pytest.fixture
def story() -> Story:
    """Three messages; group b has read them, group a is the test's."""
    written = Story()
    written.push("1", "2")
    written.push("3")
    written.read("b", "1", "2", "3")
    return written


def test_an_orderly_history_is_valid(story: Story) -> None:
    story.read("a", "1", "2")
    story.read("a", "3")
    assert story.verdict() == Verdict(Status.VALID)


def test_a_redelivery_before_the_ack_is_valid(story: Story) -> None:
    story.pop("one", "1", "2")
    story.pop("two", "1", "2", "3")
    story.refuse("one", "1", "2")
    story.ack("two", "1", "2", "3")
    assert story.verdict() == Verdict(Status.VALID)


def test_a_lease_lost_in_a_crash_is_valid(story: Story) -> None:
    story.pop("one", "1", "2", "3")
    story.history.crash()
    story.now_s -= LEASE_S
    story.pop("two", "1", "2", "3")
    # Granted by a backend that outlives its postmaster.
    story.now_s -= LEASE_S
    story.pop("three", "1", "2", "3")
    story.history.recover()
    story.ack("three", "1", "2", "3")
    assert story.verdict() == Verdict(Status.VALID)


def test_an_ack_repeated_because_its_answer_was_lost_is_valid(story: Story) -> None:
    story.pop("one", "1", "2", "3")
    story.lose_ack("one", "1", "2", "3")
    story.ack("one", "1", "2", "3")
    story.ack("one", "1", "2", "3")
    assert story.verdict() == Verdict(Status.VALID)


def test_an_ack_of_unknown_outcome_may_have_finished_a_message(story: Story) -> None:
    story.pop("one", "1", "2", "3")
    story.lose_ack("one", "1", "2", "3")
    assert story.verdict() == Verdict(Status.VALID)


def test_a_transaction_that_was_refused_or_done_is_valid(story: Story) -> None:
    story.pop("one", "1", "2", "3")
    story.pop("two", "1", "2", "3")
    late = story.history.ack("a", "one", ("1", "2", "3"), pushes=True)
    story.history.settled(late, [], ("1", "2", "3"))
    story.move("two", "1", "2", "3")
    assert story.verdict() == Verdict(Status.VALID)


def test_a_transaction_of_unknown_outcome_may_have_pushed(story: Story) -> None:
    story.pop("one", "1", "2", "3")
    story.history.ack("a", "one", ("1", "2", "3"), pushes=True)
    story.history.outputs += [("1", "one"), ("2", "one"), ("3", "one")]
    assert story.verdict() == Verdict(Status.VALID)


def test_a_lost_ack_may_be_refused_when_it_did_not_happen(story: Story) -> None:
    story.pop("one", "1", "2", "3")
    story.lose_ack("one", "1", "2", "3")
    story.refuse("one", "1", "2", "3")
    story.pop("two", "1", "2", "3")
    story.ack("two", "1", "2", "3")
    assert story.verdict() == Verdict(Status.VALID)


def test_a_lost_ack_of_a_part_may_be_forgotten(story: Story) -> None:
    story.pop("one", "1", "2", "3")
    story.lose_ack("one", "1")
    story.refuse("one", "1")
    story.pop("two", "2", "3")
    story.ack("two", "2", "3")
    assert story.verdict() == Verdict(Status.VALID)


def test_an_old_lost_ack_may_be_forgotten(story: Story) -> None:
    story.pop("one", "1", "2", "3")
    story.lose_ack("one", "1", "2", "3")
    for number in range(RECEIPTS):
        story.push(f"later {number}")
        for group in GROUPS:
            story.read(group, f"later {number}")
    story.refuse("one", "1", "2", "3")
    assert story.verdict() == Verdict(Status.VALID)


def test_a_push_repeated_because_its_answer_was_lost_is_valid(story: Story) -> None:
    story.history.unknown(story.history.push("p", [Item("4", "x")]))
    story.push("4")
    story.push("4")
    story.read("a", "1", "2", "3", "4")
    story.read("b", "4")
    assert story.verdict() == Verdict(Status.VALID)


def test_a_push_of_unknown_outcome_need_not_be_there(story: Story) -> None:
    story.history.push("p", [Item("4", "x")])
    story.read("a", "1", "2", "3")
    assert story.verdict() == Verdict(Status.VALID)


def test_pops_without_ack_that_follow_each_other_are_valid(story: Story) -> None:
    story.pop("", "1", "2", auto=True)
    story.pop("", "3", auto=True)
    assert story.verdict() == Verdict(Status.VALID)


# ---- planted faults ------------------------------------------------------------------------


def dropped(story: Story) -> None:
    """The last message never comes: no hole shows, only the confirmation."""
    story.read("a", "1", "2")


def skipped(story: Story) -> None:
    """The cursor jumps over a message."""
    story.read("a", "1", "3")


def unacked(story: Story) -> None:
    """The cursor passes a message that was delivered and given up."""
    story.read("a", "1", "2")
    story.pop("one", "3")


def doubled(story: Story) -> None:
    """A retry of a push is stored as a second message."""
    story.read("a", "1", "2", "3")
    story.now_s += LEASE_S
    pop = story.history.pop("a")
    story.history.delivered(pop, "again", [story.delivery("2", offset=3)])
    story.ack("again", "2")


def answered_twice(story: Story) -> None:
    """A retry of a push is told another message id."""
    story.history.stored(story.history.push("p", [Item("2", "x")]), ["m7"])
    story.read("a", "1", "2", "3")


def clash(story: Story) -> None:
    """Two messages get the same offset."""
    story.read("a", "1", "2", "3")
    story.history.stored(story.history.push("q", [Item("4", "x")]), ["m2"])
    for group in GROUPS:
        pop = story.history.pop(group)
        story.history.delivered(pop, "last", [story.delivery("4", offset=2)])
        story.ack("last", "4", group=group)


def swapped(story: Story) -> None:
    """Two messages of one producer stand in the wrong order, for everybody."""
    story.log[0], story.log[1] = story.log[1], story.log[0]
    story.history.pushes[0].message_ids = ("m1", "m0")
    for pop in story.history.pops:
        pop.deliveries = tuple(map(story.delivery, ("2", "1", "3")))
    story.read("a", "2", "1", "3")


def shuffled(story: Story) -> None:
    """They stand in the right order and come in another."""
    story.read("a", "2", "1", "3")


def hole(story: Story) -> None:
    """An offset that no message has."""
    story.log += ["", "5"]
    story.history.stored(story.history.push("p", [Item("5", "x")]), ["m4"])
    for group in GROUPS:
        story.read(group, "5")
    story.read("a", "1", "2", "3")


def phantom(story: Story) -> None:
    """A message that nobody sent."""
    story.log.append("4")
    story.read("a", "1", "2", "3", "4")


def refused_and_stored(story: Story) -> None:
    """A push that was refused is read all the same."""
    story.history.failed(story.history.push("p", [Item("4", "x")]))
    phantom(story)


def altered(story: Story) -> None:
    """A message with the payload of its neighbour."""
    story.read("a", "1", "2", "3")
    (pop,) = (one for one in story.history.pops if one.group == "a")
    pop.deliveries = (*pop.deliveries[:2], pop.deliveries[2]._replace(content="2"))


def doubly_acked(story: Story) -> None:
    """Both holders are told that they have finished the message. Their pops are concurrent."""
    story.now_s = -LEASE_S
    late = story.history.pop("a")
    story.pop("one", "1", "2", "3")
    story.now_s += LEASE_S
    story.history.delivered(late, "two", map(story.delivery, ("1", "2", "3")))
    story.ack("one", "1", "2")
    story.ack("two", "1", "2", "3")


def stale_ack(story: Story) -> None:
    """A zombie is heard although another consumer has its messages, and only the zombie."""
    story.pop("one", "1", "2", "3")
    story.pop("two", "1", "2", "3")
    story.ack("one", "1", "2", "3")
    story.refuse("two", "1", "2", "3")


def stale_ack_between(story: Story) -> None:
    """The pop that shows the zombie stale is answered after the zombie was heard."""
    story.pop("one", "1", "2", "3")
    late = story.history.pop("a")
    story.now_s += LEASE_S
    story.ack("one", "1", "2", "3")
    story.history.delivered(late, "two", map(story.delivery, ("1", "2", "3")))


def returned(story: Story) -> None:
    """A finished message comes back."""
    story.read("a", "1", "2")
    story.pop("two", "2", "3")
    story.ack("two", "3")


def stranger(story: Story) -> None:
    """An ack is taken from a lease that never held the message."""
    story.pop("one", "1", "2", "3")
    story.ack("two", "1", "2", "3")


def forgotten(story: Story) -> None:
    """An ack succeeds, its answer is lost, and its repetition is refused."""
    story.pop("one", "1", "2", "3")
    story.lose_ack("one", "1", "2", "3")
    story.refuse("one", "1", "2", "3")


def overlapping(story: Story) -> None:
    """A message is leased to two consumers at once; the first loses it."""
    story.pop("one", "1", "2", "3")
    story.now_s -= LEASE_S / 2
    story.pop("two", "1", "2", "3")
    story.refuse("one", "1", "2", "3")
    story.ack("two", "1", "2", "3")


def speechless(story: Story) -> None:
    """The broker fails at something and cannot say what that means."""
    story.read("a", "1", "2", "3")
    for status in (201, 503, 500):
        story.history.answered(status)


def acked_and_not_pushed(story: Story) -> None:
    """Half of a transaction is missing."""
    story.pop("one", "1", "2", "3")
    story.move("one", "1", "2", "3")
    story.history.outputs.remove(("2", "one"))


def pushed_and_not_acked(story: Story) -> None:
    """The other half is: a refused transaction has pushed."""
    story.pop("one", "1", "2", "3")
    late = story.history.ack("a", "one", ("1", "2", "3"), pushes=True)
    story.history.settled(late, [], ("1", "2", "3"))
    story.history.outputs.append(("3", "one"))
    story.read("a", "1", "2", "3")


def pushed_by_a_zombie(story: Story) -> None:
    """A transaction of unknown outcome has pushed although another lease did the work."""
    story.pop("one", "1", "2", "3")
    story.history.ack("a", "one", ("1", "2", "3"), pushes=True)
    story.history.outputs += [("1", "one"), ("2", "one"), ("3", "one")]
    story.read("a", "1", "2", "3")


def pushed_twice(story: Story) -> None:
    """A repeated transaction pushes again."""
    story.pop("one", "1", "2", "3")
    story.move("one", "1", "2", "3")
    story.move("one", "1", "2", "3")


def overlapping_after_a_crash(story: Story) -> None:
    """The crash is over and excuses nothing any more."""
    story.history.crash()
    story.history.recover()
    overlapping(story)


def committed_twice(story: Story) -> None:
    """Two pops without ack get the same message."""
    story.pop("", "1", "2", auto=True)
    story.pop("", "2", "3", auto=True)


# Some faults imply others: what stands twice also comes twice.
PLANTED: list[tuple[Callable[[Story], None], set[str]]] = [
    (dropped, {"lost"}),
    (skipped, {"lost", "gap"}),
    (unacked, {"unacked"}),
    (doubled, {"doubled", "fifo", "returned", "two holders"}),
    (answered_twice, {"doubled"}),
    (clash, {"clash"}),
    (swapped, {"fifo"}),
    (shuffled, {"disorder"}),
    (hole, {"gap"}),
    (phantom, {"phantom"}),
    (refused_and_stored, {"phantom"}),
    (altered, {"altered"}),
    (doubly_acked, {"two holders"}),
    (stale_ack, {"stale"}),
    (stale_ack_between, {"stale"}),
    (returned, {"returned"}),
    (stranger, {"stranger"}),
    (forgotten, {"forgotten"}),
    (overlapping, {"overlap"}),
    (overlapping_after_a_crash, {"overlap"}),
    (speechless, {"internal"}),
    (acked_and_not_pushed, {"torn"}),
    (pushed_and_not_acked, {"torn"}),
    (pushed_by_a_zombie, {"torn"}),
    (pushed_twice, {"torn"}),
    (committed_twice, {"two holders"}),
]


@pytest.mark.parametrize(("plant", "kinds"), PLANTED, ids=lambda one: getattr(one, "__name__", ""))
def test_a_planted_fault_is_found(
    story: Story, plant: Callable[[Story], None], kinds: set[str]
) -> None:
    plant(story)
    verdict = story.verdict()
    assert verdict.status is Status.INVALID
    assert verdict.kinds == kinds, verdict


# ---- runs that prove nothing ---------------------------------------------------------------


def test_a_quiet_run_is_unknown(story: Story) -> None:
    story.read("a", "1", "2", "3")
    needs = Needs(pushes=4, redeliveries=1, refusals=1, unknown_pushes=1, faults={"kill": 2})
    story.history.fault("kill")
    verdict = story.verdict(needs)
    assert verdict.status is Status.UNKNOWN
    assert verdict.shortcomings == (
        "confirmed messages: 3, not 4",
        "redeliveries: 0, not 1",
        "refused acks: 0, not 1",
        "pushes with unknown outcome: 0, not 1",
        "faults: kill: 1, not 2",
    )


def test_a_run_that_was_not_read_to_the_end_is_unknown(story: Story) -> None:
    story.read("a", "1", "2")
    story.history.drain("b")
    verdict = check(story.history, GROUPS)
    assert verdict == Verdict(Status.UNKNOWN, (), ("group a was not drained",))


def test_an_unanswered_pop_without_ack_is_unknown(story: Story) -> None:
    story.read("a", "1", "2", "3")
    story.history.pop("a", auto=True)
    assert story.verdict().status is Status.UNKNOWN


def test_a_fault_counts_although_the_run_was_quiet(story: Story) -> None:
    doubly_acked(story)
    assert story.verdict(Needs(pushes=1000)).status is Status.INVALID
