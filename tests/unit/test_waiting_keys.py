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
