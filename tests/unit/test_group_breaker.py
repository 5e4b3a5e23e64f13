"""When the breaker of a group opens, and what is held against messages meanwhile."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from queen.core.cursor import AckStatus, Cursor, settle
from queen.core.pacing.group_breaker import BreakerRule, GroupBreaker, Turn

LEASE, OTHER = uuid.uuid4(), uuid.uuid4()
DONE, FAILED, RETRY, DEAD = AckStatus.DONE, AckStatus.FAILED, AckStatus.RETRY, AckStatus.DEAD


def leased(count: int = 10) -> Cursor:
    return Cursor(0, 0, count, LEASE, True, 1)


def breaker(share: int = 80, outcomes: int = 5) -> GroupBreaker:
    return GroupBreaker(BreakerRule(share, outcomes, 1000))


def judge(guard: GroupBreaker, *statuses: AckStatus) -> list[AckStatus]:
    judged = guard.judge(leased(), LEASE, dict(enumerate(statuses)))
    return list(judged.values())


def test_it_opens_when_the_share_of_the_last_outcomes_is_reached() -> None:
    guard = breaker()
    judge(guard, DONE, FAILED, FAILED, FAILED)
    assert not guard.is_open, "it has not seen enough outcomes"
    judge(guard, FAILED)
    assert (guard.is_open, guard.turn) == (True, Turn.OPENED)


def test_a_success_never_opens_it() -> None:
    guard = breaker(share=60)
    judge(guard, FAILED, FAILED, FAILED, DONE)
    assert not guard.is_open
    judge(guard, DONE)
    assert not guard.is_open


def test_what_is_given_back_without_fault_is_no_outcome() -> None:
    guard = breaker()
    judge(guard, *[RETRY] * 8)
    assert guard.counted == 0


def test_the_rest_of_the_batch_that_opens_it_is_excused() -> None:
    guard = breaker(share=100)
    assert judge(guard, *[FAILED] * 8) == [FAILED] * 5 + [RETRY] * 3


def test_while_it_is_open_only_dead_letters_by_name_and_successes_count() -> None:
    guard = breaker()
    guard.is_open = True
    assert judge(guard, FAILED, DEAD, DONE, RETRY) == [RETRY, DEAD, DONE, RETRY]
    assert guard.is_open and guard.turn is None


def test_a_probe_closes_it_or_fails() -> None:
    guard = breaker()
    guard.is_open, guard.probe_lease = True, LEASE
    assert judge(guard, FAILED) == [FAILED]
    assert (guard.is_open, guard.turn) == (True, Turn.PROBE_FAILED)
    assert not guard.probe_lease
    guard.probe_lease = LEASE
    assert judge(guard, DONE) == [DONE]
    assert (guard.is_open, guard.turn) == (False, Turn.CLOSED)


def test_a_lease_that_is_lost_tells_nothing() -> None:
    guard = breaker()
    guard.judge(leased(), OTHER, dict.fromkeys(range(9), FAILED))
    assert guard.counted == 0


def test_a_failure_that_is_told_twice_is_one_outcome() -> None:
    guard, cursor = breaker(), leased()
    after = settle(cursor, LEASE, guard.judge(cursor, LEASE, {3: FAILED}), 9)
    guard.judge(after.cursor, LEASE, {3: FAILED})
    assert guard.counted == 1


@given(st.lists(st.sampled_from([DONE, FAILED]), max_size=60), st.integers(1, 100))
def test_it_opens_at_the_first_failure_at_which_the_last_ten_have_the_share(
    statuses: list[AckStatus], share: int
) -> None:
    guard = breaker(share, 10)
    seen: list[bool] = []
    for status in statuses:
        judge(guard, status)
        seen.append(status is FAILED)
        last = seen[-10:]
        if len(last) == 10 and seen[-1] and sum(last) * 10 >= share:
            assert guard.is_open
            return
        assert not guard.is_open
