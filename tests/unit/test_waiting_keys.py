"""Which partitions have records in the spool."""

from __future__ import annotations

from queen.service.spooling.keys import WaitingKeys


def test_a_partition_waits_until_its_last_record_is_done() -> None:
    keys = WaitingKeys()
    for _ in range(2):
        keys.add(("q", "a"))
    keys.done(("q", "a"))
    assert keys.holds(("q", "a")) and not keys.holds(("q", "b")) and keys
    keys.done(("q", "a"))
    assert not keys.holds(("q", "a")) and not keys


def test_beyond_its_bound_everything_waits() -> None:
    keys = WaitingKeys(most=2)
    for name in "abc":
        keys.add(("q", name))
    assert keys.holds(("q", "never seen"))
    keys.done(("q", "a"))
    assert keys.holds(("q", "never seen"))
    keys.done(("q", "c"))
    assert not keys.holds(("q", "never seen")) and keys.holds(("q", "b"))
    keys.done(("q", "b"))
    assert not keys


def test_several_records_are_done_at_once() -> None:
    keys = WaitingKeys(most=1)
    keys.add(("q", "a"), 3)
    keys.add(("q", "b"), 2)
    keys.done(("q", "a"), 2)
    assert keys.holds(("q", "a"))
    keys.done(("q", "b"), 2)
    keys.done(("q", "a"))
    assert not keys
    # Counted in both: the first had no room, the second had.
    keys.add(("q", "a"))
    keys.add(("q", "b"), 2)
    keys.done(("q", "a"))
    keys.add(("q", "b"), 3)
    keys.done(("q", "b"), 5)
    assert not keys
